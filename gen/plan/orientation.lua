-- Chooses which way the lanes lie in attention: along queries (gen/plan/attention.lua) or along the
-- head (gen/plan/dims.lua), by predicted cycles. Lanes along heads (gen/plan/heads.lua) change the
-- projections too, so that whole plans are compared: gen/plan.lua says where they are.
local attention <const> = require("gen.plan.attention")
local dims <const> = require("gen.plan.dims")
local heads <const> = require("gen.plan.heads")
local numbers <const> = require("gen.plan.numbers")

local orientation <const> = {}

-- The orientation that the config's plan fixes, nil where the planner may choose. What is given of
-- a tile, of what it asks for, or of the context apart from the scores is written for lanes along
-- queries.
function orientation.forced(problem)
    local scores <const>, context <const> = problem.plan.scores or {}, problem.plan.context or {}
    local forced <const> = scores.orientation or (scores.rows or scores.vectors
        or scores.prefetch ~= nil or context.orientation) and "queries"
    local for_queries <const> = { { "plan.scores.prefetch", scores.prefetch },
        { "plan.context.orientation", context.orientation } }
    for _, given in ipairs(for_queries) do
        local key <const>, value <const> = given[1], given[2]
        if value ~= nil and forced ~= "queries" then
            numbers.refuse(key, value, ('the planner decides it with lanes along "%s"'):format(
                forced), 'not given, or with plan.scores.orientation = "queries"')
        end
    end
    return forced
end

-- Lanes along queries are the rule: what is nearly a tie on paper goes to them.
local CLEAR_GAIN <const> = 0.85

local modules <const> = { queries = attention, dims = dims, heads = heads }

-- Cycles of the softmax with lanes along queries: a vector for each key and vector of queries.
local function softmax_cycles(problem, planned)
    local vectors = 0
    for _, block in ipairs(planned.blocks) do vectors = vectors + block.count * block.vectors end
    return vectors * problem.kv_len * problem.batch * problem.heads * dims.SOFTMAX_CYCLES
end

-- The plan of attention, with `orientation` and the reason for it.
--   widths   {score, value}: depth of the scores and width of the values, a head
function orientation.choose(problem, machine, widths, straight)
    local given <const> = orientation.forced(problem)
    local forced <const> = problem.along_heads and "heads" or given
    if forced then
        local planned <const> = modules[forced].build(problem, machine, widths, straight)
        planned.orientation = forced
        planned.reason = problem.along_heads and not given
            and ("%.0f cycles predicted"):format(planned.cycles + planned.softmax_cycles)
            or "as the plan says"
        planned.softmax_cycles = planned.softmax_cycles or softmax_cycles(problem, planned)
        return planned
    end
    local queries <const> = attention.build(problem, machine, widths, straight)
    local along_dims <const> = dims.build(problem, machine, widths, straight)
    queries.softmax_cycles = softmax_cycles(problem, queries)
    local cycles <const> = queries.cycles + queries.softmax_cycles
    local dims_cycles <const> = along_dims.cycles + along_dims.softmax_cycles
    local chosen <const> = dims_cycles < CLEAR_GAIN * cycles and along_dims or queries
    chosen.orientation = chosen.orientation or "queries"
    chosen.reason = ("%.0f cycles predicted with lanes along queries, %.0f along the head"):format(
        cycles, dims_cycles)
    return chosen
end

function orientation.part_buffers(problem, planned, widths)
    return modules[planned.orientation].part_buffers(problem, planned, widths)
end

return orientation
