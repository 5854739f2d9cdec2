-- The register-tile matrix product all stages share: C[rows][vectors] = start + A . B with A read
-- by broadcast, B in vectors. Where A and B live, how C starts and where it goes is the caller's.
-- Checks the registers; knows no layout and no ISA.
--
-- A depth beyond LONGEST_SUM is summed in blocks, each from zero, the blocks' sums one after the
-- other: rounding errors then grow with the block, not with the depth. The running sum waits in
-- memory (`carry`), so the tile needs no more registers. Beyond LONGEST_BIASED the bias comes last:
-- a large one at the start of a long chain would coarsen every sum behind it.
local ir <const> = require("gen.ir")
local numbers <const> = require("gen.plan.numbers")

local tile <const> = {}

local LONGEST_SUM <const>, LONGEST_BIASED <const> = numbers.LONGEST_SUM, 64

local function accumulator(r, v) return ("c%d_%d"):format(r, v) end

local function each_accumulator(spec, visit)
    for r = 0, spec.rows - 1 do
        for v = 0, spec.vectors - 1 do visit(accumulator(r, v), r, v) end
    end
end

-- One step along the depth: vectors loads, rows broadcasts, rows * vectors multiply-adds.
local function emit_step(block, spec, k)
    for v = 0, spec.vectors - 1 do
        local part <const> = spec.b_lanes and spec.b_lanes(v)
        if part then
            block:let("vec", "b" .. v, "load_part", spec.b(k, v), part)
        elseif spec.load_b then
            spec.load_b(block, "b" .. v, spec.b(k, v), v)
        else
            block:let("vec", "b" .. v, "load", spec.b(k, v))
        end
    end
    for r = 0, spec.rows - 1 do
        if spec.load_a then
            spec.load_a(block, "a" .. r, spec.a(k, r))
        else
            block:let("vec", "a" .. r, "broadcast", spec.a(k, r))
        end
        for v = 0, spec.vectors - 1 do
            local c <const> = accumulator(r, v)
            block:set(c, "fma", "a" .. r, "b" .. v, c)
        end
    end
end

local function emit_steps(block, spec, k, count)
    if count == 0 then return end
    if spec.prefetch then spec.prefetch(block, k) end
    for i = 0, count - 1 do
        if spec.ahead and i % numbers.rows_a_page(spec.ahead.row) == 0 then
            block:run("prefetch_soon", spec.ahead.line(k + i))
        end
        block:scope(function(body) emit_step(body, spec, k + i) end)
    end
end

-- Whether a multiply-add loads its factor of A itself. In a loop over an index clang gives that
-- load two registers, which splits the instruction in two; pointers that walk do not.
local function loads_in_products(spec)
    return spec.vectors == 1 and spec.rows > 1
        and not (spec.load_a or spec.load_b or spec.prefetch or spec.ahead)
end

-- The turns of `from` on as a walk of pointers along A and B.
local function emit_walk(block, spec, from, turns)
    local pointers <const>, walking <const> = {}, setmetatable({}, { __index = spec })
    for i, side in ipairs({ "b", "a" }) do
        local name <const>, at <const> = side .. "_at", spec[side]
        local start <const> = at(from, 0)
        local function from_start(k, n) return at(from + k, n).index + start.index * -1 end
        pointers[i] = { name = name, from = start, step = ir.constant(from_start(spec.unroll, 0)) }
        walking[side] = function(k, n) return ir.mem(name, from_start(k, n)) end
    end
    block:walk(pointers, ir.offset(pointers[1].from, turns * pointers[1].step),
        function(body) emit_steps(body, walking, ir.index(0), spec.unroll) end)
end

-- Steps [from, from + count), count known.
local function emit_range(block, spec, from, count)
    local unroll <const> = spec.unroll
    local turns <const>, rest <const> = count // unroll, count % unroll
    if turns == 1 then
        emit_steps(block, spec, from, unroll)
    elseif turns > 1 and loads_in_products(spec) then
        emit_walk(block, spec, from, turns)
    elseif turns > 1 then
        block:loop({ var = "k", from = from, to = from + turns * unroll, step = unroll,
            below = true }, function(body, k) emit_steps(body, spec, k, unroll) end)
    end
    emit_steps(block, spec, from + turns * unroll, rest)
end

-- Steps [from, depth), known at run time only.
local function emit_open_range(block, spec, from)
    local whole = from
    if spec.unroll > 1 then
        local rest <const> = block:size("rest", "excess", spec.depth, from)
        whole = from + block:size("unrolled", "round_down", rest, spec.index(spec.unroll))
        block:loop({ var = "k", from = from, to = whole, step = spec.unroll, below = true },
            function(body, k) emit_steps(body, spec, k, spec.unroll) end)
    end
    block:loop({ var = "k", from = whole, to = spec.depth },
        function(body, k) emit_step(body, spec, k) end)
end

local function clear(block, spec)
    each_accumulator(spec, function(c) block:set(c, "zero") end)
end

local function add_carry(block, spec, keep)
    each_accumulator(spec, function(c, r, v)
        local sum <const> = spec.carry.load(block, ("t%d_%d"):format(r, v), r, v)
        block:set(c, "add", sum, c)
        if keep then spec.carry.store(block, c, r, v) end
    end)
end

-- Emits the product into `block` and returns C as names c[r][v], r and v from 0.
--   title              what the tile is, for a comment
--   rows, vectors      tile shape
--   registers          of the machine; an error when the tile needs more
--   depth              integer, or an index over variables
--   max_depth          the deepest of all tiles that must add up alike (nil: depth itself)
--   unroll             steps per turn of the depth loop; >= depth: no loop
--   a(k, r), b(k, v)   memory of A's scalar and B's vector at depth k
--   b_lanes(v)         lanes of vector v that B has (an index; nil: all)
--   load_a(block, name, mem), load_b(block, name, mem, v)
--                      how a vector comes from there (nil: A by broadcast, B as it lies)
--   start(r, v)        op and arguments of what is added to the product; nil: zero
--   prefetch(block, k) asks for memory at depth k, once a turn; nil: none
--   prefetch_first(block, k)
--                      the same during the first sum, before the tile is stored; nil: as later
--   ahead              {row = floats from depth to depth, line(k) = memory pages behind depth k's}:
--                      a line of every page is asked for; nil: none
--   carry              {load(block, name, r, v) -> name, store(block, c, r, v)}: memory that holds
--                      C between depth blocks; may be where the caller puts C in the end
function tile.product(block, spec)
    assert(spec.rows * spec.vectors + (spec.rows == 1 and 1 or spec.vectors) + 1 <= spec.registers,
        "tile exceeds registers")
    block:note(spec.title)
    local c <const> = {}
    for r = 0, spec.rows - 1 do c[r] = {} end
    assert(not (spec.start and spec.max_depth), "what ends early has no bias")
    local deepest <const> = spec.max_depth or spec.depth
    local deep <const> = deepest > LONGEST_SUM
    local starts_biased <const> = spec.start and deepest <= LONGEST_BIASED
    each_accumulator(spec, function(name, r, v)
        c[r][v] = name
        if starts_biased then
            block:declare("vec", name, spec.start(r, v))
        else
            block:declare("vec", name, "zero")
        end
    end)
    local function add_start()
        if not spec.start or starts_biased then return end
        each_accumulator(spec, function(name, r, v)
            local first <const> = block:let("vec", ("s%d_%d"):format(r, v), spec.start(r, v))
            block:set(name, "add", first, name)
        end)
    end
    local first_sum <const> = setmetatable({ prefetch = spec.prefetch_first or spec.prefetch },
        { __index = spec })
    local known <const> = math.type(spec.depth) == "integer"
    local zero <const> = spec.index(0)
    if not deep then
        if known then
            emit_range(block, first_sum, zero, spec.depth)
        else
            emit_open_range(block, spec, zero)
        end
        add_start()
        return c
    end
    local function put_down()
        each_accumulator(spec, function(name, r, v) spec.carry.store(block, name, r, v) end)
    end
    local function whole_block(body, from)
        clear(body, spec)
        emit_range(body, spec, from, LONGEST_SUM)
        add_carry(body, spec, true)
    end
    if known then
        local last <const> = math.max(0, (spec.depth - 1) // LONGEST_SUM)
        local first <const> = math.min(spec.depth, LONGEST_SUM)
        emit_range(block, first_sum, zero, first)
        if last == 0 then return c end
        put_down()
        block:each("part", last - 1, spec.unroll >= LONGEST_SUM, function(body, part)
            whole_block(body, part * LONGEST_SUM + first)
        end)
        clear(block, spec)
        emit_range(block, spec, spec.index(last * LONGEST_SUM),
            spec.depth - last * LONGEST_SUM)
    else
        put_down()
        local blocks_end <const> = block:size("blocks_end", "round_down", spec.depth,
            spec.index(LONGEST_SUM))
        block:loop({ var = "from", from = zero, to = blocks_end, step = LONGEST_SUM,
            below = true }, whole_block)
        clear(block, spec)
        emit_open_range(block, spec, blocks_end)
    end
    add_carry(block, spec, false)
    add_start()
    return c
end

-- A carry in memory at(r, v); lanes(v) says how many lanes of vector v exist there (nil: all).
function tile.carry(at, lanes)
    return {
        load = function(block, name, r, v)
            local part <const> = lanes and lanes(v)
            if part then return block:let("vec", name, "load_part", at(r, v), part) end
            return block:let("vec", name, "load", at(r, v))
        end,
        store = function(block, c, r, v)
            local part <const> = lanes and lanes(v)
            if part then
                block:run("store_part", at(r, v), c, part)
            else
                block:run("store", at(r, v), c)
            end
        end,
    }
end

return tile
