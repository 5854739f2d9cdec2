-- Chooses how a folded problem is computed: tiles, layouts, buffers, unrolling.
-- In: problem with fold, the ISA's numbers (lanes, registers, target). Out: plan, pure printable
-- data. Knows registers, caches and budgets; prints no C and names no instruction.
-- One module below gen/plan/ for each part: tiles, projection, attention, size.
local numbers <const> = require("gen.plan.numbers")
local projection <const> = require("gen.plan.projection")
local attention <const> = require("gen.plan.attention")
local size <const> = require("gen.plan.size")

local plan <const> = {}

local FLOAT_BYTES <const> = numbers.FLOAT_BYTES
local ceil_div <const>, add_buffer <const> = numbers.ceil_div, numbers.add_buffer

local function matmul_flops(problem)
    local projections = 0
    if problem.op == "mha" then
        local hd <const>, gd <const> = problem.heads * problem.head_dim,
            problem.kv_heads * (problem.head_dim + problem.v_head_dim)
        projections = 2 * problem.query_rows * problem.d_model * hd
            + 2 * problem.key_rows * problem.kv_dim * gd
        if problem.output_projection then
            projections = projections
                + 2 * problem.query_rows * problem.heads * problem.v_head_dim * problem.d_model
        end
    end
    local pairs_seen = problem.seq_len * problem.kv_len
    local causal <const> = problem.causal
    if causal and not causal.by_length then
        pairs_seen = 0
        for query = 0, problem.seq_len - 1 do
            local visible <const> = query + 1 + causal.positive - causal.negative
            pairs_seen = pairs_seen + math.max(0, math.min(problem.kv_len, visible))
        end
    end
    local core <const> = 2 * problem.batch * problem.heads * pairs_seen
        * (problem.head_dim + problem.v_head_dim)
    return projections, core
end

-- Which projections end at an item's length: nothing reads the keys behind it, nor the values
-- unless an empty row averages all of them; padded queries are wanted unless told otherwise. A
-- cache's new tokens all lie within. Straight-line code has no loop to end early.
local function bounded_rows(problem, straight)
    local lengths <const> = problem.mask.lengths and not straight
    local queries <const> = lengths and problem.padded_queries == "zero"
    local keys <const> = lengths and problem.kv_cache ~= "append"
    return { q = queries, k = keys, v = keys and problem.empty_row ~= "uniform", o = queries }
end

-- The plan with loops, or without any (`straight`).
local function build_plan(problem, isa_numbers, straight)
    local target <const> = {}
    for key, value in pairs(isa_numbers.target) do target[key] = value end
    for key, value in pairs(problem.target) do target[key] = value end
    local machine <const> = { name = isa_numbers.name, lanes = isa_numbers.lanes,
        registers = isa_numbers.registers, target = target }
    local lanes <const> = machine.lanes
    local built <const> = { problem = problem, machine = machine, projections = {},
        straight = straight }
    local mha <const> = problem.op == "mha"
    local shared <const> = { floats = 0 }
    local packed = 0
    local bounded <const> = bounded_rows(problem, straight)
    local H <const>, G <const> = problem.heads, problem.kv_heads
    local D <const>, V <const> = problem.head_dim, problem.v_head_dim
    local L <const>, S <const> = problem.seq_len, problem.kv_len

    -- Keys and values in a tensor of the caller, [B, G, S, width].
    local function given(argument, width)
        return { argument = argument, batch = G * S * width, head = S * width, row = width }
    end
    if mha then
        local biases <const> = problem.fold.biases
        local N <const> = problem.new_keys
        local appends <const> = problem.kv_cache == "append"
        local specs <const> = {
            { name = "q", rows = problem.query_rows, depth = problem.d_model, heads = H, width = D,
                per_item = L, x_rows = problem.x_rows, first_row = problem.first_query,
                meaning = "queries" },
            { name = "k", rows = problem.key_rows, depth = problem.kv_dim, heads = G, width = D,
                per_item = N, meaning = appends and "new keys" or "keys" },
            { name = "v", rows = problem.key_rows, depth = problem.kv_dim, heads = G, width = V,
                per_item = N, meaning = appends and "new values" or "values" },
        }
        if N == 0 then specs[3], specs[2] = nil, nil end
        for _, spec in ipairs(specs) do
            local planned <const> = projection.build(spec.name, "project", problem, machine,
                { rows = spec.rows, depth = spec.depth, columns = spec.heads * spec.width,
                    items = problem.batch, input_rows = spec.x_rows, first_row = spec.first_row,
                    head_width = spec.width, straight = straight, bounded = bounded[spec.name],
                    bias = biases[spec.name], packed_base = packed })
            packed = planned.packed_end
            planned.source = (spec.name == "q" or not problem.cross) and "x" or "context"
            local layout <const> = projection.layout(planned, spec.width, spec.heads,
                spec.per_item, lanes)
            projection.target_panels(planned, layout, spec.width, lanes)
            planned.layout = layout
            layout.buffer = spec.name
            planned.offset = add_buffer(shared, spec.name, layout.floats, spec.meaning
                .. (layout.kind == "heads" and ", head-major [head][row][dim]"
                    or ", [row][column]"))
            built.projections[#built.projections + 1] = planned
            built[spec.name] = layout
        end
    else
        built.q = { argument = "q", batch = H * L * D, head = L * D, row = D }
    end
    if problem.kv_cache == "append" then
        -- the new rows go to their places in the caller's tensors, which hold the others
        local k_cache <const>, v_cache <const> = given("k_cache", D), given("v_cache", V)
        built.append = { { name = "keys", from = built.k, to = k_cache },
            { name = "values", from = built.v, to = v_cache } }
        built.k, built.v = k_cache, v_cache
    elseif not built.k then
        built.k, built.v = given("k", D), given("v", V)
    end
    if built.v.argument and V % lanes ~= 0 then
        -- Rows of values end in a partial vector: copied once into padded rows.
        local row <const> = ceil_div(V, lanes) * lanes
        built.pad_values = { rows = problem.batch * G * S, from = V, to = row,
            argument = built.v.argument }
        built.v = { buffer = "padded_v", batch = G * S * row, head = S * row, row = row }
        add_buffer(shared, "padded_v", problem.batch * G * S * row,
            "values, rows padded to whole vectors")
    end

    built.score_dim, built.value_dim = D, V
    built.attention = attention.build(problem, machine, { score = D, value = V }, straight)
    if mha then
        built.out = { batch = L * H * V, head = V, row = H * V }
    else
        built.out = { batch = H * L * V, head = L * V, row = V }
    end
    if problem.output_projection then
        built.output = projection.build("o", "output", problem, machine,
            { rows = problem.query_rows, depth = H * V, columns = problem.d_model,
                items = problem.batch, bounded = bounded.o, bias = problem.fold.biases.o,
                packed_base = packed, straight = straight })
        packed = built.output.packed_end
        for _, group in ipairs(built.output.groups) do
            group.per_block, group.block_stride, group.panel_stride = 1, group.vectors * lanes, 0
            group.target, group.start = group.first_column, 0
            group.vector_offsets = {}
            for v = 0, group.vectors - 1 do group.vector_offsets[v + 1] = v * lanes end
        end
        built.concat_offset = add_buffer(shared, "heads", problem.query_rows * H * V,
            "concatenated heads [row][head][dim]")
    end

    built.part_buffers = attention.part_buffers(problem, built.attention,
        { score = D, value = V })
    built.shared_buffers = shared
    built.part_offset = shared.floats
    built.part_bytes = built.part_buffers.floats * FLOAT_BYTES
    built.workspace_bytes = (shared.floats + built.part_buffers.floats) * FLOAT_BYTES
    built.packed_floats = packed
    built.packed_bytes = packed * FLOAT_BYTES
    projection.choose_prefetch(built)
    built.phases = (mha and 2 or 1) + (built.append and 1 or 0) + (built.pad_values and 1 or 0)
        + (built.output and 1 or 0)

    -- Compilers spill and hoist: sixteen times the register file covers the largest frame seen
    -- (14.5 KB of 32 KB with AVX-512); the fuzzer compiles with this bound as an error.
    built.frame_bytes = math.max(4096, 16 * machine.registers * lanes * FLOAT_BYTES)
    built.ops = size.estimate_ops(built)
    built.code_bytes = built.ops * target.bytes_per_op
    built.compile_seconds = size.compile_seconds(built.ops)
    built.projection_flops, built.core_flops = matmul_flops(problem)
    return built
end

-- A depth unrolling asked for by hand is about loops.
local function forces_loops(problem)
    for _, stage in ipairs({ "project", "scores", "context", "output" }) do
        if problem.plan[stage] and problem.plan[stage].unroll then return true end
    end
    return false
end

-- Plans `problem` (with fold) for an ISA's numbers {name, lanes, registers, target}; the config's
-- target numbers override the ISA's. unroll = "auto" is straight-line code where that fits
-- code_budget (short kernels lose more to loops than to instruction fetch), else loops around
-- unrolled tiles. Raises {errors = {…}} when a forced tile does not fit the registers or
-- unroll = "full" exceeds code_budget.
function plan.build(problem, isa_numbers)
    if problem.unroll == "tiles" or problem.unroll == "auto" and forces_loops(problem) then
        return build_plan(problem, isa_numbers, false)
    end
    local built <const> = build_plan(problem, isa_numbers, true)
    if built.code_bytes <= problem.code_budget then return built end
    if problem.unroll == "auto" then return build_plan(problem, isa_numbers, false) end
    numbers.refuse("unroll", "full", ("straight-line code for %s is predicted at %d bytes and "
        .. "%.0f s of compiling, over code_budget = %d"):format(isa_numbers.name,
            built.code_bytes, built.compile_seconds, problem.code_budget),
        'code_budget >= the predicted bytes, or unroll = "auto"')
end

return plan
