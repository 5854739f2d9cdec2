-- Algebra done once, while packing: what moves into the weights, and so the packing recipe.
-- In: problem. Out: the same problem with `fold`. Knows attention, not tiles or C. All folding is
-- computed in double by the emitted pack function.
local fold <const> = {}

local LOG2_E <const> = 0x1.71547652b82fep+0

-- Folding decisions, each with the reason `attngen plan` prints:
--   base            2: logits are in units of log2 and softmax uses exp2 alone; 0: natural units,
-- the
--                   softmax multiplies by log2(e) after subtracting the maximum
--   weight_scale    factor on Wq and bq
--   query_scale     factor applied when the queries are gathered (1.0: none)
--   drop_k_bias     q.bk adds the same to a whole row of logits, which softmax ignores
--   move_v_bias     bo' = bo + sum over heads of Wo_h.bv: rows of weights sum to 1
--   biases          which packed matrices start with a bias row
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
    problem.fold = decisions
    return problem
end

return fold
