-- Makes a failing config smaller while it keeps failing.
--   input:  a raw config, and a function that tells whether a config still fails
--   output: the smallest failing config found, within a time limit
-- Knows the keys of a config; not how a config is built or judged.
local keys <const> = require("gen.keys")

local M = {}

local NUMBERS <const> = { "batch", "seq_len", "kv_len", "heads", "kv_heads", "head_dim",
    "v_head_dim", "d_model", "kv_dim" }
local OPTIONS <const> = { "plan", "target", "unroll", "code_budget", "accuracy", "return_weights",
    "empty_row", "padded_queries", "scale", "cross", "kv_cache", "mask_shape", "causal_align",
    "mask", "bias", "output_projection", "kv_heads", "v_head_dim", "kv_dim", "kv_len", "queries" }

local function copy(value)
    if type(value) ~= "table" then
        return value
    end
    local new <const> = {}
    for key, item in pairs(value) do
        new[key] = copy(item)
    end
    return new
end

-- Sizes in mask_shape and d_model must follow the sizes they repeat.
local function repair(c, before)
    if c.mask_shape then
        local full <const> = { c.batch, c.heads, c.seq_len, c.kv_len or c.seq_len }
        for axis = 1, 4 do
            c.mask_shape[axis] = (axis < 4 and c.mask_shape[axis] == 1) and 1 or full[axis]
        end
    end
    if c.op == "mha" and not c.head_dim and before.d_model then
        c.d_model = c.heads * math.max(1, (c.d_model or 1) // c.heads)
    end
    return c
end

-- All configs one step smaller, the biggest steps first.
local function candidates(config)
    local list <const> = {}
    local function try(edit)
        local c <const> = copy(config)
        if edit(c) ~= false then
            list[#list + 1] = repair(c, config)
        end
    end
    for _, key in ipairs(OPTIONS) do
        if config[key] ~= nil then
            try(function(c) c[key] = nil end)
        end
    end
    for index = 1, type(config.mask) == "table" and #config.mask or 0 do
        try(function(c) table.remove(c.mask, index) end)
    end
    for _, stage in ipairs(config.plan and keys.plan_stages or {}) do
        local chosen <const> = config.plan[stage.name]
        if chosen then
            try(function(c) c.plan[stage.name] = nil end)
            for _, field in ipairs(stage.fields) do
                if chosen[field.name] ~= nil then
                    try(function(c) c.plan[stage.name][field.name] = nil end)
                end
            end
        end
    end
    for _, name in ipairs(config.target and keys.target_numbers or {}) do
        if config.target[name] then
            try(function(c) c.target[name] = nil end)
        end
    end
    for _, divide in ipairs({ true, false }) do
        for _, key in ipairs(NUMBERS) do
            local n <const> = config[key]
            if n and n > 1 then
                try(function(c) c[key] = divide and n // 2 or n - 1 end)
            end
        end
    end
    return list
end

-- fails(config) -> boolean. Returns the smallest config found within `seconds`, and the number of
-- attempts.
function M.shrink(config, fails, seconds)
    local current, used = copy(config), 0
    local again = true
    local stop <const> = os.time() + seconds
    while again and os.time() < stop do
        again = false
        for _, candidate in ipairs(candidates(current)) do
            used = used + 1
            if os.time() >= stop then
                break
            elseif fails(candidate) then
                current, again = candidate, true
                break
            end
        end
    end
    return current, used
end

return M
