-- A linear layer over packed weight panels, out = bias + in . W^T: what the projections and the
-- output projection have in common. One function computes a run of equal row tiles of one panel (a
-- few vectors of columns), in straight-line code a single tile. Equal functions are shared,
-- whichever
-- matrix they serve.
--
-- Panel in memory: [bias row, if any][depth][vectors * lanes], 64-byte aligned.
local ir <const> = require("gen.ir")
local tile <const> = require("gen.tile")

local linear <const> = {}

local parameters <const> = { { "input", "input" }, { "input", "panel" }, { "output", "out" } }

-- One tile of `rows` rows from `row` on.
local function emit_tile(block, plan, projection, group, options, row, rows)
    local lanes <const> = plan.machine.lanes
    local width <const> = group.vectors * lanes
    local weights_at <const> = projection.bias and width or 0
    local from <const> = block:pointer("pointer", "in_rows",
        ir.mem("input", row * options.input_row))
    local out <const> = tile.carry(function(r, v)
        return ir.mem("out", (row + r) * options.output_row + group.vector_offsets[v + 1])
    end, function(v)
        local partial <const> = v == group.vectors - 1 and options.last_lanes < lanes
        return partial and ir.index(options.last_lanes) or nil
    end)
    local c <const> = tile.product(block, {
        title = ("%d rows x %d columns"):format(rows, width),
        rows = rows, vectors = group.vectors, registers = plan.machine.registers,
        depth = projection.depth, unroll = projection.unroll, index = ir.index,
        a = function(k, r) return ir.offset(from, k + r * options.input_row) end,
        b = function(k, v) return ir.mem("panel", k * width + v * lanes + weights_at) end,
        start = projection.bias
            and function(_, v) return "load", ir.mem("panel", v * lanes) end or nil,
        carry = out, prefetch = options.prefetch and options.prefetch(row),
    })
    for r = 0, rows - 1 do
        for v = 0, group.vectors - 1 do out.store(block, c[r][v], r, v) end
    end
end

-- What a tile asks for while it works: its share, by rows, of the panel behind this one.
-- `row_before`
-- rows were done by earlier functions.
local function next_panel(projection, group, row_before)
    local share <const> = group.panel_floats // projection.rows + 1
    local step <const> = group.panel_floats // projection.tiles // projection.depth + 1
    return function(row)
        local start <const> = (row + row_before) * share + group.panel_floats
        return function(k) return ir.mem("panel", start + k * step) end
    end
end

-- `count` tiles of `rows` rows of one panel, as a function(input, panel, out).
local function rows_function(plan, projection, group, options, rows, count, row_before)
    options.prefetch = projection.prefetch and next_panel(projection, group, row_before)
    return ir.func(("%s_%dx%d"):format(options.name, rows, group.vectors),
        { ("%d rows of one panel of %d columns: out = %sin . panel."):format(count * rows,
            group.vectors * plan.machine.lanes, projection.bias and "bias + " or "") },
        parameters, function(block)
            block:each("tile", count, false, function(body, i)
                emit_tile(body, plan, projection, group, options, i * rows, rows)
            end)
        end)
end

-- Appends one panel group of `projection` to `phase`: its functions, and in the phase's body the
-- calls for the share (part of parts) of its panels.
--   group                    with last_lanes: see peel
--   options.name             of the functions
--   options.input, out       mems of the first input row and of the output tensor
--   options.input_row, output_row   strides of a row in floats
--   options.after            called with (block, out of the panel) after each panel
function linear.build(phase, plan, projection, group, options)
    options.last_lanes = group.last_lanes or plan.machine.lanes
    local function walk(body, panel, call)
        local at <const> = panel + group.start
        local major <const> = body:size("block", "quotient", at, ir.index(group.per_block))
        local minor <const> = group.per_block > 1
            and body:size("within", "remainder", at, ir.index(group.per_block)) or ir.index(0)
        local out <const> = ir.offset(options.out, major * group.block_stride
            + minor * group.panel_stride + group.target)
        call(ir.mem("weights", panel * group.panel_floats + group.offset), out)
        if options.after then options.after(body, out) end
    end
    -- equal row tiles: in a loop inside one function, or one call each
    local calls <const>, row = {}, 0
    for _, row_group in ipairs(projection.row_groups) do
        local inside <const> = projection.straight and 1 or row_group.count
        local fn <const> = phase:share(
            rows_function(plan, projection, group, options, row_group.size, inside, row))
        fn.apart = not projection.straight
        for _ = 1, row_group.count // inside do
            calls[#calls + 1] = { fn = fn, row = row }
            row = row + inside * row_group.size
        end
    end
    local function call_panel(body, panel)
        walk(body, panel, function(weights, out)
            for _, one in ipairs(calls) do
                body:call(one.fn, { panel = weights,
                    input = ir.offset(options.input, one.row * options.input_row),
                    out = ir.offset(out, one.row * options.output_row) })
            end
        end)
    end
    if projection.straight then
        for i = 0, group.count - 1 do call_panel(phase.body, ir.index(i)) end
        return
    end
    phase.body:scope(function(body)
        local count <const> = ir.index(group.count)
        local first <const> = body:size("first", "share", count, "part", "parts")
        local last <const> = body:size("last", "share_end", count, "part", "parts")
        body:loop({ var = "panel", from = first, to = last }, call_panel)
    end)
end

-- A group as the list of groups its output needs: where the last vector of the whole projection is
-- only partly there, the last panel stands alone. Each has last_lanes.
function linear.peel(group, projection, lanes)
    local rest <const> = projection.columns % lanes
    local is_last <const> = group.first_panel + group.count == projection.panels
    local function copy(changes)
        local made <const> = {}
        for key, value in pairs(group) do made[key] = value end
        for key, value in pairs(changes) do made[key] = value end
        return made
    end
    if rest == 0 or not is_last then return { copy({ last_lanes = lanes }) } end
    local before <const> = group.count - 1
    local last <const> = copy({ count = 1, last_lanes = rest,
        first_panel = group.first_panel + before,
        offset = group.offset + before * group.panel_floats,
        target = group.target + before * group.block_stride })
    if before == 0 then return { last } end
    return { copy({ count = before, last_lanes = lanes }), last }
end

return linear
