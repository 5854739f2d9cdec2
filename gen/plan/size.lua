-- Predicts a plan's text: vector instructions, and from them code bytes and compile seconds.
local size <const> = {}

-- Vector instructions in the text of a product: one tile body per loop, or every tile of a
-- straight-line function (`straight`); loads of B and broadcasts included.
local function product_ops(row_groups, column_groups, depth, straight)
    local ops = 0
    for _, r in ipairs(row_groups) do
        for _, c in ipairs(column_groups) do
            local tile <const> = depth * (r.size * c.size + r.size + c.size) + 4 * r.size * c.size
            ops = ops + (straight and r.count * c.count or 1) * tile
        end
    end
    return ops
end

-- Vector instructions that follow each accumulator of a score tile: mask, maximum or judgement,
-- exp2, sum, store. gcc's and clang's kernels of bench/shapes take 16 to 24.
local EXP_OPS <const> = 20

-- Rows of one tile of each group.
local function rows_of(groups)
    local rows = 0
    for _, group in ipairs(groups) do rows = rows + group.size end
    return rows
end

-- The panels of a group share one function, and so do equal row tiles.
local function projection_ops(projection)
    local groups <const> = {}
    for i, group in ipairs(projection.groups) do groups[i] = { count = 1, size = group.vectors } end
    local calls <const> = projection.straight and 6 * projection.panels * projection.tiles or 0
    return product_ops(projection.row_groups, groups, projection.unroll, false) + calls
end

-- Vector instructions in the text of the kernel.
function size.estimate_ops(built)
    local problem <const>, attention <const> = built.problem, built.attention
    local ops = 40
    local straight <const> = built.straight
    for _, product in ipairs(built.products) do ops = ops + projection_ops(product) end
    if attention.text_ops then return ops + attention.text_ops end
    -- Straight-line functions are shared by all batch items and heads, not by query blocks whose
    -- static mask differs.
    for _, block in ipairs(attention.blocks) do
        local copies <const> = built.straight and attention.by_query and block.count or 1
        local vectors <const> = { { count = 1, size = block.vectors } }
        local trials <const> = attention.trial and 2 or 1
        local variants <const> = (attention.range_loops and 2 or 1) * trials
        local last <const> = block.last_vectors and { { count = 1, size = block.last_vectors } }
        ops = ops + copies * (variants * product_ops(attention.key_groups, vectors,
                attention.scores_unroll, straight)
            + (last and trials * product_ops(attention.key_groups, last, attention.scores_unroll,
                false) or 0)
            + product_ops(block.dim_groups or block.row_groups,
                block.vector_groups or attention.column_groups,
                block.context_unroll or attention.context_unroll, straight))
        if straight then ops = ops + 10 * problem.batch * problem.heads * block.count end
        ops = ops + copies * block.vectors
            * (straight and 14 * problem.kv_len + 3 * built.score_dim or 40)
        if not straight then
            ops = ops + EXP_OPS * (variants * block.vectors + trials * (block.last_vectors or 0))
                * rows_of(attention.key_groups)
        end
        if attention.repair then
            ops = ops + copies * (straight and 3 * problem.kv_len * attention.value_vectors or 60)
        end
    end
    return ops
end

-- Seconds gcc -O3 needs, from straight-line AVX2 functions of 500 to 2 000 statements.
function size.compile_seconds(ops) return 0.15 + 0.00035 * ops end

return size
