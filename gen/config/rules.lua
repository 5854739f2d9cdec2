-- The rules of a config: defaults, ranges, and what may go together.
--   input:  a raw table (untrusted), the label and default name for it, what "native" stands for
--   output: the record with every field resolved, and the list of errors (empty = valid)
-- A rule reads other keys from the record only, and only when they are valid there, so that one
-- mistake gives one message. Reads no file and knows no ISA's details.

local diagnostics <const> = require("gen.diagnostics")
local keys <const> = require("gen.keys")
local names <const> = require("gen.config.names")
local null <const> = require("gen.strict_json").null
local sizes <const> = require("gen.config.sizes")
local target_rules <const> = require("gen.config.target_rules")
local values <const> = require("gen.config.check")

local contains <const>, list_length <const> = values.contains, values.list_length
local report <const>, refuse_type <const> = values.report, values.refuse_type
local take <const>, take_required <const> = values.take, values.take_required

local M = {}

----------------------------------------------------------------------------------------------------
-- Shape
----------------------------------------------------------------------------------------------------

local NEEDS_PROJECTIONS <const> = {
    "d_model", "cross", "kv_dim", "bias", "output_projection", "queries",
}

local function check_op(check, record)
    record.op = take(check, "op")
    if record.op == "sdpa" then
        for _, key in ipairs(NEEDS_PROJECTIONS) do
            if check.raw[key] ~= nil then
                report(check, key, 'has no meaning with op "sdpa", which has no projections',
                    'not given, or op = "mha"')
                check.raw[key] = nil
            end
        end
        if check.raw.kv_cache then
            report(check, "kv_cache", 'has no meaning with op "sdpa", where k and v are given in '
                .. "any case", 'false, or op = "mha"')
            check.raw.kv_cache = nil
        end
    elseif record.op == "mha" and check.raw.layout ~= nil then
        report(check, "layout", 'has no meaning with op "mha"', 'not given, or op = "sdpa"')
        check.raw.layout = nil
    end
end

-- The divisors of n next to k, below and above: "8 or 16".
local function suggest_divisors(n, k)
    local below, above = 1, n
    for low = 1, math.floor(math.sqrt(n)) do
        if n % low == 0 then
            for _, divisor in ipairs({ low, n // low }) do
                below = divisor < k and math.max(below, divisor) or below
                above = divisor > k and math.min(above, divisor) or above
            end
        end
    end
    return below == above and tostring(below) or ("%d or %d"):format(below, above)
end

local function check_heads(check, record)
    record.heads = take_required(check, "heads")
    record.kv_heads = take(check, "kv_heads", record.heads)
    local h <const>, g <const> = record.heads, record.kv_heads
    if h and g and h % g ~= 0 then
        report(check, "kv_heads", ("heads %d is not a multiple of kv_heads %d"):format(h, g),
            ("a divisor of heads, such as %s"):format(suggest_divisors(h, g)))
        record.kv_heads = nil
    end
end

local function check_head_dims(check, record)
    local e <const>, h <const> = record.d_model, record.heads
    if record.op == "sdpa" then
        record.head_dim = take_required(check, "head_dim", ' with op "sdpa"')
    elseif check.raw.head_dim ~= nil then
        record.head_dim = take(check, "head_dim")
    elseif e and h and not check.refused.head_dim then
        if e % h == 0 then
            record.head_dim = e // h
        else
            report(check, "heads", ("d_model %d is not a multiple of heads %d"):format(e, h),
                ("a divisor of d_model, such as %s; or give head_dim"):format(
                    suggest_divisors(e, h)))
        end
    end
    record.v_head_dim = take(check, "v_head_dim", record.head_dim)
end

local function check_lengths(check, record)
    record.batch = take(check, "batch")
    record.seq_len = take_required(check, "seq_len")
    record.kv_len = take(check, "kv_len", record.seq_len)
end

-- Which rows of x are queries. A context has no rows to choose from: x is all queries there.
local function check_queries(check, record)
    record.queries = take(check, "queries")
    if not record.queries or record.queries == "all" then
        return
    elseif record.cross then
        report(check, "queries", "chooses among the rows that are keys as well, but with a context "
            .. "every row of x is a query", '"all", or cross = false')
    elseif record.kv_len and record.seq_len and record.seq_len > record.kv_len then
        report(check, "seq_len", ("more queries than the %d rows of x (kv_len)"):format(
            record.kv_len), ("at most %d"):format(record.kv_len))
    end
end

-- K and V in tensors of the caller: there is no context, and x holds the new tokens only.
local function check_cache(check, record)
    record.cross, record.queries = false, "all"
    record.kv_dim = record.d_model
    if check.raw.queries ~= nil and take(check, "queries") ~= "all" then
        report(check, "queries", "with a kv_cache x holds queries only", '"all"')
    end
    local is_static <const> = record.kv_cache == "static"
    if take(check, "cross") then
        report(check, "cross", is_static and 'kv_cache = "static" gives K and V themselves'
            or 'kv_cache = "append" projects K and V from x',
            is_static and "false: K and V may come from any context" or "false, or no kv_cache")
    end
    if check.raw.kv_dim ~= nil and take(check, "kv_dim") ~= record.d_model then
        report(check, "kv_dim", is_static and "there is no context: K and V are given"
            or "differs from d_model: K and V of the new tokens come from x", "not given")
    end
    if not is_static and record.kv_len and record.seq_len and record.kv_len < record.seq_len then
        report(check, "kv_len", ("the cache is shorter than the %d new tokens"):format(
            record.seq_len), "at least seq_len")
        record.kv_len = nil
    end
end

-- Where K and V come from. In self-attention they share x's rows and width.
local function check_context(check, record)
    if record.op == "sdpa" then
        record.d_model, record.kv_dim, record.cross = 0, 0, false
        record.queries, record.kv_cache = "all", false
        return
    elseif record.op == "mha" then
        record.d_model = take_required(check, "d_model", ' with op "mha"')
    else -- op itself is wrong
        record.d_model = take(check, "d_model")
    end
    record.kv_cache = take(check, "kv_cache")
    if record.kv_cache then
        check_cache(check, record)
        return
    end
    record.cross = take(check, "cross")
    check_queries(check, record)
    record.kv_dim = take(check, "kv_dim", record.d_model)
    if record.cross ~= false then
        return
    end
    if record.kv_dim and record.d_model and record.kv_dim ~= record.d_model then
        report(check, "kv_dim", ("differs from d_model %d, but without a context K and V come "
            .. "from x"):format(record.d_model), "d_model, or cross = true")
        record.kv_dim = nil
    end
    if record.kv_len and record.seq_len and record.kv_len ~= record.seq_len
        and record.queries == "all" then
        report(check, "kv_len", ("differs from seq_len %d, but without a context K and V come "
            .. "from x"):format(record.seq_len), 'seq_len, or cross = true, or op = "sdpa", or '
            .. 'queries = "first" or "last", or a kv_cache')
        record.kv_len = nil
    end
end

----------------------------------------------------------------------------------------------------
-- Projections and scores
----------------------------------------------------------------------------------------------------

local function check_bias(check, record)
    record.output_projection = false
    if record.op ~= "sdpa" then
        record.output_projection = take(check, "output_projection")
    end
    local has_output <const> = record.output_projection ~= false
    local value = check.raw.bias
    if value == nil then
        value = record.op ~= "sdpa"
    end
    local is_static <const> = record.kv_cache == "static"
    local exists <const> = { q = true, k = not is_static, v = not is_static, o = has_output }
    record.bias = {}
    for _, name in ipairs(keys.bias_names) do
        record.bias[name] = value ~= false and exists[name]
    end
    if type(value) == "boolean" then
        return
    elseif type(value) ~= "table" or value == null then
        refuse_type(check, "bias", "a boolean or a table", keys.by_name.bias.allowed, value)
        return
    end
    values.fields(check, "bias", value, keys.bias_names, function(name, key, flag)
        flag = values.boolean(check, key, flag)
        if flag and name == "o" and not has_output then
            report(check, key, "there is no output projection to add it to",
                "false, or output_projection = true", nil, flag)
        elseif flag and not exists[name] then
            report(check, key, 'kv_cache = "static" gives K and V: they are not projected',
                "false", nil, flag)
        elseif flag ~= nil then
            record.bias[name] = flag
        end
    end)
end

local function check_scale(check, record)
    local value <const> = check.raw.scale
    local allowed <const> = keys.by_name.scale.allowed
    record.scale_is_default = value == nil
    if value == nil then
        record.scale = record.head_dim and 1 / math.sqrt(record.head_dim)
    elseif not math.type(value) then
        refuse_type(check, "scale", "a number", allowed, value)
    elseif value - value ~= 0 then
        report(check, "scale", "not finite", allowed)
    elseif math.abs(value + 0.0) > keys.MAX_SCALE then
        report(check, "scale", "too large for a float32 constant", allowed)
    else
        record.scale = value + 0.0
    end
end

----------------------------------------------------------------------------------------------------
-- Masks
----------------------------------------------------------------------------------------------------

-- One entry of the mask; `seen` collects the names.
local function check_mask_item(check, item, seen)
    local entry <const> = keys.by_name.mask
    if type(item) == "function" then
        report(check, "mask", "a function is not supported yet", entry.allowed, nil, item)
    elseif type(item) == "table" and item ~= null and item.window ~= nil then
        report(check, "mask", "a window is not supported yet", entry.allowed, nil, item)
    elseif type(item) ~= "string" then
        refuse_type(check, "mask", "a string or a list of strings", entry.allowed, item)
    elseif not contains(entry.choices, item) then
        report(check, "mask", "unknown mask", entry.allowed,
            diagnostics.nearest(item, entry.choices), item)
    elseif seen[item] then
        report(check, "mask", ('"%s" is given twice'):format(item), "each mask once")
    else
        seen[item] = true
    end
end

local function check_mask(check, record)
    local value <const> = check.raw.mask
    local length <const> = list_length(value)
    local seen <const>, errors_before <const> = {}, #check.errors
    if value == nil then
        seen.none = record.kv_cache ~= "append"
    elseif length == 0 then
        report(check, "mask", "empty list", keys.by_name.mask.allowed)
    elseif length then
        for _, item in ipairs(value) do
            check_mask_item(check, item, seen)
        end
        if seen.none and length > 1 then
            report(check, "mask", '"none" excludes every other mask',
                'only "none", or a list without it')
        end
    else
        check_mask_item(check, value, seen)
    end
    record.mask = {}
    for _, name in ipairs(keys.by_name.mask.choices) do
        if name ~= "none" then
            record.mask[name] = seen[name] or false
        end
    end
    if record.kv_cache == "append" then
        -- the new tokens stand last and see what stands before them
        if seen.none then
            report(check, "mask", '"none" contradicts kv_cache = "append", whose tokens attend to '
                .. "what stands before them", 'not given, or any other mask')
        end
        record.mask.causal, record.mask.lengths = true, true
    end
    -- Rules that need a mask keep quiet when the mask itself is wrong.
    check.mask_is_known = #check.errors == errors_before and not check.refused.mask
end

-- Each of B, H, L in full or 1; S in full.
local function check_mask_shape(check, record)
    local value <const> = check.raw.mask_shape
    local has_tensor <const> = record.mask.bool or record.mask.additive
    local full <const> = { record.batch, record.heads, record.seq_len, record.kv_len }
    local is_resolved <const> = record.batch and record.heads and record.seq_len and record.kv_len
    if value == nil then
        if has_tensor and is_resolved then
            record.mask_shape = { full[1], 1, full[3], full[4] }
        end
        return
    elseif not has_tensor then
        if check.mask_is_known then
            report(check, "mask_shape", "there is no mask tensor",
                'not given, or mask "bool" or "additive"')
        end
        return
    elseif list_length(value) ~= 4 then
        report(check, "mask_shape", "must be a list of 4 integers",
            keys.by_name.mask_shape.allowed)
        return
    end
    local shape <const> = {}
    local axes <const> = { "batch", "heads", "seq_len", "kv_len" }
    for axis, name in ipairs(axes) do
        local key <const> = ("mask_shape[%d]"):format(axis)
        local size <const> = values.integer(check, key, value[axis], 1, keys.MAX_SIZE)
        shape[axis] = size
        if size and full[axis] and size ~= full[axis] and (size ~= 1 or axis == 4) then
            report(check, key, ("fits neither %s %d nor broadcasting"):format(name, full[axis]),
                axis == 4 and tostring(full[axis]) or ("1 or %d"):format(full[axis]), nil,
                value[axis])
        end
    end
    record.mask_shape = #shape == 4 and shape or nil
end

local function check_causal_value(check, record, value)
    local entry <const> = keys.by_name.causal_align
    if type(value) == "string" then
        if not contains(entry.choices, value) then
            report(check, "causal_align", "unknown value", entry.allowed,
                diagnostics.nearest(value, entry.choices))
        elseif value == "lengths" and not record.mask.lengths then
            report(check, "causal_align", 'needs the mask "lengths"',
                '"top_left", "bottom_right", an integer; or mask = {"causal", "lengths"}')
        else
            return value
        end
    elseif math.type(value) then
        return values.integer(check, "causal_align", value, -keys.MAX_SIZE, keys.MAX_SIZE)
    else
        refuse_type(check, "causal_align", "a string or an integer", entry.allowed, value)
    end
end

local function check_causal_align(check, record)
    local value <const> = check.raw.causal_align
    if record.kv_cache == "append" then
        if value ~= nil and value ~= "lengths" then
            report(check, "causal_align", 'kv_cache = "append" puts the new tokens at the end of '
                .. "their item's length", 'not given, or "lengths"')
        end
        record.causal_align = "lengths"
    elseif value ~= nil then
        if record.mask.causal then
            record.causal_align = check_causal_value(check, record, value)
        elseif check.mask_is_known then
            report(check, "causal_align", "there is no causal mask to align",
                'not given, or mask "causal"')
        end
    elseif record.mask.causal and record.seq_len and record.kv_len
        and not check.refused.causal_align then
        if record.seq_len == record.kv_len or record.queries == "first" then
            record.causal_align = "top_left"
        elseif record.queries == "last" then
            record.causal_align = "bottom_right"
        else
            report(check, "causal_align", ("required: a causal mask with seq_len %d and kv_len %d "
                .. "can be aligned in several ways"):format(record.seq_len, record.kv_len),
                keys.by_name.causal_align.allowed)
        end
    end
end

local function check_padded_queries(check, record)
    record.padded_queries = take(check, "padded_queries")
    if record.padded_queries == "zero" and record.kv_cache == "append" then
        report(check, "padded_queries", 'kv_cache = "append" has no padded queries: all of x is '
            .. "new tokens", '"compute"')
    end
    if record.padded_queries == "zero" and not record.mask.lengths and check.mask_is_known then
        report(check, "padded_queries", 'needs the mask "lengths", which says where padding starts',
            '"compute", or mask "lengths"')
    elseif record.padded_queries == "zero" and record.queries == "last" then
        report(check, "padded_queries", 'means nothing with queries = "last": the last rows of x '
            .. "are the padding itself", '"compute", or queries = "first"')
    end
end

----------------------------------------------------------------------------------------------------
-- All rules
----------------------------------------------------------------------------------------------------

local function check_name(check, record, name_default)
    local name <const> = check.raw.name == nil and name_default or check.raw.name
    if name == nil then
        report(check, "name", "required, but missing", keys.by_name.name.allowed)
    elseif type(name) ~= "string" then
        refuse_type(check, "name", "a string", keys.by_name.name.allowed, name)
    else
        record.name = name
        local message, allowed = names.check(name, record.isa)
        if message and check.raw.name == nil then
            message = "the file name cannot be the kernel's name: " .. message
            allowed = allowed .. "; give `name`"
        end
        if message then
            report(check, "name", message, allowed, nil, name)
        end
    end
end

local SIMPLE_KEYS <const> = {
    "empty_row", "return_weights", "unroll", "code_budget", "accuracy",
}

local function check_sizes(check, record)
    if #check.errors == 0 then
        for _, problem in ipairs(sizes.check(record)) do
            report(check, problem.key, problem.message, problem.allowed, nil, problem.value)
        end
    end
end

-- Runs every rule. `native` is a function that returns an ISA token, or nil and why not.
function M.check(raw, file, name_default, native)
    local check <const>, record <const> = values.new(raw, file), {}
    check_op(check, record)
    check_lengths(check, record)
    check_context(check, record)
    check_heads(check, record)
    check_head_dims(check, record)
    check_bias(check, record)
    check_scale(check, record)
    check_mask(check, record)
    check_mask_shape(check, record)
    check_causal_align(check, record)
    check_padded_queries(check, record)
    for _, key in ipairs(SIMPLE_KEYS) do
        record[key] = take(check, key)
    end
    take(check, "dtype")
    take(check, "layout")
    target_rules.check(check, record, native)
    check_name(check, record, name_default)
    check_sizes(check, record)
    return record, check.errors
end

return M
