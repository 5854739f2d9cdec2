-- Last stage of "mha": y = heads . Wo^T (+ bo), straight into the caller's tensor; with
-- padded_queries = "zero" the rows beyond an item's length are cleared.
local ir <const> = require("gen.ir")
local linear <const> = require("gen.stage.linear")

local output <const> = {}

-- Stores zeros in columns [0, vectors * lanes) of the rows >= kv_lengths[b].
local function clear_padded_rows(block, plan, group, last_lanes)
    local problem <const>, lanes <const> = plan.problem, plan.machine.lanes
    block:each("batch", problem.batch, plan.straight, function(body, batch)
        local length <const> = body:size("length", "load_i32", ir.mem("kv_lengths", batch))
        local function clear(inner, row)
            inner:let("vec", "none", "zero")
            for v = 0, group.vectors - 1 do
                local to <const> = ir.mem("out", batch * (problem.seq_len * problem.d_model)
                    + row * problem.d_model + v * lanes)
                if v == group.vectors - 1 and last_lanes < lanes then
                    inner:run("store_part", to, "none", ir.index(last_lanes))
                else
                    inner:run("store", to, "none")
                end
            end
        end
        if plan.straight then
            for row = 0, problem.seq_len - 1 do
                body:when("ge", { ir.index(row), length }, function(inner)
                    clear(inner, ir.index(row))
                end)
            end
        else
            body:loop({ var = "row", from = length, to = problem.seq_len }, clear)
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
            local fn <const> = phase:share(linear.panel_function(("output_%d"):format(columns),
                { ("%d columns of y for all %d rows."):format(columns, projection.rows) },
                plan, projection, group, {
                    input_row = projection.depth, output_row = projection.columns,
                    last_lanes = group.last_lanes,
                    after = plan.problem.padded_queries == "zero" and function(block)
                        clear_padded_rows(block, plan, group, group.last_lanes)
                    end or nil,
                }))
            linear.walk_panels(phase.body, projection, group, fn, kernel:buffer("heads"),
                ir.mem("y"))
        end
    end
end

return output
