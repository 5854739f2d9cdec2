-- Last stage of "mha": y = heads . Wo^T (+ bo), straight into the caller's tensor; with
-- padded_queries = "zero" the rows beyond an item's length are cleared.
local ir <const> = require("gen.ir")
local linear <const> = require("gen.stage.linear")

local output <const> = {}

-- Stores zeros in a panel's columns of an item's rows from `length` on, as a function(out, length).
local function clear_function(plan, group, columns)
    local problem <const>, lanes <const> = plan.problem, plan.machine.lanes
    return ir.func(("clear_padded_%d"):format(columns),
        { ("Zeros in %d columns of y for an item's queries beyond its length."):format(columns) },
        { { "output", "out" }, { "size", "length" } }, function(block)
            local function clear(body, row)
                body:let("vec", "none", "zero")
                for v = 0, group.vectors - 1 do
                    local to <const> = ir.mem("out", row * problem.d_model + v * lanes)
                    if v == group.vectors - 1 and group.last_lanes < lanes then
                        body:run("store_part", to, "none", ir.index(group.last_lanes))
                    else
                        body:run("store", to, "none")
                    end
                end
            end
            local length <const> = ir.var("length")
            if not plan.straight then
                block:loop({ var = "row", from = length, to = problem.seq_len }, clear)
                return
            end
            for row = 0, problem.seq_len - 1 do
                block:when("ge", { ir.index(row), length }, function(body)
                    clear(body, ir.index(row))
                end)
            end
        end)
end

-- Appends the phase of the output projection to `kernel`.
function output.build(kernel, plan)
    local projection <const>, lanes <const> = plan.output, plan.machine.lanes
    local phase <const> = kernel:phase("output", "Output projection: y = heads . Wo^T + bo")
    for _, whole in ipairs(projection.groups) do
        for _, group in ipairs(linear.peel(whole, projection, lanes)) do
            local columns <const> = (group.vectors - 1) * lanes + group.last_lanes
            local clear <const> = plan.problem.padded_queries == "zero"
                and phase:share(clear_function(plan, group, columns))
            linear.build(phase, plan, projection, group, {
                name = ("output_%d"):format(columns),
                input = kernel:buffer("heads"), input_item = projection.input_item,
                input_row = projection.input_row,
                out = ir.mem("y"), output_row = projection.columns,
                after = clear and function(body, out, item)
                    body:scope(function(inner)
                        local length <const> = inner:size("padded_from", "load_i32",
                            ir.mem("kv_lengths", item))
                        inner:call(clear, { out = out, length = length })
                    end)
                end or nil,
            })
        end
    end
end

return output
