-- What a config asks for, counted the same way for every implementation: matmul flops of the
-- formula, two a multiply-add, exp not counted, masked-out keys of a causal row not counted, and
-- nothing that an algebraic fold could save taken off.
--   input:  record
--   output: {projections=, core=}

local M = {}

-- Pairs of (query, key) that the causal mask allows in one item of full length.
local function count_pairs(record)
    local queries <const>, keys <const> = record.seq_len, record.kv_len
    if not record.mask.causal then
        return queries * keys
    end
    local align <const> = record.causal_align
    local offset = 0
    if align == "bottom_right" or align == "lengths" then
        offset = keys - queries
    elseif math.type(align) == "integer" then
        offset = align
    end
    local pairs_seen = 0
    for query = 0, queries - 1 do
        pairs_seen = pairs_seen + math.max(0, math.min(keys, query + offset + 1))
    end
    return pairs_seen
end

-- Rows that K and V are projected from: a cache has the earlier tokens already.
local function key_rows(record)
    if record.kv_cache == "static" then
        return 0
    end
    return record.kv_cache == "append" and record.seq_len or record.kv_len
end

function M.count(record)
    local queries <const> = record.heads * record.head_dim
    local values <const> = record.heads * record.v_head_dim
    local keys <const> = record.kv_heads * (record.head_dim + record.v_head_dim)
    local projections = 0
    if record.op ~= "sdpa" then
        projections = record.seq_len * record.d_model * queries
            + key_rows(record) * record.kv_dim * keys
        if record.output_projection then
            projections = projections + record.seq_len * values * record.d_model
        end
    end
    return { projections = 2 * record.batch * projections,
        core = 2 * record.batch * count_pairs(record) * (queries + values) }
end

return M
