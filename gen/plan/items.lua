-- Decides whether a batch goes through the layer in blocks of items: a block's projections,
-- attention and output before the next block's. Its q, k, v and contexts then stay in L2, and the
-- workspace holds one block's. Parts take blocks instead of shares of every phase.
local numbers <const> = require("gen.plan.numbers")

local items <const> = {}

-- Blocks there must be at least: parts take whole ones, so a few of them differ little.
local LEAST_BLOCKS <const> = 16

-- Items of a block, nil: all at once. `whole` is the plan without blocks. Items of different
-- lengths stay together, where parts share out row tiles and heads and not items.
function items.choose(problem, whole)
    local batch <const> = problem.batch
    local forced <const> = problem.plan.layer and problem.plan.layer.items
    local most = forced
    if not forced then
        local l2 <const> = whole.machine.target.l2
        if problem.mask.lengths or batch < LEAST_BLOCKS or whole.workspace_bytes <= l2 // 2 then
            return nil
        end
        local item_bytes <const> = math.max(1, whole.workspace_bytes // batch)
        most = math.min(batch // LEAST_BLOCKS, l2 // 4 // item_bytes)
    end
    if most >= batch then return nil end
    for size = math.max(most, 1), 1, -1 do
        if batch % size == 0 then return size end
    end
end

-- The same problem for `size` of its items.
function items.restrict(problem, size)
    local part <const> = {}
    for key, value in pairs(problem) do part[key] = value end
    part.batch, part.is_block = size, true
    part.query_rows = problem.query_rows // problem.batch * size
    part.key_rows = problem.key_rows // problem.batch * size
    return part
end

-- Makes `built`, planned for `size` items, the plan of the whole batch: built.item_block =
-- {items, count, strides}, strides: floats (or elements) from block to block of every tensor of
-- the call that has a row per item.
function items.repeat_plan(built, problem, size)
    local count <const> = problem.batch // size
    local L <const>, S <const>, H <const> = problem.seq_len, problem.kv_len, problem.heads
    local keys <const> = problem.kv_heads * S * problem.head_dim
    local values <const> = problem.kv_heads * S * problem.v_head_dim
    local tensor <const> = problem.mask_tensor
    local per_item <const> = {
        x = problem.op == "mha" and problem.x_rows * problem.d_model or 0,
        context = problem.cross and S * problem.kv_dim or 0,
        q = H * L * problem.head_dim, k = keys, v = values, k_cache = keys, v_cache = values,
        kv_lengths = 1, key_keep = S,
        mask_keep = tensor and tensor.batch or 0, mask_add = tensor and tensor.batch or 0,
        y = L * (problem.output_projection and problem.d_model or H * problem.v_head_dim),
        weights_out = L * S * (problem.return_weights == "per_head" and H or 1),
    }
    local strides <const> = {}
    for name, floats in pairs(per_item) do strides[name] = floats * size end
    built.item_block = { items = size, count = count, strides = strides }
    built.part_floats = numbers.round_up(built.workspace_bytes // numbers.FLOAT_BYTES,
        numbers.LINE_FLOATS)
    built.part_bytes = built.part_floats * numbers.FLOAT_BYTES
    built.workspace_bytes = built.part_bytes
    built.phases = 1
    built.projection_flops = built.projection_flops * count
    built.core_flops = built.core_flops * count
    built.form_cycles = built.form_cycles * count
    built.cycles = math.ceil(built.form_cycles)
    return built
end

return items
