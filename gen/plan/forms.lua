-- Which form of the layer to plan: keys and values projected, or Wk and Wv moved to the other side
-- (gen/fold.lua lists the legal forms). Counts work; knows caches and widths, not tiles.
local numbers <const> = require("gen.plan.numbers")

local forms <const> = {}

local round_up <const>, FLOAT_BYTES <const> = numbers.round_up, numbers.FLOAT_BYTES

-- Bytes a cycle from the cache behind L2, for weights that do not stay in L2.
local L3_BANDWIDTH <const> = 12

-- (query, key) pairs that static masks leave, of one item and head.
function forms.visible_pairs(problem)
    local causal <const> = problem.causal
    if not causal or causal.by_length then return problem.seq_len * problem.kv_len end
    local pairs_seen = 0
    for query = 0, problem.seq_len - 1 do
        local visible <const> = query + 1 + causal.positive - causal.negative
        pairs_seen = pairs_seen + math.max(0, math.min(problem.kv_len, visible))
    end
    return pairs_seen
end

-- Matrix products of the layer in `form`: list of {name, rows, depth, columns (of one block),
-- blocks}. Every block has its own weights; rows count per block.
function forms.products(problem, form)
    local list <const> = {}
    if problem.op ~= "mha" then return list end
    local H <const>, G <const>, C <const> = problem.heads, problem.kv_heads, problem.kv_dim
    local D <const>, V <const> = problem.head_dim, problem.v_head_dim
    local queries <const>, keys <const> = problem.query_rows, problem.key_rows
    local function add(name, rows, depth, columns, blocks)
        list[#list + 1] = { name = name, rows = rows, depth = depth, columns = columns,
            blocks = blocks or 1 }
    end
    add("q", queries, problem.d_model, H * (form.keys == "folded" and C or D))
    if keys > 0 and form.keys == "projected" then add("k", keys, C, G * D) end
    if keys > 0 and form.values == "projected" then add("v", keys, C, G * V) end
    if form.keys == "lifted" then add("lift", queries * problem.group, D, C, G) end
    if form.values == "deferred" then add("defer", queries * problem.group, C, V, G) end
    if problem.output_projection then
        add("o", queries, H * (form.values == "folded" and C or V), problem.d_model)
    end
    return list
end

-- Depth of the scores and width of the values, a head.
function forms.widths(problem, form)
    return form.keys == "projected" and problem.head_dim or problem.kv_dim,
        form.values == "projected" and problem.v_head_dim or problem.kv_dim
end

-- Floating-point operations of the products, and of scores and context.
function forms.flops(problem, form)
    local products = 0
    for _, one in ipairs(forms.products(problem, form)) do
        products = products + 2 * one.rows * one.depth * one.columns * one.blocks
    end
    local score <const>, value <const> = forms.widths(problem, form)
    return products, 2 * problem.batch * problem.heads * forms.visible_pairs(problem)
        * (score + value)
end

-- The legal forms worth a plan: those with at most half as many operations again as the best.
function forms.candidates(problem)
    local all <const>, fewest = {}, math.huge
    for i, form in ipairs(problem.forms) do
        local products <const>, core <const> = forms.flops(problem, form)
        all[i] = { form = form, flops = products + core }
        fewest = math.min(fewest, all[i].flops)
    end
    local list <const> = {}
    for _, one in ipairs(all) do
        if one.flops <= 1.5 * fewest then list[#list + 1] = one.form end
    end
    return list
end

-- Predicted cycles of a plan: every product takes its tiles' time, or that of its weights on their
-- way from beyond L2.
function forms.cycles(built)
    local problem <const>, target <const> = built.problem, built.machine.target
    local stays <const> = built.packed_bytes <= target.l2 // 2
    local cycles = 0.0
    for _, one in ipairs(built.products) do
        local bytes <const> = stays and 0 or one.packed_floats * FLOAT_BYTES
        cycles = cycles + math.max(one.cycles, bytes / L3_BANDWIDTH)
    end
    local share <const> = forms.visible_pairs(problem) / (problem.seq_len * problem.kv_len)
    -- half a cycle an element transposes the queries
    local attention <const> = built.attention
    local gather <const> = attention.gather_cycles
        or 0.5 * problem.query_rows * problem.heads * built.score_dim
    local pad <const> = built.pad_values and built.pad_values.rows
        * round_up(built.pad_values.to, built.machine.lanes) / built.machine.lanes or 0
    return cycles + (attention.cycles + attention.softmax_cycles) * share + gather + pad
end

local function describe(built)
    local keys <const> = { projected = "K projected", folded = "Wk folded into Wq",
        lifted = "queries times Wk^T, no K" }
    local values <const> = { projected = "V projected", folded = "Wv folded into Wo",
        deferred = "Wv after the context, no V" }
    local form <const> = built.problem.fold
    return ("%s, %s%s (%.1f kFLOP, %.1f k cycles predicted)"):format(keys[form.keys],
        values[form.values], built.problem.along_heads and ", heads interleaved" or "",
        (built.projection_flops + built.core_flops) / 1e3,
        built.form_cycles / 1e3)
end

-- What `attngen plan` says about the form that was chosen among `plans`: beside it the next best,
-- and the plain one.
function forms.reason(chosen, plans)
    local next_best, plain
    for _, other in ipairs(plans) do
        local form <const> = other.problem.fold
        if other ~= chosen and (not next_best or other.form_cycles < next_best.form_cycles) then
            next_best = other
        end
        if form.keys == "projected" and form.values == "projected"
            and not other.problem.along_heads then
            plain = other
        end
    end
    local text = describe(chosen)
    if next_best then text = text .. " rather than " .. describe(next_best) end
    if plain and plain ~= chosen and plain ~= next_best then
        text = text .. " or " .. describe(plain)
    end
    return text
end

return forms
