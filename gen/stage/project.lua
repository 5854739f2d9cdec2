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
        local tensors <const> = {}
        for i, part in ipairs(projection.parts) do tensors[i] = titles[part.name] end
        phase.body:note(table.concat(tensors, ", "))
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

-- A product with weights of its own for every kv head (few queries), as a phase.
function project.build_blocks(kernel, plan, product, name, title)
    local phase <const> = kernel:phase(name, title)
    local out <const> = product.output and kernel:buffer(product.output) or ir.mem("y")
    for _, group in ipairs(product.groups) do
        local columns <const> = (group.vectors - 1) * plan.machine.lanes + group.last_lanes
        linear.build(phase, plan, product, group, {
            name = ("%s_%d"):format(name, columns),
            input = kernel:buffer(product.input),
            input_item = product.input_item, input_row = product.input_row,
            out = out, output_item = product.output_item, output_row = product.output_row,
        })
    end
end

-- Pads the rows of given values: in a phase of its own, or with the projections where these are the
-- input itself.
function project.build_padding(kernel, plan)
    local pad <const>, lanes <const> = plan.pad_values, plan.machine.lanes
    local phase <const> = pad.with_projections and kernel.phases[1]
        or kernel:phase("pad_values", "Values: rows copied to whole vectors")
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
        local function share(body)
            local first <const> = body:size("first", "share", ir.index(pad.rows), "part", "parts")
            local last <const> = body:size("last", "share_end", ir.index(pad.rows), "part",
                "parts")
            body:loop({ var = "row", from = first, to = last }, call)
        end
        if pad.with_projections then
            phase.body:scope(share)
        else
            share(phase.body)
        end
    end
end

return project
