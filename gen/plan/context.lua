-- Which way the lanes of the context lie, for every block of queries whose scores lie along
-- queries: along the dims of a head (row tiles of queries; the last vector of a head may be mostly
-- empty) or along queries too (row tiles of dims, no lane wasted on them; the result is transposed
-- at the end). Counts cycles; the bits are the same.
local numbers <const> = require("gen.plan.numbers")
local tiles <const> = require("gen.plan.tiles")

local context <const> = {}

local ceil_div <const>, split_even <const> = numbers.ceil_div, numbers.split_even

-- Along dims is the rule: what is nearly a tie on paper goes there.
local CLEAR_GAIN <const> = 0.96

-- Cycles of a transpose: about log2(lanes) for the loads that insert and the shuffles of a vector,
-- one for its store; single elements where not even one block is whole.
local function transpose_cycles(dims, queries, lanes)
    if dims < lanes or queries < lanes then return dims * queries end
    local steps = 1
    while 1 << (steps - 1) < lanes do steps = steps + 1 end
    return ceil_div(dims, lanes) * ceil_div(queries, lanes) * lanes * steps
end

-- Why the context of a block cannot have its lanes along queries; nil where it can.
local function obstacle(problem, block, shape, lanes)
    if lanes == 1 then return "one lane wastes none" end
    if block.split then return "lanes share queries" end
    if shape.in_blocks and problem.masked then return "blocks of keys repair rows" end
    -- a tile given by hand is one of the orientation it was written for
    local given <const> = problem.plan.context or {}
    if not given.orientation and (given.rows or given.vectors) then return "a tile is given" end
    return nil
end

-- Plans the context of every block: row_groups (queries) along dims, dim_groups, vector_groups and
-- context_unroll along queries; context_cycles, context_reason. Returns the tile along dims.
--   shape  dims (of the values), keys (of a block of them), key_blocks, in_blocks, straight,
--          seen(queries): fraction of the products that tiles of so many queries compute
function context.build(problem, machine, blocks, shape)
    local lanes <const> = machine.lanes
    local forced <const> = problem.plan.context and problem.plan.context.orientation
    local along_dims <const> = tiles.choose("context", problem, machine,
        { vectors = ceil_div(shape.dims, lanes), depth = shape.keys },
        function(rows) return split_even(blocks[1].queries, rows) end)
    for _, block in ipairs(blocks) do
        block.row_groups = split_even(block.queries, along_dims.rows)
        block.context_cycles = along_dims.cycles
        local against <const> = forced == "dims" and "as the plan says"
            or obstacle(problem, block, shape, lanes)
        if against and forced == "queries" and not block.split then
            numbers.refuse("plan.context.orientation", forced, against, '"dims"')
        end
        block.context_reason = against
        if not against then
            local tile <const> = tiles.choose("context", problem, machine,
                { vectors = block.vectors, depth = shape.keys },
                function(rows) return split_even(shape.dims, rows) end)
            local turned <const> = tile.cycles
                + transpose_cycles(shape.dims, block.queries, lanes) / shape.key_blocks
            local plain <const> = tiles.cycles(block.row_groups, along_dims.column_groups,
                shape.keys, machine)
            local turned_seen <const> = turned * shape.seen(tile.column_groups[1].size * lanes)
            local plain_seen <const> = plain * shape.seen(block.row_groups[1].size)
            block.context_reason = ("%.0f cycles predicted with lanes along queries, %.0f along "
                .. "the head"):format(turned_seen, plain_seen)
            if forced or turned_seen < CLEAR_GAIN * plain_seen then
                block.dim_groups, block.vector_groups = tile.row_groups, tile.column_groups
                block.context_unroll = tiles.depth_unroll("context", problem, machine,
                    shape.keys, tile.rows, tile.vectors, shape.straight)
                block.context_cycles = turned
            end
        end
    end
    return along_dims
end

return context
