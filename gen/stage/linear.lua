-- A linear layer over packed weight panels, out = bias + in . W^T: what the projections and the
-- output projection have in common. One function computes one panel (a few vectors of columns) for
-- all rows; the caller walks the panels.
--
-- Panel in memory: [bias row, if any][depth][vectors * lanes], 64-byte aligned.
local ir <const> = require("gen.ir")
local tile <const> = require("gen.tile")

local linear <const> = {}

-- Walks the row tiles of a projection: build(block, first_row, rows).
local function each_row_tile(block, projection, build)
    local first = 0
    for _, group in ipairs(projection.row_groups) do
        local base <const> = first
        block:each("tile", group.count, projection.straight, function(body, i)
            build(body, i * group.size + base, group.size)
        end)
        first = first + group.count * group.size
    end
end

-- The function of one panel group of `projection`.
--   input_row, output_row    strides of a row in floats
--   last_lanes               lanes of the group's last vector that exist in the output (lanes: all)
-- Parameters of the result: input, panel, out.
function linear.panel_function(name, comment, plan, projection, group, options)
    local lanes <const> = plan.machine.lanes
    local width <const> = group.vectors * lanes
    local weights_at <const> = projection.bias and width or 0
    local parameters <const> = { { "input", "input" }, { "input", "panel" }, { "output", "out" },
        { "lengths", "kv_lengths" } }
    return ir.func(name, comment, parameters, function(block)
        each_row_tile(block, projection, function(body, row, rows)
            local from <const> = body:pointer("pointer", "in_rows",
                ir.mem("input", row * options.input_row))
            local c <const> = tile.product(body, {
                title = ("%d rows x %d columns"):format(rows, width),
                rows = rows, vectors = group.vectors, registers = plan.machine.registers,
                depth = projection.depth, unroll = projection.unroll, index = ir.index,
                a = function(k, r) return ir.offset(from, k + r * options.input_row) end,
                b = function(k, v) return ir.mem("panel", k * width + v * lanes + weights_at) end,
                start = projection.bias
                    and function(_, v) return "load", ir.mem("panel", v * lanes) end or nil,
            })
            for r = 0, rows - 1 do
                for v = 0, group.vectors - 1 do
                    local to <const> = ir.mem("out",
                        (row + r) * options.output_row + group.vector_offsets[v + 1])
                    if v == group.vectors - 1 and options.last_lanes < lanes then
                        body:run("store_part", to, c[r][v], ir.index(options.last_lanes))
                    else
                        body:run("store", to, c[r][v])
                    end
                end
            end
        end)
        if options.after then options.after(block) end
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

-- Calls `fn` for the share (part of parts) of a group's panels.
--   input, packed, out       mems of the first row, the packed weights, the output tensor
function linear.walk_panels(block, projection, group, fn, input, out)
    local function call(body, panel)
        local at <const> = panel + group.start
        local major <const> = body:size("block", "quotient", at, ir.index(group.per_block))
        local minor <const> = group.per_block > 1
            and body:size("within", "remainder", at, ir.index(group.per_block)) or ir.index(0)
        body:call(fn, {
            input = input,
            panel = ir.mem("weights", panel * group.panel_floats + group.offset),
            out = ir.offset(out,
                major * group.block_stride + minor * group.panel_stride + group.target),
        })
    end
    if projection.straight then
        for i = 0, group.count - 1 do call(block, ir.index(i)) end
        return
    end
    block:scope(function(body)
        local first <const> = body:size("first", "share", ir.index(group.count), "part", "parts")
        local last <const> = body:size("last", "share_end", ir.index(group.count), "part", "parts")
        body:loop({ var = "panel", from = first, to = last }, call)
    end)
end

return linear
