-- The one table of all config keys: what each is called, takes, defaults to and means.
--   input:  nothing
--   output: the key list (validation, suggestions and docs/config.md all read it)
-- A key with status "not yet" belongs to the contract but is refused; `also` holds the names other
-- libraries use for it, so that a message can point to ours. Checks nothing itself.

local M = {}

-- kind: "size" = integer from 1 to MAX_SIZE; "choice" = one of `choices` (`later`: in the contract,
-- refused); "boolean"; "special" = has its own rule in gen/config/rules.lua.
M.MAX_SIZE = 2147483647

-- |scale| * log2(e) is a float32 constant in the kernel.
M.MAX_SCALE = 1e38

M.list = {
    {
        name = "name", kind = "special", type = "string", default = "file name",
        allowed = "a C identifier (letter first, then letters, digits, _), no keyword",
        meaning = "prefix of every emitted symbol and file",
        also = { "symbol", "prefix", "id", "kernel_name" },
    },
    {
        name = "op", kind = "choice", choices = { "mha", "sdpa" }, default = "mha",
        meaning = "`mha`: x → Q, K, V projections → attention → output projection; "
            .. "`sdpa`: q, k, v are given",
        also = { "operator", "kind", "type" },
    },
    {
        name = "batch", kind = "size", default = 1,
        meaning = "batch size B", also = { "batch_size", "b" },
    },
    {
        name = "seq_len", kind = "size",
        meaning = "query length L",
        also = { "sequence_length", "q_len", "query_len", "tokens", "l", "seqlen", "seq_length" },
    },
    {
        name = "kv_len", kind = "size", default_text = "`seq_len`",
        meaning = "key length S; may differ from L with `cross = true`, `kv_cache`, `queries` or "
            .. "op `sdpa`",
        also = { "key_len", "s", "source_len", "kv_length", "k_len", "kv_seq_len" },
    },
    {
        name = "d_model", kind = "size", default_text = "required (op `mha`)",
        meaning = "model width E: of x and of the output",
        also = { "embed_dim", "hidden_size", "embedding_dim", "model_dim", "dim", "e", "n_embd" },
    },
    {
        name = "heads", kind = "size",
        allowed_more = "; divides `d_model` unless `head_dim` is given",
        meaning = "query heads H", also = { "num_heads", "n_heads", "n_head", "nhead", "h",
            "num_attention_heads", "q_num_heads" },
    },
    {
        name = "kv_heads", kind = "size", default_text = "`heads`",
        allowed_more = "; divides `heads`",
        meaning = "key/value heads G (GQA, MQA): query head h reads kv head ⌊h / (H/G)⌋",
        also = { "num_kv_heads", "n_kv_heads", "num_key_value_heads", "kv_num_heads", "g",
            "num_query_groups" },
    },
    {
        name = "queries", kind = "choice", choices = { "all", "first", "last" }, default = "all",
        meaning = "`first`, `last`: x has `kv_len` rows, only the first or last `seq_len` of them "
            .. "are queries (class token, last token)",
        also = { "query_rows", "num_queries", "last_token_only" },
    },
    {
        name = "head_dim", kind = "size", default_text = "`d_model / heads`; required (op `sdpa`)",
        meaning = "width D of a query or key head",
        also = { "d_k", "dk", "head_size", "d_head", "qk_head_dim", "d" },
    },
    {
        name = "v_head_dim", kind = "size", default_text = "`head_dim`",
        meaning = "width of a value head", also = { "d_v", "dv", "v_head_size", "value_dim" },
    },
    {
        name = "cross", kind = "boolean", default = false,
        meaning = "K and V come from a second input, `context` [B, S, `kv_dim`]",
        also = { "cross_attention", "is_cross_attention" },
    },
    {
        name = "kv_dim", kind = "size", default_text = "`d_model`",
        meaning = "width of `context`; differs from `d_model` only with `cross = true`",
        also = { "kdim", "vdim", "context_dim", "cross_attention_dim" },
    },
    {
        name = "bias", kind = "special", type = "boolean or table", default_text = "`true`",
        allowed = "true, false, or a table of booleans with the keys q, k, v, o",
        meaning = "biases of the projections; what a table does not name is true",
        also = { "use_bias", "qkv_bias", "attention_bias" },
    },
    {
        name = "output_projection", kind = "boolean", default = true,
        meaning = "false: the output is the concatenated heads, [B, L, H·Dv]",
        also = { "out_proj", "o_proj", "out_projection" },
    },
    {
        name = "scale", kind = "special", type = "number", default_text = "1/√`head_dim`",
        allowed = "a finite number between -1e38 and 1e38",
        meaning = "factor of the scores", also = { "scaling", "softmax_scale", "sm_scale" },
    },
    {
        name = "mask", kind = "special", type = "string or list", default_text = '`"none"`',
        choices = { "none", "causal", "lengths", "padding", "bool", "additive" },
        allowed = '"none", or one or a list of "causal", "lengths", "padding", "bool", "additive"',
        meaning = "composed by AND: `causal`; `lengths`: kv_lengths [B], right padding; `padding`: "
            .. "key_keep [B, S]; `bool`: mask_keep, non-zero = attend; `additive`: mask_add, added "
            .. "after the scale, −inf = do not attend",
        also = { "attn_mask", "attention_mask", "is_causal", "causal", "window", "sliding_window",
            "key_padding_mask", "masks" },
    },
    {
        name = "mask_shape", kind = "special", type = "list", default_text = "`{B, 1, L, S}`",
        allowed = "{B, H, L, S} where each of B, H, L may be 1; with mask bool or additive",
        meaning = "shape of mask_keep and mask_add",
        also = { "attn_mask_shape" },
    },
    {
        name = "causal_align", kind = "special", type = "string or integer",
        default_text = '`"top_left"` when L = S or with `queries = "first"`, `"bottom_right"` with '
            .. '`queries = "last"`, else required with mask `causal`',
        choices = { "top_left", "bottom_right", "lengths" },
        allowed = '"top_left", "bottom_right", "lengths" or an integer offset',
        meaning = "query i sees key j ≤ i + offset: `top_left` 0; `bottom_right` S − L; "
            .. "`lengths` kv_lengths[b] − L (with mask `lengths`)",
        also = { "causal_alignment", "align", "causal_offset" },
    },
    {
        name = "padded_queries", kind = "choice", choices = { "compute", "zero" },
        default = "compute",
        meaning = "with mask `lengths`: `zero` skips query rows at or beyond the item's length and "
            .. "writes zeros",
        also = { "pad_queries" },
    },
    {
        name = "empty_row", kind = "choice", choices = { "zero", "uniform", "nan" },
        default = "zero",
        meaning = "a query with no allowed key gives: 0; the mean over all S keys (the −1e9 "
            .. "convention); NaN (the −inf convention)",
        also = { "empty_rows", "masked_row", "fully_masked" },
    },
    {
        name = "return_weights", kind = "choice", choices = { false, "per_head", "mean" },
        default = false,
        meaning = "also write the attention weights, [B, H, L, S] or averaged over heads [B, L, S]",
        also = { "need_weights", "output_attentions", "average_attn_weights" },
    },
    {
        name = "kv_cache", kind = "choice", choices = { false, "append", "static" },
        default = false,
        meaning = "op `mha`: K and V live in the caller's tensors [B, G, `kv_len`, D] and "
            .. "[B, G, `kv_len`, Dv]. `append`: the L new tokens' are written at kv_lengths[b] − L"
            .. " and attend to all tokens up to themselves (masks `causal` and `lengths`, aligned "
            .. "by `lengths`, are implied); `static`: K and V are given, only Q and O are "
            .. "projected",
        also = { "past_key_values", "use_cache", "cache", "past_kv" },
    },
    {
        name = "dtype", kind = "choice", choices = { "f32" }, later = { "bf16", "f16", "i8" },
        default = "f32",
        meaning = "type of inputs, weights and outputs",
        also = { "data_type", "torch_dtype", "precision" },
    },
    {
        name = "layout", kind = "choice", choices = { "bhld" }, later = { "blhd" },
        default = "bhld",
        meaning = "op `sdpa`: order of the axes of q, k, v",
        also = { "qkv_layout", "input_layout" },
    },
    {
        name = "accuracy", kind = "choice", choices = { "exact", "fast" }, default = "exact",
        meaning = "`fast`: one polynomial degree less in exp",
        also = { "fast_math" },
    },
    {
        name = "isa", kind = "special", type = "string or list", default_text = '`"native"`',
        allowed = "an ISA (`attngen isas` lists them) or `\"native\"`, or a list without repeats",
        meaning = "instruction set; a list gives one variant each plus a dispatcher; `native` is "
            .. "resolved when generating",
        also = { "target_isa", "arch", "march", "simd", "instruction_set" },
    },
    {
        name = "unroll", kind = "choice", choices = { "auto", "full", "tiles" }, default = "auto",
        meaning = "`full`: no loop left in the kernel; `auto`: as much as fits `code_budget`; "
            .. "`tiles`: only the register tiles",
        also = { "unrolling" },
    },
    {
        name = "code_budget", kind = "size", default = 24576,
        meaning = "bytes of code: per hot region for unroll `auto`, of the whole text for `full`",
        also = { "code_size", "max_code_bytes" },
    },
    {
        name = "plan", kind = "special", type = "table", default_text = "the planner's",
        allowed = "a table of layer, project, scores, context, output, fold",
        meaning = "overrides of the plan, per stage",
        also = { "tiles", "schedule" },
    },
    {
        name = "target", kind = "special", type = "table", default_text = "of the ISA",
        allowed = "a table of l1d, l1i, l2, fma_latency, fma_pipes",
        meaning = "numbers of the machine the planner reads",
        also = { "cache", "machine", "cpu" },
    },
    {
        name = "tuning", kind = "special", type = "false or table",
        default_text = "what `tuned/` beside the config holds",
        allowed = "false, or a table of ISAs with the keys "
            .. "plan, unroll, level, compiler, cpu, file, fnv1a64",
        meaning = "result of `attngen tune` for this config (docs/tuning.md); `false`: the "
            .. "planner's choice",
        also = { "tuned", "autotune" },
    },
    -- In the contract, not built: refused, never ignored.
    {
        name = "score_bias", status = "not yet", also = { "alibi", "relative_bias" },
        meaning = "bias on the scores: a function, ALiBi, or a learned table",
    },
    {
        name = "softcap", status = "not yet", also = { "logit_cap", "attn_logit_softcapping" },
        meaning = "c·tanh(score / c)",
    },
    {
        name = "sink", status = "not yet", also = { "sinks", "head_sink" },
        meaning = "one more logit per head, without a value",
    },
    {
        name = "rope", status = "not yet", also = { "rotary", "rope_theta", "do_rotary" },
        meaning = "rotary position embedding",
    },
    {
        name = "qk_norm", status = "not yet",
        meaning = "RMS norm of Q and K per head",
    },
    {
        name = "add_zero_attn", status = "not yet",
        meaning = "one more key and value of zeros",
    },
    {
        name = "add_bias_kv", status = "not yet",
        meaning = "one more learned key and value",
    },
    {
        name = "return_scores", status = "not yet",
        meaning = "also write the scores before softmax",
    },
}

-- Tables inside the config: the stages a plan may override, and the numbers of a target. This list
-- is the only one: checking, documentation, the fuzzer's draws and the tuner's space all read it.
--   field.kind   "integer" from 1 to `most`; "boolean"; "choice" of `choices`
--   field.tried  the values a search tries (default: all legal ones)
--   field.tile   fields with this mark share the registers: a search varies them together
--   stage.of     "projections": not with op sdpa; "output_projection": neither without it
local function tile_fields(unroll)
    local fields <const> = {
        { name = "rows", kind = "integer", most = 32, tile = true },
        { name = "vectors", kind = "integer", most = 8, tile = true },
    }
    fields[3] = unroll and { name = "unroll", kind = "integer", most = 64,
        tried = { 1, 2, 4, 8, 16 } } or nil
    return fields
end

-- A linear layer: its tile, and the rows that all its panels are done for before the next ones.
local function linear_fields()
    local fields <const> = tile_fields(true)
    fields[#fields + 1] = { name = "row_block", kind = "integer", most = 65536,
        tried = { 16, 64, 128, 256, 512, 65536 } }
    return fields
end

local project_fields <const> = linear_fields()
project_fields[#project_fields + 1] = { name = "merged", kind = "boolean" }

local scores_fields <const> = tile_fields(false)
scores_fields[#scores_fields + 1] = { name = "orientation", kind = "choice",
    choices = { "queries", "dims", "heads" } }
scores_fields[#scores_fields + 1] = { name = "key_block", kind = "integer", most = 4096,
    tried = { 32, 96, 192, 256, 384, 4096 } }
scores_fields[#scores_fields + 1] = { name = "prefetch", kind = "boolean" }

local context_fields <const> = tile_fields(true)
context_fields[#context_fields + 1] = { name = "orientation", kind = "choice",
    choices = { "dims", "queries" } }

M.plan_stages = {
    { name = "layer", fields = {
        { name = "items", kind = "integer", most = 65536, tried = { 1, 4, 16, 65536 } },
    } },
    { name = "project", of = "projections", fields = project_fields },
    { name = "scores", fields = scores_fields },
    { name = "context", fields = context_fields },
    { name = "output", of = "output_projection", fields = linear_fields() },
    { name = "fold", fields = {
        { name = "scale", kind = "boolean" },
        { name = "k_bias", kind = "boolean" },
        { name = "v_bias", kind = "boolean" },
        { name = "qk", kind = "boolean" },
        { name = "vo", kind = "boolean" },
        { name = "few_queries", kind = "boolean" },
    } },
}
M.tuning_fields = { "plan", "unroll", "level", "compiler", "cpu", "file", "fnv1a64" }
-- Optimisation levels a kernel is compiled with; the first is the default.
M.levels = { "-O3", "-O2" }
M.compilers = { "gcc", "clang" }
-- Bytes, cycles and pipes beyond those of any machine: predictions stay below 2^63 cycles.
M.target_fields = {
    { name = "l1d", kind = "integer", most = 1 << 30 },
    { name = "l1i", kind = "integer", most = 1 << 30 },
    { name = "l2", kind = "integer", most = 1 << 30 },
    { name = "fma_latency", kind = "integer", most = 32 },
    { name = "fma_pipes", kind = "integer", most = 16 },
}
M.bias_names = { "q", "k", "v", "o" }

M.by_name = {}

local function quote_choice(value)
    return type(value) == "string" and '"' .. value .. '"' or tostring(value)
end

-- '"auto", "full", "tiles"'
function M.quote_choices(choices)
    local texts <const> = {}
    for index, value in ipairs(choices) do
        texts[index] = quote_choice(value)
    end
    return table.concat(texts, ", ")
end

-- Fills in what follows from the kind, so that the list above says each thing once.
local function complete_entry(entry)
    entry.status = entry.status or "built"
    if entry.kind == "size" then
        entry.type = "integer"
        entry.allowed = ("an integer from 1 to %d"):format(M.MAX_SIZE)
        entry.default_text = entry.default_text
            or (entry.default and ("`%d`"):format(entry.default)) or "required"
    elseif entry.kind == "choice" then
        entry.type = entry.choices[1] == false and "false or string" or "string"
        entry.allowed = M.quote_choices(entry.choices)
        entry.default_text = "`" .. quote_choice(entry.default) .. "`"
    elseif entry.kind == "boolean" then
        entry.type, entry.allowed = "boolean", "true, false"
        entry.default_text = ("`%s`"):format(entry.default)
    else
        entry.default_text = entry.default_text or entry.default
    end
end

for _, entry in ipairs(M.list) do
    complete_entry(entry)
    M.by_name[entry.name] = entry
end

-- The legal values of a field of plan or target, in words and as a list.
function M.plan_allowed(field)
    if field.kind == "integer" then
        return ("integer from 1 to %d"):format(field.most)
    end
    return field.kind == "boolean" and "true, false" or M.quote_choices(field.choices)
end

function M.plan_values(field)
    if field.kind ~= "integer" then
        return field.kind == "boolean" and { true, false } or field.choices
    end
    local list <const> = {}
    for value = 1, field.most do
        list[value] = value
    end
    return list
end

-- Whether a record has the stage at all.
function M.has_stage(stage, record)
    return not stage.of or record.op == "mha"
        and (stage.of ~= "output_projection" or record.output_projection)
end

local function names_of(list)
    local names <const> = {}
    for index, entry in ipairs(list) do
        names[index] = entry.name
    end
    return names
end

M.target_numbers = names_of(M.target_fields)
M.plan_stage_names = names_of(M.plan_stages)
for _, stage in ipairs(M.plan_stages) do
    stage.field_names = names_of(stage.fields)
end

-- Names of all keys with the given status ("built" or "not yet"), in table order.
function M.names(status)
    local names <const> = {}
    for _, entry in ipairs(M.list) do
        if entry.status == status then
            names[#names + 1] = entry.name
        end
    end
    return names
end

----------------------------------------------------------------------------------------------------
-- docs/config.md
----------------------------------------------------------------------------------------------------

local PAGE_BEGIN <const> = "<!-- generated from gen/keys.lua by tools/update_config_page.lua -->\n"
local PAGE_END <const> = "<!-- end of the generated part -->\n"

local function add_plan_rows(rows)
    for _, stage in ipairs(M.plan_stages) do
        for _, field in ipairs(stage.fields) do
            rows[#rows + 1] = ("| `plan.%s.%s` | %s |"):format(stage.name, field.name,
                M.plan_allowed(field))
        end
    end
    for _, field in ipairs(M.target_fields) do
        rows[#rows + 1] = ("| `target.%s` | %s |"):format(field.name, M.plan_allowed(field))
    end
end

-- The generated part of the page: the key table, the nested keys, the keys still to come.
function M.markdown()
    local rows <const> = {
        "| key | type | default | allowed | meaning |",
        "|---|---|---|---|---|",
    }
    for _, entry in ipairs(M.list) do
        if entry.status == "built" then
            rows[#rows + 1] = ("| `%s` | %s | %s | %s | %s |"):format(entry.name, entry.type,
                entry.default_text, entry.allowed .. (entry.allowed_more or ""), entry.meaning)
        end
    end
    rows[#rows + 1] = "\nNested keys of `plan` and `target`:\n\n| key | allowed |\n|---|---|"
    add_plan_rows(rows)
    rows[#rows + 1] = "\nRefused as `not supported yet`:\n\n| key or value | meaning |\n|---|---|"
    for _, entry in ipairs(M.list) do
        if entry.status == "not yet" then
            rows[#rows + 1] = ("| `%s` | %s |"):format(entry.name, entry.meaning)
        elseif entry.later then
            rows[#rows + 1] = ("| `%s` = %s | %s |"):format(entry.name,
                M.quote_choices(entry.later), entry.meaning)
        end
    end
    rows[#rows + 1] = "| `mask` = `{window = …}` | only keys near the query |"
    rows[#rows + 1] = "| `mask` = a function | static pattern, evaluated when generating |"
    return table.concat(rows, "\n") .. "\n"
end

-- The page with its generated part brought up to date; nil when the markers are missing.
function M.update_page(page)
    local _, first <const> = page:find(PAGE_BEGIN, 1, true)
    local last <const> = first and page:find(PAGE_END, first, true)
    if not last then
        return nil
    end
    return page:sub(1, first) .. "\n" .. M.markdown() .. "\n" .. page:sub(last)
end

return M
