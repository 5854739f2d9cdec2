-- Plans the projections of mha: which of q, k, v there are, which of them are one product, and
-- where their rows live. One product of several, x . [Wq|Wk|Wv]^T, has panels that run across the
-- matrices: columns that fill no vector, or no panel, are then left once and not in every matrix.
local projection <const> = require("gen.plan.projection")

local qkv <const> = {}

-- What is projected: list of {name, rows, depth, heads, width, per_item, x_rows, first_row, source,
-- meaning, bounded, bias}; rows of one item follow each other.
local function tensors(problem, bounded)
    local fold <const> = problem.fold
    local list <const> = {
        { name = "q", rows = problem.query_rows, depth = problem.d_model, heads = problem.heads,
            width = fold.keys == "folded" and problem.kv_dim or problem.head_dim,
            per_item = problem.seq_len, x_rows = problem.x_rows,
            first_row = problem.first_query, source = "x", meaning = "queries" },
    }
    local function add(name, width, meaning)
        list[#list + 1] = { name = name, rows = problem.key_rows, depth = problem.kv_dim,
            heads = problem.kv_heads, width = width, per_item = problem.new_keys,
            source = problem.cross and "context" or "x",
            meaning = (problem.kv_cache == "append" and "new " or "") .. meaning }
    end
    if problem.new_keys > 0 and fold.keys == "projected" then
        add("k", problem.head_dim, "keys")
    end
    if problem.new_keys > 0 and fold.values == "projected" then
        add("v", problem.v_head_dim, "values")
    end
    for _, one in ipairs(list) do
        one.bounded, one.bias = bounded[one.name], fold.biases[one.name]
    end
    return list
end

-- The product of the tensors `parts`, with the layout of each in planned.parts.
local function plan_product(problem, machine, parts, straight, packed_base)
    local first <const>, along_heads <const> = parts[1], problem.along_heads
    local names, columns, bias = "", 0, false
    local placed <const>, meanings <const> = {}, {}
    for i, part in ipairs(parts) do
        meanings[i] = part.meaning
        placed[i] = { name = part.name, columns = part.heads * part.width, bias = part.bias,
            first_column = columns }
        names, columns = names .. part.name, columns + placed[i].columns
        bias = bias or part.bias
    end
    local planned <const> = projection.build(names, "project", problem, machine,
        { rows = first.rows, depth = first.depth, columns = columns, items = problem.batch,
            input_rows = first.x_rows, first_row = first.first_row,
            head_width = not along_heads and first.width or nil,
            straight = straight, bounded = first.bounded, bias = bias,
            takes_rows = problem.batch > 1 and not problem.mask.lengths and not problem.is_block,
            packed_base = packed_base })
    planned.source, planned.head_width, planned.interleaved = first.source, first.width,
        along_heads
    for i, part in ipairs(parts) do
        local layout <const> = projection.layout(planned, part.width, part.heads, part.per_item,
            machine.lanes, along_heads, #parts > 1)
        layout.buffer, layout.offset = names, placed[i].first_column
        placed[i].layout = layout
    end
    planned.parts, planned.layout = placed, placed[1].layout
    projection.target_panels(planned, planned.layout, first.width, machine.lanes)
    planned.meaning = table.concat(meanings, ", ")
        .. (planned.layout.kind == "heads" and ", head-major [head][row][dim]"
            or along_heads and ", heads interleaved [row][dim][head]" or ", [row][column]")
    return planned
end

-- Runs of neighbours in `list` that one product can compute: the same rows of the same input.
local function mergeable_runs(list, problem)
    local runs <const> = {}
    local merges <const> = problem.plan.project == nil or problem.plan.project.merged ~= false
    local plain <const> = problem.fold.keys == "projected" and problem.fold.values == "projected"
    for _, one in ipairs(list) do
        local run <const> = runs[#runs]
        local before <const> = run and run[1]
        if merges and plain and before and before.source == one.source
            and before.rows == one.rows and before.depth == one.depth
            and (before.x_rows or before.per_item) == one.per_item
            and before.bounded == one.bounded then
            run[#run + 1] = one
        else
            runs[#runs + 1] = { one }
        end
    end
    return runs
end

-- What the columns of `products` waste, {vectors, rests}: vectors in all, so that fewer waste fewer
-- lanes, and panels narrower than the tile, which wait for the FMA latency or their loads. And the
-- cycles predicted.
local function weigh(products, lanes)
    local sum <const> = { vectors = 0, rests = 0, cycles = 0.0 }
    for _, one in ipairs(products) do
        sum.vectors = sum.vectors + one.padded_columns // lanes
        sum.cycles = sum.cycles + one.cycles
        for _, group in ipairs(one.groups) do
            sum.rests = sum.rests + (group.vectors < one.tile_vectors and group.count or 0)
        end
    end
    return sum
end

-- Why `merged` computes the tensors of the products `apart`, or nil: it saves vectors or rests and
-- no product stores its tensor head by head, or the user wants it.
local function reason_for(merged, apart, lanes, forced)
    local one <const>, others <const> = weigh({ merged }, lanes), weigh(apart, lanes)
    for _, product in ipairs(apart) do
        if product.layout.kind == "heads" and not forced then return nil end
    end
    local saves <const> = one.vectors < others.vectors or one.rests < others.rests
    if not forced and (not saves or one.cycles > others.cycles) then return nil end
    if not saves then return "as the plan says" end
    return ("vectors of columns %d, narrow panels %d, rather than %d and %d in %d products")
        :format(one.vectors, one.rests, others.vectors, others.rests, #apart)
end

-- The products to compute, in order, packed from `packed_base` on. `bounded`: by name, whether rows
-- end at their item's length.
function qkv.build(problem, machine, bounded, straight, packed_base)
    local products <const>, at = {}, packed_base
    local forced <const> = problem.plan.project and problem.plan.project.merged
    for _, run in ipairs(mergeable_runs(tensors(problem, bounded), problem)) do
        local chosen, base = {}, at
        for i, one in ipairs(run) do
            chosen[i] = plan_product(problem, machine, { one }, straight, base)
            base = chosen[i].packed_end
        end
        if #run > 1 then
            local merged <const> = plan_product(problem, machine, run, straight, at)
            merged.reason = reason_for(merged, chosen, machine.lanes, forced)
            if merged.reason then chosen = { merged } end
        end
        for _, one in ipairs(chosen) do products[#products + 1] = one end
        at = chosen[#chosen].packed_end
    end
    return products
end

return qkv
