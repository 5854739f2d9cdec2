-- Masks, in the three forms the other stages need:
--   range(block, ctx)           which keys a block of queries can see at all (loop bounds)
--   apply(block, ctx, …)        a tile's logits with -inf where a key is hidden from a query
--   allowed(block, ctx, …)      the same rule for one (query, key), for the rare exact path
-- A mask kind is one entry of `kinds`; a kind that does not apply to the problem costs nothing.
--
-- ctx: problem, plan, block (of queries), batch, head, query0, length, key0 (indices), key_full,
-- key_end. Keys count from key0, the first of the block of keys (0 where all keys are one block):
-- [0, key_full) are visible to every query of the block, none from key_end on.
local ir <const> = require("gen.ir")

local mask <const> = {}

-- Number of keys that range masks leave visible to the query `query` (an index), as an index.
-- Without range masks: all of them.
local function visible_keys(block, ctx, query, name)
    local problem <const> = ctx.problem
    local causal <const> = problem.causal
    local keys = ir.index(problem.kv_len)
    if problem.mask.lengths and not (causal and causal.by_length) then keys = ctx.length end
    if causal then
        local seen
        if causal.by_length then
            -- key <= query + length - seq_len
            seen = block:size(name .. "_causal", "excess", query + ctx.length + 1,
                ir.index(problem.seq_len))
            keys = ctx.length
        else
            seen = block:size(name .. "_causal", "excess", query + (causal.positive + 1),
                ir.index(causal.negative))
        end
        keys = block:size(name, "min", seen, keys)
    end
    return keys
end
mask.visible_keys = visible_keys

-- `keys`, counted from 0, as a count within the block of keys.
local function within_block(block, ctx, keys, name)
    if not ctx.plan.attention.in_blocks then return keys end
    local left <const> = block:size(name .. "_left", "excess", keys, ctx.key0)
    return block:size(name, "min", left, ir.index(ctx.plan.attention.key_block))
end
mask.within_block = within_block

-- Keys of the block that `query` may see, as far as range masks go.
function mask.visible_in_block(block, ctx, query, name)
    local inner <const> = ctx.plan.attention.in_blocks and name .. "_all" or name
    return within_block(block, ctx, visible_keys(block, ctx, query, inner), name)
end

-- key_full and key_end of the block: loop bounds where the plan loops over a range of keys, static
-- bounds in straight-line code (the rest is masked there).
function mask.range(block, ctx)
    local problem <const> = ctx.problem
    local all <const> = ir.index(problem.kv_len)
    if not problem.key_range then
        local keys <const> = within_block(block, ctx, all, "key_end")
        return keys, keys
    end
    if ctx.plan.attention.range_loops then
        local full <const> = mask.visible_in_block(block, ctx, ctx.query0, "key_full")
        if not problem.causal then return full, full end
        return full, mask.visible_in_block(block, ctx, ctx.query0 + (ctx.block.queries - 1),
            "key_end")
    end
    local causal <const> = problem.causal
    if not causal or causal.by_length then return ir.index(0), all end
    local query0 <const> = ir.constant(ctx.query0)
    local function static(query)
        local seen <const> = query + 1 + causal.positive - causal.negative
        return ir.index(math.max(0, math.min(problem.kv_len, seen)))
    end
    local full <const> = problem.mask.lengths and ir.index(0) or static(query0)
    return full, static(query0 + ctx.block.queries - 1)
end

-- A mask tensor's element for (batch, head, query) = 0 of the block, key 0.
local function tensor_mem(ctx, name)
    local tensor <const> = ctx.problem.mask_tensor
    return ir.mem(name, ctx.batch * tensor.batch + ctx.head * tensor.head
        + ctx.query0 * tensor.query)
end
mask.tensor_mem = tensor_mem

-- Each kind: `on(problem)`; `key(block, ctx, key)`: name of an int "this key may be seen", the same
-- for all queries; `lanes(block, ctx, key, v)`: name of a lane mask; `bias(block, ctx, key, v)`:
-- name of a vector added to the logit, hidden where it is -inf. `range = true`: only tiles past
-- key_full.
local kinds <const> = {
    {
        range = true,
        on = function(problem)
            return problem.mask.lengths and not (problem.causal and problem.causal.by_length)
        end,
        key = function(block, ctx, key, r)
            return block:let("int", "in_length" .. r, "lt", key + ctx.key0, ctx.length)
        end,
    },
    {
        range = true,
        on = function(problem) return problem.causal ~= nil end,
        lanes = function(block, ctx, key, r, v)
            local causal <const> = ctx.problem.causal
            local query <const> = ctx.query0 + v * ctx.lanes
            local first
            if causal.by_length then
                first = block:size(("first_query%d_%d"):format(r, v), "excess",
                    key + ctx.key0 + ctx.problem.seq_len, query + ctx.length)
            else
                first = block:size(("first_query%d_%d"):format(r, v), "excess",
                    key + ctx.key0 + causal.negative, query + causal.positive)
            end
            return block:let("mask", ("seen%d_%d"):format(r, v), "lanes_from", first)
        end,
    },
    {
        on = function(problem) return problem.mask.padding end,
        key = function(block, ctx, key, r)
            return block:let("int", "kept" .. r, "byte_set", ir.offset(ctx.key_keep, key))
        end,
        allowed = function(block, ctx, key, build)
            block:when("byte_set", { ir.offset(ctx.key_keep, key) }, build)
        end,
    },
    {
        on = function(problem)
            return problem.mask.bool and not problem.mask_tensor.per_query
        end,
        key = function(block, ctx, key, r)
            return block:let("int", "wanted" .. r, "byte_set", ir.offset(ctx.mask_keep, key))
        end,
        allowed = function(block, ctx, key, build)
            block:when("byte_set", { ir.offset(ctx.mask_keep, key) }, build)
        end,
    },
    {
        on = function(problem)
            return problem.mask.additive and not problem.mask_tensor.per_query
        end,
        bias = function(block, ctx, key, r)
            return block:let("vec", "bias" .. r, "broadcast", ir.offset(ctx.mask_add, key))
        end,
        allowed = function(block, ctx, key, build)
            block:when("value_allowed", { ir.offset(ctx.mask_add, key) }, build)
        end,
    },
    {
        -- bool and additive tensors with a query axis, gathered and combined in the mask panel
        on = function(problem) return problem.mask_tensor and problem.mask_tensor.per_query end,
        per_vector = true,
        bias = function(block, ctx, key, r, v)
            return block:let("vec", ("bias%d_%d"):format(r, v), "load",
                ir.offset(ctx.mask_panel, key * ctx.block.width + v * ctx.lanes))
        end,
        allowed = function(block, ctx, key, build)
            block:when("value_allowed", { ir.offset(ctx.mask_column, key * ctx.block.width) },
                build)
        end,
    },
}

local function active_kinds(ctx, past_full)
    local list <const> = {}
    for _, kind in ipairs(kinds) do
        if kind.on(ctx.problem) and (past_full or not kind.range) then list[#list + 1] = kind end
    end
    return list
end

-- Hides what the masks hide in one row of a score tile: `logits` are the names of the row's
-- vectors, `key` the row's key. Returns the names to use from then on.
function mask.apply(block, ctx, key, r, logits, past_full)
    local active <const> = active_kinds(ctx, past_full)
    if #active == 0 then return logits end
    local row_ok
    local shared_bias
    for _, kind in ipairs(active) do
        if kind.key then
            local one <const> = kind.key(block, ctx, key, r)
            row_ok = row_ok and block:let("int", row_ok .. "_" .. one, "both", row_ok, one) or one
        elseif kind.bias and not kind.per_vector then
            shared_bias = kind.bias(block, ctx, key, r)
        end
    end
    local row_mask <const> = row_ok and block:let("mask", "row" .. r, "lanes_if", row_ok)
    local hidden <const> = {}
    for v = 0, #logits do
        local value = logits[v]
        if value then
            local lanes = row_mask
            local function restrict(name)
                lanes = lanes and block:let("mask", lanes .. "_" .. name, "lanes_both", lanes, name)
                    or name
            end
            for _, kind in ipairs(active) do
                if kind.lanes then restrict(kind.lanes(block, ctx, key, r, v)) end
                local bias <const> = kind.per_vector and kind.bias(block, ctx, key, r, v)
                    or (kind.bias and shared_bias)
                if bias then
                    restrict(block:let("mask", ("open%d_%d"):format(r, v), "lanes_allowed", bias))
                    if ctx.problem.mask.additive then
                        value = block:let("vec", ("biased%d_%d"):format(r, v), "add", value, bias)
                    end
                end
            end
            hidden[v] = block:let("vec", ("s%d_%d"):format(r, v), "select", lanes, value, "hidden")
        end
    end
    return hidden
end

-- Whether `apply` does anything, so that the caller declares `hidden`.
function mask.applies(ctx, past_full) return #active_kinds(ctx, past_full) > 0 end

-- Runs `build` for `key` when every mask but the range allows it (the caller bounds the range).
function mask.allowed(block, ctx, key, build)
    if ctx.mask_row then
        -- lanes along the head: all of them gathered in one row
        block:when("value_allowed", { ir.offset(ctx.mask_row, key) }, build)
        return
    end
    local chain <const> = {}
    for _, kind in ipairs(kinds) do
        if kind.on(ctx.problem) and kind.allowed then chain[#chain + 1] = kind.allowed end
    end
    local function descend(inner, i)
        if i > #chain then
            build(inner)
        else
            chain[i](inner, ctx, key, function(body) descend(body, i + 1) end)
        end
    end
    descend(block, 1)
end

-- Runs build(body, key) for the allowed keys of [first, first + count) below `limit`, in order: the
-- visible keys of a query. `first` is constant in straight-line code.
function mask.each_allowed(block, ctx, first, count, limit, build)
    if ctx.straight then
        for i = 0, count - 1 do
            local key <const> = first + i
            block:when("lt", { key, limit }, function(body)
                mask.allowed(body, ctx, key, function(inner) build(inner, key) end)
            end)
        end
        return
    end
    local to = limit
    if count < ctx.problem.kv_len then to = block:size("to", "min", first + count, limit) end
    block:loop({ var = "key", from = first, to = to }, function(body, key)
        mask.allowed(body, ctx, key, function(inner) build(inner, key) end)
    end)
end

return mask
