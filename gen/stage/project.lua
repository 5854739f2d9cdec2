-- Stage 1 of "mha": q, k, v = x . W^T (+ b), each written where scores and context read it.
-- Where values are given and v_head_dim is no multiple of the lanes: copied into padded rows.
local ir <const> = require("gen.ir")
local linear <const> = require("gen.stage.linear")

local project <const> = {}

local titles <const> = { q = "queries", k = "keys", v = "values" }

-- Appends the phase of the projections to `kernel`.
function project.build(kernel, plan)
    local phase <const> = kernel:phase("project", "Projections: q, k, v = x . W^T + b")
    for _, projection in ipairs(plan.projections) do
        local out <const> = kernel:buffer(projection.name)
        phase.body:note(titles[projection.name])
        for _, group in ipairs(projection.groups) do
            linear.build(phase, plan, projection, group, {
                name = ("project_%d%s"):format(group.vectors * plan.machine.lanes,
                    projection.bias and "_biased" or ""),
                input = ir.mem(projection.source, projection.input_first),
                input_item = projection.input_item, input_row = projection.input_row,
                out = out, output_row = projection.layout.row,
            })
        end
    end
end

-- Appends the phase that pads the rows of given values.
function project.build_padding(kernel, plan)
    local pad <const>, lanes <const> = plan.pad_values, plan.machine.lanes
    local phase <const> = kernel:phase("pad_values", "Values: rows copied to whole vectors")
    local fn <const> = phase:add(ir.func("pad_row",
        { ("One row of %d values to %d."):format(pad.from, pad.to) },
        { { "input", "input" }, { "output", "out" } }, function(block)
            local whole <const> = pad.from // lanes
            block:each("vector", whole, plan.straight, function(body, i)
                body:let("vec", "value", "load", ir.mem("input", i * lanes))
                body:run("store", ir.mem("out", i * lanes), "value")
            end)
            block:let("vec", "tail", "load_part", ir.mem("input", whole * lanes),
                ir.index(pad.from % lanes))
            block:run("store", ir.mem("out", whole * lanes), "tail")
        end))
    local padded <const> = kernel:buffer("padded_v")
    local function call(body, row)
        body:call(fn, { input = ir.mem(pad.argument, row * pad.from), out = ir.offset(padded,
            row * pad.to) })
    end
    if plan.straight then
        for i = 0, pad.rows - 1 do call(phase.body, ir.index(i)) end
    else
        local first <const> = phase.body:size("first", "share", ir.index(pad.rows), "part", "parts")
        local last <const> = phase.body:size("last", "share_end", ir.index(pad.rows), "part",
            "parts")
        phase.body:loop({ var = "row", from = first, to = last }, call)
    end
end

return project
