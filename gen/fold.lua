-- Algebra done once, while packing: what moves into the weights, and so the packing recipe.
-- In: problem. Out: the same problem with `fold`. Knows attention, not tiles or C. All folding is
-- computed in double by the emitted pack function.
local fold <const> = {}

local LOG2_E <const> = 0x1.71547652b82fep+0

-- Ways to treat one side, all legal ones or only those that plan.fold asks for. `holds`: {way = nil
-- or why not}, in order; reasons for what is off are added to `reasons`.
local function ways(holds, wanted, reasons)
    local list <const>, forced = { "projected" }, nil
    for _, entry in ipairs(holds) do
        local way <const>, key <const>, obstacle <const> = entry[1], entry[2], entry[3]
        local off <const> = obstacle or (wanted[key] == false and ("fold.%s is off"):format(key))
        if off then
            reasons[#reasons + 1] = ("%s not %s: %s"):format(entry.what, way, off)
        elseif wanted[key] and not forced then
            forced = { way }
        else
            list[#list + 1] = way
        end
    end
    return forced or list
end

-- Every legal combination of keys and values.
local function forms(problem, decisions, zero_rows)
    local wanted <const> = problem.plan.fold or {}
    local keys, values = { "projected" }, { "projected" }
    if problem.kv_cache then
        decisions.reasons[#decisions.reasons + 1] = "Wk and Wv stay: the cache holds K and V"
    elseif problem.op == "mha" then
        local kept_k <const> = problem.bias.k and not decisions.drop_k_bias
            and "a K bias that stays belongs to projected keys" or nil
        local kept_v <const> = problem.bias.v and not decisions.move_v_bias
        -- 0 . Wv + bv is not 0
        local empty <const> = kept_v and zero_rows and "an empty row gives 0, without its V bias"
            or nil
        local no_output <const> = not problem.output_projection and "no output projection" or nil
        local cleared <const> = no_output and problem.padded_queries == "zero"
            and "padded rows are cleared in the context" or nil
        keys = ways({ { "folded", "qk", kept_k, what = "keys" },
            { "lifted", "few_queries", kept_k, what = "keys" } }, wanted, decisions.reasons)
        values = ways({ { "folded", "vo", no_output or empty or (kept_v and "the V bias stays")
                or nil, what = "values" },
            { "deferred", "few_queries", empty or cleared, what = "values" } }, wanted,
            decisions.reasons)
    end
    local list <const> = {}
    for _, key_way in ipairs(keys) do
        for _, value_way in ipairs(values) do
            local form <const> = {}
            for name, value in pairs(decisions) do form[name] = value end
            form.keys, form.values = key_way, value_way
            form.reasons = table.move(decisions.reasons, 1, #decisions.reasons, 1, {})
            list[#list + 1] = form
        end
    end
    return list
end

-- Folding decisions, each with the reason `attngen plan` prints:
--   base            2: logits are in units of log2 and softmax uses exp2 alone; 0: natural units,
--                   the softmax multiplies by log2(e) after subtracting the maximum
--   weight_scale    factor on Wq and bq
--   query_scale     factor applied when the queries are gathered (1.0: none)
--   drop_k_bias     q.bk adds the same to a whole row of logits, which softmax ignores
--   move_v_bias     bo' = bo + sum over heads of Wo_h.bv: rows of weights sum to 1
--   biases          which packed matrices start with a bias row
--   keys            what the scores read as keys: "projected"; or the rows of the input as they
--                   are, with Wk moved to the queries: "folded" into Wq (q' = x . (Wk^T . Wq)^T),
--                   or "lifted", a product of its own (q' = Wk^T . q), for few queries
--   values          the same for the context: "projected"; or the input, with Wv "folded" into Wo
--                   (y = sum over heads of (P . x) . (Wo . Wv)^T), or "deferred" to a product of
--                   its own between context and output projection
-- `keys` and `values` cost or save work as shapes have it, so the plan decides: problem.forms lists
-- every legal combination as a table like `fold`; problem.fold is the first, all projected.
function fold.apply(problem)
    local wanted <const> = problem.plan.fold or {}
    local decisions <const>, reasons <const> = {}, {}
    local mha <const> = problem.op == "mha"

    decisions.base = problem.mask.additive and 0 or 2
    reasons[#reasons + 1] = problem.mask.additive
        and "natural logits: log2(e) times a finite mask of -FLT_MAX would become -inf"
        or "logits in units of log2: softmax uses exp2 alone"
    local factor <const> = decisions.base == 2 and problem.scale * LOG2_E or problem.scale

    if mha and wanted.scale ~= false then
        decisions.weight_scale, decisions.query_scale = factor, 1.0
        reasons[#reasons + 1] = "scale folded into Wq" .. (problem.bias.q and " and bq" or "")
    else
        decisions.weight_scale, decisions.query_scale = 1.0, factor
        reasons[#reasons + 1] = "scale applied while gathering the queries"
            .. (mha and " (fold.scale is off)" or " (no Wq)")
    end

    decisions.drop_k_bias = mha and problem.bias.k and not problem.kv_cache
        and wanted.k_bias ~= false
    if problem.kv_cache and problem.bias.k then
        reasons[#reasons + 1] = "K bias stays: the cache holds biased keys"
    elseif decisions.drop_k_bias then
        reasons[#reasons + 1] = "K bias dropped: it shifts every logit of a row alike"
    end

    local zero_rows <const> = problem.may_be_empty and problem.empty_row == "zero"
    decisions.move_v_bias = mha and problem.bias.v and problem.output_projection
        and not zero_rows and not problem.kv_cache and wanted.v_bias ~= false
    if decisions.move_v_bias then
        reasons[#reasons + 1] = "V bias moved into the output bias: weights sum to 1"
    elseif mha and problem.bias.v then
        reasons[#reasons + 1] = "V bias stays: " .. (not problem.output_projection
            and "no output projection" or problem.kv_cache and "the cache holds biased values"
            or zero_rows and "a row may be empty and then gives 0"
            or "fold.v_bias is off")
    end

    decisions.biases = {
        q = problem.bias.q,
        k = problem.bias.k and not decisions.drop_k_bias,
        v = problem.bias.v and not decisions.move_v_bias,
        o = problem.bias.o or decisions.move_v_bias,
    }
    decisions.reasons = reasons
    problem.forms = forms(problem, decisions, zero_rows)
    problem.fold = problem.forms[1]
    return problem
end

return fold
