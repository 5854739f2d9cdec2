-- The packing recipe: how the blob of packed weights is laid out, its hash, and the fields of the
-- emitted pack function. In: plan. Knows the algebra's outcome and panels, not the kernel's tiles.
local manifest <const> = require("gen.manifest")

local packing <const> = {}

-- One entry per packed matrix, in blob order: {name, columns, depth, factor, bias, groups}.
local function matrices(plan)
    local list <const> = {}
    local fold <const> = plan.problem.fold
    local function add(projection, factor)
        local groups <const> = {}
        for i, group in ipairs(projection.groups) do
            groups[i] = { panels = group.count, width = group.vectors * plan.machine.lanes }
        end
        list[#list + 1] = { name = projection.name, columns = projection.columns,
            depth = projection.depth, factor = factor, bias = projection.bias, groups = groups }
    end
    for _, projection in ipairs(plan.projections) do
        add(projection, projection.name == "q" and fold.weight_scale or 1.0)
    end
    if plan.output then add(plan.output, 1.0) end
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
        lines[#lines + 1] = ("%s %dx%d %s bias=%s factor=%a"):format(matrix.name, matrix.columns,
            matrix.depth, group_text(matrix), tostring(matrix.bias), matrix.factor)
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
        local width <const> = group_text(matrix)
        lines[#lines + 1] = (" *   %s [%d][%d]: panels x columns %s%s%s"):format(matrix.name,
            matrix.columns, matrix.depth, width, matrix.bias and ", bias" or "",
            matrix.factor ~= 1.0 and ", times Q_FACTOR" or "")
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

local function fill(text, fields) return (text:gsub("%$%(([%w_]+)%)", fields)) end

-- Fields of templates/pack.c.in; nil when the kernel has no packed weights.
function packing.fields(plan)
    local problem <const>, fold <const> = plan.problem, plan.problem.fold
    local list <const> = matrices(plan)
    if #list == 0 then return nil end
    local constants <const>, checks <const>, nulls <const> = {}, {}, {}
    local functions <const>, calls <const> = {}, {}
    if fold.weight_scale ~= 1.0 then
        constants[1] = ("/* scale%s, folded into Wq and bq */\n#define Q_FACTOR %a\n"):format(
            fold.base == 2 and " * log2(e)" or "", fold.weight_scale)
    end
    local function need(field) nulls[#nulls + 1] = " || !weights->" .. field end
    local function check_scaled(field, count)
        checks[#checks + 1] = ("    if (!scales(weights->%s, %d, Q_FACTOR))\n"
            .. "        return ATTN_E_NONFINITE;"):format(field, count)
    end
    for _, matrix in ipairs(list) do
        local name <const> = matrix.name
        need(name .. "_weight")
        local groups <const> = {}
        for i, group in ipairs(matrix.groups) do
            groups[i] = ("{%d, %d}"):format(group.panels, group.width)
        end
        constants[#constants + 1] = (
            "static const struct panel_group %s_groups[%d] = {%s};"):format(
            name, #groups, table.concat(groups, ", "))
        local bias = "0"
        if name == "o" and fold.move_v_bias then
            bias = "moved_bias"
            if problem.bias.o then need("o_bias") end
        elseif matrix.bias then
            bias = name .. "_bias"
            need(bias)
            functions[#functions + 1] = (
                "static double %s_bias(const attn_weights *weights, size_t "
                .. "column)\n{\n    return weights->%s_bias[column];\n}\n"):format(name, name)
        end
        local factor = "1.0"
        if matrix.factor ~= 1.0 then
            factor = "Q_FACTOR"
            check_scaled(name .. "_weight", matrix.columns * matrix.depth)
            if matrix.bias then check_scaled(name .. "_bias", matrix.columns) end
        end
        calls[#calls + 1] = (
            "    to = pack_matrix(to, weights->%s_weight, %d, %d, %s, %s_groups, %d, "
            .. "%s, weights);"):format(name, matrix.columns, matrix.depth, factor, name, #groups,
            bias)
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
    local uses_scales <const> = fold.weight_scale ~= 1.0
    return {
        recipe = recipe_lines(plan), constants = table.concat(constants, "\n"), moved_bias = moved,
        finite_functions = (uses_scales or fold.drop_k_bias) and packing.is_finite_text
            .. (uses_scales and packing.scales_text or "") or "",
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
