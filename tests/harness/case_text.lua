-- Texts that describe a resolved config to the C side of the tests.
--   input:  a record of gen.config
--   output: the "key=value ..." line of tests/reference/ref_case.c; the -D macros of the naive
--           kernel; a config as Lua text for messages
-- Pure: touches no file.
local M = {}

local function flag(value)
    return value and 1 or 0
end

-- causal_align as the reference spells it, and the integer offset.
local function alignment(record)
    if math.type(record.causal_align) == "integer" then
        return "offset", record.causal_align
    end
    return record.causal_align or "top_left", 0
end

-- form: {keys=, values=} of the variant's plan, from the manifest; nil: all projected.
function M.line(record, form)
    local align <const>, offset <const> = alignment(record)
    local shape <const> = record.mask_shape or { 0, 0, 0, 0 }
    local fields <const> = {
        { "op", record.op }, { "batch", record.batch }, { "seq_len", record.seq_len },
        { "kv_len", record.kv_len }, { "heads", record.heads }, { "kv_heads", record.kv_heads },
        { "head_dim", record.head_dim }, { "v_head_dim", record.v_head_dim },
        { "d_model", record.d_model }, { "kv_dim", record.kv_dim }, { "cross", flag(record.cross) },
        { "output_projection", flag(record.output_projection) }, { "queries", record.queries },
        { "bias_q", flag(record.bias.q) }, { "bias_k", flag(record.bias.k) },
        { "bias_v", flag(record.bias.v) }, { "bias_o", flag(record.bias.o) },
        { "scale", ("%a"):format(record.scale) },
        { "causal", flag(record.mask.causal) }, { "lengths", flag(record.mask.lengths) },
        { "padding", flag(record.mask.padding) }, { "bool", flag(record.mask.bool) },
        { "additive", flag(record.mask.additive) },
        { "causal_align", align }, { "offset", offset },
        { "mask_shape", table.concat(shape, ",") },
        { "padded_queries", record.padded_queries }, { "empty_row", record.empty_row },
        { "return_weights", record.return_weights or "none" }, { "accuracy", record.accuracy },
        { "kv_cache", record.kv_cache or "none" },
        { "keys", form and form.keys or "projected" },
        { "values", form and form.values or "projected" },
    }
    local words <const> = {}
    for index, field in ipairs(fields) do
        words[index] = ("%s=%s"):format(field[1], field[2])
    end
    return table.concat(words, " ")
end

-- The tensors bits of the descriptor, from kernel.h's list.
local function tensors(record)
    local bits = record.op == "sdpa" and 0x4 or 0x1
    local function add(condition, bit)
        bits = bits | (condition and bit or 0)
    end
    add(record.cross, 0x2)
    add(record.queries ~= "all", 0x4000)
    add(record.mask.lengths, 0x8)
    add(record.mask.padding, 0x10)
    add(record.mask.bool, 0x20)
    add(record.mask.additive, 0x40)
    add(record.return_weights == "per_head", 0x80)
    add(record.return_weights == "mean", 0x100)
    add(record.bias.q, 0x200)
    add(record.bias.k, 0x400)
    add(record.bias.v, 0x800)
    add(record.bias.o, 0x1000)
    add(record.output_projection, 0x2000)
    add(record.kv_cache == "static", 0x8000)
    add(record.kv_cache == "append", 0x10000)
    return bits
end

local ALIGN <const> = { top_left = 0, bottom_right = 1, lengths = 2, offset = 3 }
local CACHE <const> = { append = 1, static = 2 }
local EMPTY <const> = { zero = 0, uniform = 1, ["nan"] = 2 }

-- -D flags that make tests/fuzz/naive_kernel.c this record's kernel.
function M.naive_flags(r)
    local align <const>, offset <const> = alignment(r)
    local rows <const> = r.batch * r.seq_len
    local y = rows * (r.output_projection and r.d_model or r.heads * r.v_head_dim)
    local weights <const> = r.return_weights == "per_head" and rows * r.heads * r.kv_len
        or r.return_weights == "mean" and rows * r.kv_len or 0
    local pairs_ <const> = {
        { "BATCH", r.batch }, { "SEQ_LEN", r.seq_len }, { "KV_LEN", r.kv_len },
        { "HEADS", r.heads },
        { "KV_HEADS", r.kv_heads }, { "HEAD_DIM", r.head_dim }, { "V_HEAD_DIM", r.v_head_dim },
        { "D_MODEL", r.d_model }, { "KV_DIM", r.kv_dim },
        { "X_ROWS", r.queries == "all" and r.seq_len or r.kv_len },
        { "FIRST_QUERY", r.queries == "last" and r.kv_len - r.seq_len or 0 },
        { "OUTPUT", flag(r.output_projection) },
        { "SDPA", flag(r.op == "sdpa") }, { "CROSS", flag(r.cross) },
        { "BIAS_Q", flag(r.bias.q) }, { "BIAS_K", flag(r.bias.k) }, { "BIAS_V", flag(r.bias.v) },
        { "BIAS_O", flag(r.bias.o) }, { "SCALE", ("%a"):format(r.scale) },
        { "CAUSAL", flag(r.mask.causal) }, { "LENGTHS", flag(r.mask.lengths) },
        { "PADDING", flag(r.mask.padding) }, { "BOOL", flag(r.mask.bool) },
        { "ADDITIVE", flag(r.mask.additive) }, { "ALIGN", ALIGN[align] }, { "OFFSET", offset },
        { "MASK_SHAPE", table.concat(r.mask_shape or { 0, 0, 0, 0 }, ",") },
        { "EMPTY", EMPTY[r.empty_row] }, { "ZERO_PADDED", flag(r.padded_queries == "zero") },
        { "WEIGHTS", r.return_weights == "per_head" and 1 or r.return_weights and 2 or 0 },
        { "CACHE", CACHE[r.kv_cache] or 0 },
        { "TENSORS", ("0x%xu"):format(tensors(r)) }, { "Y", y }, { "W", weights },
    }
    local flags <const> = {}
    for index, pair in ipairs(pairs_) do
        flags[index] = ("-DNK_%s=%s"):format(pair[1], pair[2])
    end
    return flags
end

local ORDER <const> = {
    "op", "batch", "seq_len", "kv_len", "d_model", "kv_dim", "heads", "kv_heads", "head_dim",
    "v_head_dim", "cross", "kv_cache", "queries", "bias", "output_projection", "scale", "mask",
    "mask_shape", "causal_align", "padded_queries", "empty_row", "return_weights", "accuracy",
    "isa", "unroll", "code_budget", "plan", "target", "project", "scores", "context", "output",
    "rows", "vectors",
}

-- A raw config as Lua text on one line, keys in a fixed order: those above, then the others.
function M.lua_text(value)
    if type(value) ~= "table" then
        return type(value) == "string" and ("%q"):format(value)
            or math.type(value) == "float" and ("%.17g"):format(value) or tostring(value)
    end
    local parts <const> = {}
    for _, item in ipairs(value) do
        parts[#parts + 1] = M.lua_text(item)
    end
    local done <const>, rest <const> = {}, {}
    for key in pairs(value) do
        rest[#rest + 1] = math.type(key) == nil and key or nil
    end
    table.sort(rest)
    for _, key in ipairs(table.move(rest, 1, #rest, #ORDER + 1, { table.unpack(ORDER) })) do
        if value[key] ~= nil and not done[key] then
            done[key] = true
            parts[#parts + 1] = ("%s = %s"):format(key, M.lua_text(value[key]))
        end
    end
    return #parts == 0 and "{}" or "{ " .. table.concat(parts, ", ") .. " }"
end

return M
