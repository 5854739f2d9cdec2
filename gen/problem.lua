-- From a validated config record to the problem: every derived shape and what the masks imply.
-- Pure data in, pure data out; knows attention, not instruction sets, tiles or C.
local problem <const> = {}

-- The causal rule "key <= query + offset" as {positive, negative}: offset = positive - negative
-- with one of them 0, or {by_length = true}: offset = kv_lengths[b] - seq_len. nil where the rule
-- hides nothing more: the first query sees every key, or the only one all up to the length.
local function causal_rule(record)
    if not record.mask.causal then return nil end
    local align <const> = record.causal_align
    if align == "lengths" then return record.seq_len > 1 and { by_length = true } or nil end
    local offset = 0
    if align == "bottom_right" then
        offset = record.kv_len - record.seq_len
    elseif math.type(align) == "integer" then
        offset = align
    end
    if offset >= record.kv_len - 1 then return nil end
    -- Beyond the ends every key, or none, is visible: clamping keeps constants small.
    offset = math.max(-record.seq_len, math.min(offset, record.kv_len))
    return { positive = math.max(offset, 0), negative = math.max(-offset, 0) }
end

-- Where mask_keep / mask_add of mask_shape is read: element strides for batch, head and query (0
-- for a dimension of 1), and whether it depends on the query.
local function mask_tensor(record)
    local shape <const> = record.mask_shape
    if not shape then return nil end
    local strides <const>, stride = {}, 1
    for axis = 4, 1, -1 do
        strides[axis] = shape[axis] > 1 and stride or 0
        stride = stride * shape[axis]
    end
    return { batch = strides[1], head = strides[2], query = strides[3],
        per_query = shape[3] > 1, shape = shape }
end

-- Everything later steps ask of a config. Fields beyond the record's own:
--   query_rows                   B*L
--   x_rows                       rows of x of one item
--   first_query                  row of x that is an item's first query
--   new_keys, key_rows           keys an item projects (0: K and V are given), and B times that
--   least_length                 the smallest kv_lengths entry a call may bring
--   group                        query heads per kv head
--   causal                       see causal_rule, or nil
--   mask_tensor                  see above, or nil
--   key_range                    the visible keys of a query are a prefix (causal or lengths)
--   may_be_empty                 a query row may have no allowed key
--   masked                       some key may be hidden from some query
function problem.build(record)
    local built <const> = {}
    for key, value in pairs(record) do built[key] = value end
    built.query_rows = record.batch * record.seq_len
    built.x_rows = record.queries == "all" and record.seq_len or record.kv_len
    built.first_query = record.queries == "last" and record.kv_len - record.seq_len or 0
    built.new_keys = record.kv_cache == "static" and 0
        or record.kv_cache == "append" and record.seq_len or record.kv_len
    built.key_rows = record.batch * built.new_keys
    built.least_length = record.kv_cache == "append" and record.seq_len or 0
    built.group = record.heads // record.kv_heads
    built.causal = causal_rule(record)
    built.mask_tensor = mask_tensor(record)
    local mask <const>, causal <const> = record.mask, built.causal
    built.key_range = causal ~= nil or mask.lengths
    built.may_be_empty = mask.padding or mask.bool or mask.additive
        or mask.lengths and built.least_length == 0
        or (causal ~= nil and not causal.by_length and causal.negative > 0)
    built.masked = built.key_range or built.may_be_empty
    return built
end

return problem
