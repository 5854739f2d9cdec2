-- The register-tile matrix product all stages share: C[rows][vectors] = start + A . B with A read
-- by
-- broadcast, B in vectors, the whole depth in one go. Where A and B live, how C starts and where it
-- goes is the caller's. Checks the registers; knows no layout and no ISA.
local tile <const> = {}

local function accumulator(r, v) return ("c%d_%d"):format(r, v) end

-- One step along the depth: vectors loads, rows broadcasts, rows * vectors multiply-adds.
local function emit_step(block, spec, k)
    for v = 0, spec.vectors - 1 do block:let("vec", "b" .. v, "load", spec.b(k, v)) end
    for r = 0, spec.rows - 1 do
        block:let("vec", "a" .. r, "broadcast", spec.a(k, r))
        for v = 0, spec.vectors - 1 do
            local c <const> = accumulator(r, v)
            block:set(c, "fma", "a" .. r, "b" .. v, c)
        end
    end
end

local function emit_steps(block, spec, k, count)
    for i = 0, count - 1 do
        block:scope(function(body) emit_step(body, spec, k + i) end)
    end
end

-- Emits the product into `block` and returns C as names c[r][v], r and v from 0.
--   title              what the tile is, for a comment
--   rows, vectors      tile shape
--   registers          of the machine; an error when the tile needs more
--   depth              integer, or an index over variables
--   unroll             steps per turn of the depth loop; >= depth: no loop
--   a(k, r), b(k, v)   memory of A's scalar and B's vector at depth k
--   start(r, v)        op and arguments of the accumulator's first value; nil: zero
function tile.product(block, spec)
    assert(spec.rows * spec.vectors + spec.vectors + 1 <= spec.registers, "tile exceeds registers")
    block:note(spec.title)
    local c <const> = {}
    for r = 0, spec.rows - 1 do
        c[r] = {}
        for v = 0, spec.vectors - 1 do
            c[r][v] = accumulator(r, v)
            if spec.start then
                block:declare("vec", c[r][v], spec.start(r, v))
            else
                block:declare("vec", c[r][v], "zero")
            end
        end
    end
    local unroll <const> = spec.unroll
    if math.type(spec.depth) == "integer" then
        local turns <const>, rest <const> = spec.depth // unroll, spec.depth % unroll
        if turns == 1 then
            emit_steps(block, spec, spec.index(0), unroll)
        elseif turns > 1 then
            block:loop({ var = "k", from = 0, to = turns * unroll, step = unroll },
                function(body, k) emit_steps(body, spec, k, unroll) end)
        end
        emit_steps(block, spec, spec.index(turns * unroll), rest)
    else
        local whole = spec.index(0)
        if unroll > 1 then
            whole = block:size("whole", "round_down", spec.depth, spec.index(unroll))
            block:loop({ var = "k", from = 0, to = whole, step = unroll, below = true },
                function(body, k) emit_steps(body, spec, k, unroll) end)
        end
        block:loop({ var = "k", from = whole, to = spec.depth },
            function(body, k) emit_step(body, spec, k) end)
    end
    return c
end

return tile
