-- The packing recipe: how the blob of packed weights is laid out, its hash, and the fields of the
-- emitted pack function. In: plan. Knows the algebra's outcome and panels, not the kernel's tiles.
local manifest <const> = require("gen.manifest")

local packing <const> = {}

-- One source of a packed matrix: {name, columns, first_column, factor, bias, interleaved, element
-- (where it is not a source matrix as it stands: see elements)}. `part`: a product, or part of one.
local function source_of(part, product, fold)
    local name <const> = part.name
    local element <const> = name == "q" and fold.keys == "folded" and "folded_q"
        or name == "o" and fold.values == "folded" and "folded_o"
        or (name == "lift" or name == "defer") and name
        or product.interleaved and name .. "_interleaved" or nil
    return { name = name, columns = part.columns, factor = name == "q" and fold.weight_scale or 1.0,
        bias = part.bias, interleaved = product.interleaved, element = element,
        first_column = part.first_column }
end

-- One entry per packed matrix, in blob order: {name, columns, depth, groups, blocks (of columns
-- with panels of their own), sources (side by side)}.
local function matrices(plan)
    local list <const> = {}
    for _, product in ipairs(plan.products) do
        local groups <const>, sources <const>, blocks <const> = {}, {}, product.blocks or 1
        for i, group in ipairs(product.groups) do
            groups[i] = { panels = group.count // blocks,
                width = group.vectors * plan.machine.lanes }
        end
        for i, part in ipairs(product.parts or { product }) do
            sources[i] = source_of(part, product, plan.problem.fold)
        end
        list[#list + 1] = { name = product.name, columns = product.columns, depth = product.depth,
            bias = product.bias, groups = groups, blocks = blocks, sources = sources }
    end
    return list
end

local function group_text(matrix)
    local parts <const> = {}
    for i, group in ipairs(matrix.groups) do parts[i] = ("%dx%d"):format(group.panels,
        group.width) end
    return table.concat(parts, "+")
end

-- Hash of everything that decides the blob's bytes: kernels with equal hashes share a blob.
function packing.layout_hash(plan)
    local lines <const> = { "attngen packed layout 1" }
    for _, matrix in ipairs(matrices(plan)) do
        if #matrix.sources > 1 then lines[#lines + 1] = "side by side: " .. matrix.name end
        for _, source in ipairs(matrix.sources) do
            lines[#lines + 1] = ("%s %dx%d %s bias=%s factor=%a%s"):format(source.name,
                source.columns, matrix.depth, group_text(matrix), tostring(source.bias),
                source.factor, source.element and (" %s blocks=%d of heads=%d/%d dim=%d/%d"):format(
                    source.element, matrix.blocks, plan.problem.heads, plan.problem.kv_heads,
                    plan.problem.head_dim, plan.problem.v_head_dim) or "")
        end
    end
    local fold <const>, problem <const> = plan.problem.fold, plan.problem
    if fold.move_v_bias then
        lines[#lines + 1] = ("moved_v_bias heads=%d/%d dim=%d onto_bias=%s"):format(problem.heads,
            problem.kv_heads, problem.v_head_dim, tostring(problem.bias.o))
    end
    lines[#lines + 1] = "dropped_k_bias=" .. tostring(fold.drop_k_bias)
    return manifest.hash(table.concat(lines, "\n"))
end

local function recipe_lines(plan)
    local lines <const> = {}
    for _, matrix in ipairs(matrices(plan)) do
        local width <const>, first <const> = group_text(matrix), matrix.sources[1]
        lines[#lines + 1] = (" *   %s%s [%d][%d]: panels x columns %s%s%s"):format(matrix.name,
            matrix.blocks > 1 and ("[%d]"):format(matrix.blocks) or "",
            matrix.columns, matrix.depth, width, matrix.bias and ", bias" or "",
            first.factor ~= 1.0 and ", " .. (matrix.sources[2] and first.name .. " " or "")
                .. "times Q_FACTOR" or "")
    end
    for _, reason in ipairs(plan.problem.fold.reasons) do lines[#lines + 1] = " *   " .. reason end
    return table.concat(lines, "\n")
end

local moved_bias_text <const> = [[

/* Output bias of column `out` with the V bias folded in: bo + sum over heads of Wo_h . bv,
    since the
 * weights of every row sum to 1. */
static double moved_bias(const attn_weights *weights, size_t out)
{
    double sum = $(own);
    for (size_t h = 0; h < $(heads); h++) {
        for (size_t d = 0; d < $(dim); d++)
            sum += (double)weights->o_weight[(out * $(heads) + h) * $(dim) + d] *
                   weights->v_bias[$(kv_head) * $(dim) + d];
    }
    return sum;
}
]]

-- Weights that are not a source matrix: element(weights, column, k) in double, by name, with what
-- they read. HEADS … are constants of the file.
local elements <const> = {
    folded_q = { needs = { "q_weight", "k_weight" }, text = [[
/* Wq with Wk folded in: column (head, e), row i is sum over d of Wk[d][e] * Wq[d][i]. */
static double folded_q(const attn_weights *weights, size_t column, size_t k)
{
    const size_t head = column / KV_DIM, e = column % KV_DIM;
    const float *wq = weights->q_weight + head * HEAD_DIM * D_MODEL + k;
    const float *wk = weights->k_weight + head / HEADS_PER_KV * HEAD_DIM * KV_DIM + e;
    double sum = 0.0;
    for (size_t d = 0; d < HEAD_DIM; d++)
        sum += (double)wk[d * KV_DIM] * wq[d * D_MODEL];
    return sum;
}
]] },
    folded_o = { needs = { "o_weight", "v_weight" }, text = [[
/* Wo with Wv folded in: column o, row (head, e) is sum over d of Wo[o][head][d] * Wv[d][e]. */
static double folded_o(const attn_weights *weights, size_t column, size_t k)
{
    const size_t head = k / KV_DIM, e = k % KV_DIM;
    const float *wo = weights->o_weight + (column * HEADS + head) * V_HEAD_DIM;
    const float *wv = weights->v_weight + head / HEADS_PER_KV * V_HEAD_DIM * KV_DIM + e;
    double sum = 0.0;
    for (size_t d = 0; d < V_HEAD_DIM; d++)
        sum += (double)wo[d] * wv[d * KV_DIM];
    return sum;
}
]] },
    q_interleaved = { needs = { "q_weight" }, text = [[
/* Wq with the heads' columns interleaved: column (dim, head). */
static double q_interleaved(const attn_weights *weights, size_t column, size_t k)
{
    return weights->q_weight[(column % HEADS * HEAD_DIM + column / HEADS) * D_MODEL + k];
}
]] },
    k_interleaved = { needs = { "k_weight" }, text = [[
/* Wk with the heads' columns interleaved: column (dim, head). */
static double k_interleaved(const attn_weights *weights, size_t column, size_t k)
{
    return weights->k_weight[(column % HEADS * HEAD_DIM + column / HEADS) * KV_DIM + k];
}
]] },
    v_interleaved = { needs = { "v_weight" }, text = [[
/* Wv with the heads' columns interleaved: column (dim, head). */
static double v_interleaved(const attn_weights *weights, size_t column, size_t k)
{
    return weights->v_weight[(column % HEADS * V_HEAD_DIM + column / HEADS) * KV_DIM + k];
}
]] },
    o_interleaved = { needs = { "o_weight" }, text = [[
/* Wo for contexts with the heads interleaved: row (dim, head). */
static double o_interleaved(const attn_weights *weights, size_t column, size_t k)
{
    return weights->o_weight[(column * HEADS + k % HEADS) * V_HEAD_DIM + k / HEADS];
}
]] },
    lift = { needs = { "k_weight" }, text = [[
/* Wk transposed, kv head by kv head: column (kv head, e), row d. */
static double lift(const attn_weights *weights, size_t column, size_t k)
{
    return weights->k_weight[(column / KV_DIM * HEAD_DIM + k) * KV_DIM + column % KV_DIM];
}
]] },
    defer = { needs = { "v_weight" }, text = [[
/* Wv, kv head by kv head: column (kv head, d), row e. */
static double defer(const attn_weights *weights, size_t column, size_t k)
{
    return weights->v_weight[column * KV_DIM + k];
}
]] },
}

local folded_bias_text <const> = [[
/* Bias of the queries with Wk folded in: sum over d of Wk[d][e] * bq[d]. */
static double q_bias(const attn_weights *weights, size_t column)
{
    const size_t head = column / KV_DIM, e = column % KV_DIM;
    const float *wk = weights->k_weight + head / HEADS_PER_KV * HEAD_DIM * KV_DIM + e;
    double sum = 0.0;
    for (size_t d = 0; d < HEAD_DIM; d++)
        sum += (double)wk[d * KV_DIM] * weights->q_bias[head * HEAD_DIM + d];
    return sum;
}
]]

local pack_matrix_text <const> = [[
/* Appends one matrix [columns][depth] to the blob; returns the place behind it. */
static float *pack_matrix(float *to, const float *weight, size_t columns, size_t depth,
                          double factor, const struct panel_group *groups, size_t group_count,
                          double (*bias)(const attn_weights *, size_t), const attn_weights *weights)
{
    size_t column = 0;
    for (size_t g = 0; g < group_count; g++) {
        for (size_t p = 0; p < groups[g].panels; p++, column += groups[g].width) {
            for (size_t c = 0; bias && c < groups[g].width; c++)
                *to++ = column + c < columns ? (float)(bias(weights, column + c) * factor) : 0.0f;
            for (size_t k = 0; k < depth; k++) {
                for (size_t c = 0; c < groups[g].width; c++)
                    *to++ = column + c < columns
                                ? (float)(weight[(column + c) * depth + k] * factor)
                                : 0.0f;
            }
        }
    }
    return to;
}
]]

local pack_elements_text <const> = [[
/* Appends `blocks` matrices [columns][depth] whose elements are computed: group by group, and in
 * each group block by block; returns the place behind them. */
static float *pack_elements(float *to, size_t blocks, size_t columns, size_t depth, double factor,
                            const struct panel_group *groups, size_t group_count,
                            double (*element)(const attn_weights *, size_t, size_t),
                            double (*bias)(const attn_weights *, size_t),
                            const attn_weights *weights)
{
    size_t first = 0;
    for (size_t g = 0; g < group_count; g++) {
        const size_t panels = groups[g].panels, width = groups[g].width;
        for (size_t i = 0; i < blocks * panels; i++) {
            const size_t block = i / panels, column = first + i % panels * width;
            for (size_t k = bias ? 0 : 1; k < depth + 1; k++) { /* 0: the bias */
                for (size_t c = column; c < column + width; c++) {
                    double value = 0.0;
                    if (c < columns && k == 0)
                        value = bias(weights, block * columns + c);
                    else if (c < columns)
                        value = element(weights, block * columns + c, k - 1);
                    *to++ = (float)(value * factor);
                }
            }
        }
        first += panels * width;
    }
    return to;
}
]]

local is_packable_text <const> = [[

/* Whether every folded weight is finite in float. */
static int is_packable(const attn_weights *weights, size_t columns, size_t depth, double factor,
                       double (*element)(const attn_weights *, size_t, size_t),
                       double (*bias)(const attn_weights *, size_t))
{
    for (size_t c = 0; c < columns; c++) {
        if (bias && !is_finite((float)(bias(weights, c) * factor)))
            return 0;
        for (size_t k = 0; k < depth; k++) {
            if (!is_finite((float)(element(weights, c, k) * factor)))
                return 0;
        }
    }
    return 1;
}
]]

-- The #defines that element functions read.
local function dimension_text(problem)
    local lines <const> = {}
    for _, one in ipairs({ { "HEADS", problem.heads }, { "HEADS_PER_KV", problem.group },
        { "HEAD_DIM", problem.head_dim }, { "V_HEAD_DIM", problem.v_head_dim },
        { "D_MODEL", problem.d_model }, { "KV_DIM", problem.kv_dim } }) do
        lines[#lines + 1] = ("#define %s %d"):format(one[1], one[2])
    end
    return table.concat(lines, "\n") .. "\n"
end

local function fill(text, fields) return (text:gsub("%$%(([%w_]+)%)", fields)) end

-- Element and bias of several sources side by side, each from its first column on.
local function merged_text(matrix)
    local function choose(term)
        local values <const>, lines <const> = {}, {}
        for i, source in ipairs(matrix.sources) do
            values[i] = term(source, i == 1 and "column"
                or ("column - %d"):format(source.first_column))
        end
        for i, source in ipairs(matrix.sources) do
            if i == #values or values[i] ~= values[i + 1] then
                lines[#lines + 1] = (i < #values and "    if (column < %d)\n    " or ""):format(
                    source.first_column + source.columns) .. ("    return %s;\n"):format(values[i])
            end
        end
        return table.concat(lines)
    end
    local function scaled(source, value)
        return source.factor ~= 1.0 and value .. " * Q_FACTOR" or value
    end
    local names <const> = {}
    for i, source in ipairs(matrix.sources) do names[i] = "W" .. source.name end
    local text = ("/* %s side by side. */\nstatic double %s(const attn_weights *weights, size_t "
        .. "column, size_t k)\n{\n%s}\n"):format(table.concat(names, ", "), matrix.name,
        choose(function(source, column)
            return scaled(source, source.element
                and ("%s(weights, %s, k)"):format(source.element, column)
                or ("(double)weights->%s_weight[%s * %d + k]"):format(source.name,
                    column:find(" ") and ("(%s)"):format(column) or column, matrix.depth))
        end))
    if not matrix.bias then return text end
    return text .. ("\nstatic double %s_bias(const attn_weights *weights, size_t column)\n{\n"
        .. "%s}\n"):format(matrix.name, choose(function(source, column)
            return source.bias
                and scaled(source, ("%s(weights, %s)"):format(source.bias_function, column))
                or "0.0"
        end))
end

-- Fields of templates/pack.c.in; nil when the kernel has no packed weights.
function packing.fields(plan)
    local problem <const>, fold <const> = plan.problem, plan.problem.fold
    local list <const> = matrices(plan)
    if #list == 0 then return nil end
    local constants <const>, checks <const>, nulls <const> = {}, {}, {}
    local functions <const>, calls <const> = {}, {}
    local checks_folded, has_elements, has_plain = false, false, false
    if fold.weight_scale ~= 1.0 then
        constants[1] = ("/* scale%s, folded into Wq and bq */\n#define Q_FACTOR %a\n"):format(
            fold.base == 2 and " * log2(e)" or "", fold.weight_scale)
    end
    local needed <const> = {}
    local function need(field)
        if needed[field] then return end
        needed[field] = true
        nulls[#nulls + 1] = " || !weights->" .. field
    end
    local function check_scaled(field, count)
        checks[#checks + 1] = ("    if (!scales(weights->%s, %d, Q_FACTOR))\n"
            .. "        return ATTN_E_NONFINITE;"):format(field, count)
    end
    -- what `source` reads: sets its bias_function
    local function add_source(source, depth)
        local name <const> = source.name
        local computed <const> = elements[source.element]
        for _, field in ipairs(computed and computed.needs or { name .. "_weight" }) do
            need(field)
        end
        if computed then functions[#functions + 1] = computed.text end
        local bias = "0"
        if name == "o" and fold.move_v_bias then
            bias = "moved_bias"
            if problem.bias.o then need("o_bias") end
        elseif source.bias and source.element == "folded_q" then
            bias = "q_bias"
            need(bias)
            functions[#functions + 1] = folded_bias_text
        elseif source.bias then
            bias = (name == "defer" and "v" or name) .. "_bias"
            need(bias)
            local column <const> = source.interleaved and name ~= "o"
                and ("column %% HEADS * %s + column / HEADS"):format(name == "v" and "V_HEAD_DIM"
                    or "HEAD_DIM") or "column"
            functions[#functions + 1] = (
                "static double %s(const attn_weights *weights, size_t "
                .. "column)\n{\n    return weights->%s[%s];\n}\n"):format(bias, bias, column)
        end
        source.bias_function = bias
        if computed and #computed.needs > 1 then
            checks_folded = true
            checks[#checks + 1] = ("    if (!is_packable(weights, %d, %d, %s, %s, %s))\n"
                .. "        return ATTN_E_NONFINITE;"):format(source.columns, depth,
                    source.factor ~= 1.0 and "Q_FACTOR" or "1.0", source.element,
                    name == "q" and bias or "0")
        elseif source.factor ~= 1.0 then
            check_scaled(name .. "_weight", source.columns * depth)
            if source.bias then check_scaled(name .. "_bias", source.columns) end
        end
    end
    for _, matrix in ipairs(list) do
        local name <const>, first <const> = matrix.name, matrix.sources[1]
        for _, source in ipairs(matrix.sources) do add_source(source, matrix.depth) end
        local element, bias, factor = first.element, first.bias_function,
            first.factor ~= 1.0 and "Q_FACTOR" or "1.0"
        if #matrix.sources > 1 then
            functions[#functions + 1] = merged_text(matrix)
            element, bias, factor = name, matrix.bias and name .. "_bias" or "0", "1.0"
        end
        local groups <const> = {}
        for i, group in ipairs(matrix.groups) do
            groups[i] = ("{%d, %d}"):format(group.panels, group.width)
        end
        constants[#constants + 1] = (
            "static const struct panel_group %s_groups[%d] = {%s};"):format(
            name, #groups, table.concat(groups, ", "))
        if element then
            calls[#calls + 1] = ("    to = pack_elements(to, %d, %d, %d, %s, %s_groups, %d, %s, "
                .. "%s, weights);"):format(matrix.blocks, matrix.columns, matrix.depth, factor,
                    name, #groups, element, bias)
        else
            calls[#calls + 1] = (
            "    to = pack_matrix(to, weights->%s_weight, %d, %d, %s, %s_groups, %d, "
            .. "%s, weights);"):format(name, matrix.columns, matrix.depth, factor, name, #groups,
            bias)
        end
        has_elements = has_elements or element ~= nil
        has_plain = has_plain or element == nil
    end
    local moved = ""
    if fold.move_v_bias then
        need("v_bias")
        moved = fill(moved_bias_text, { own = problem.bias.o and "weights->o_bias[out]" or "0.0",
            heads = problem.heads, dim = problem.v_head_dim, kv_head = problem.group == 1 and "h"
                or ("h / %d"):format(problem.group) })
    end
    if fold.drop_k_bias then
        need("k_bias")
        checks[#checks + 1] = ("    /* dropped, so what is in it must not matter */\n"
            .. "    for (size_t i = 0; i < %d; i++) {\n"
            .. "        if (!is_finite(weights->k_bias[i]))\n"
            .. "            return ATTN_E_NONFINITE;\n    }"):format(
                problem.kv_heads * problem.head_dim)
    end
    local uses_scales <const> = fold.weight_scale ~= 1.0 and fold.keys ~= "folded"
    if has_elements then
        table.insert(constants, 1, dimension_text(problem))
    end
    return {
        recipe = recipe_lines(plan), constants = table.concat(constants, "\n"), moved_bias = moved,
        finite_functions = (uses_scales or fold.drop_k_bias or checks_folded)
            and packing.is_finite_text .. (uses_scales and packing.scales_text or "")
                .. (checks_folded and is_packable_text or "") or "",
        pack_functions = (has_plain and pack_matrix_text or "")
            .. (has_plain and has_elements and "\n" or "")
            .. (has_elements and pack_elements_text or ""),
        bias_functions = table.concat(functions, "\n"), null_checks = table.concat(nulls),
        finite_checks = table.concat(checks, "\n"), matrices = table.concat(calls, "\n"),
    }
end

packing.is_finite_text = [[

static int is_finite(double value)
{
    return value - value == 0.0;
}
]]

packing.scales_text = [[

/* Whether every finite weight stays finite as value * factor in float. */
static int scales(const float *values, size_t count, double factor)
{
    for (size_t i = 0; i < count; i++) {
        if (is_finite(values[i]) && !is_finite((float)(values[i] * factor)))
            return 0;
    }
    return 1;
}
]]

return packing
