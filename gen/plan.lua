-- Chooses how a folded problem is computed: tiles, layouts, buffers, unrolling.
-- In: problem with fold, the ISA's numbers (lanes, registers, target). Out: plan, pure printable
-- data. Knows registers, caches and budgets; prints no C and names no instruction.
local plan <const> = {}

local FLOAT_BYTES <const> = 4
local LINE_FLOATS <const> = 16

local function ceil_div(a, b) return (a + b - 1) // b end

local function round_up(a, b) return ceil_div(a, b) * b end

-- Splits `total` into the fewest parts of at most `most`, as even as possible:
-- list of {count, size}, larger first.
local function split_even(total, most)
    local parts <const> = ceil_div(total, most)
    local small <const>, larger <const> = total // parts, total % parts
    local groups <const> = {}
    if larger > 0 then groups[#groups + 1] = { count = larger, size = small + 1 } end
    groups[#groups + 1] = { count = parts - larger, size = small }
    return groups
end

-- ---- Register tiles ------------------------------------------------------------------------

-- Registers a tile keeps live: accumulators, one row of B, one broadcast of A.
function plan.tile_registers(rows, vectors) return rows * vectors + vectors + 1 end

-- Bytes a cycle that L2 delivers while the FMA pipes are busy.
local L2_BANDWIDTH <const> = 32

-- Cycles of one step along the depth: the FMA pipes, the load ports or the FMA latency decide. Half
-- a cycle stands for loop and address work that small tiles repeat more often; a little more for
-- every load, for panels of B that come from L2 again for every row tile, and for a tile that
-- leaves
-- few registers to spare: gcc then spills accumulators between steps (AVX2 6x2: 73 % of the peak
-- where 5x2 reaches 91 %; clang 91 and 90 %).
local function step_cycles(rows, vectors, depth, machine)
    local target <const> = machine.target
    local loads <const> = rows + vectors
    local spare <const> = machine.registers - plan.tile_registers(rows, vectors)
    local tight <const> = spare < 3 and 0.5 or 0
    local step_bytes <const> = vectors * machine.lanes * FLOAT_BYTES
    local stream <const> = depth * step_bytes > target.l1d // 2 and step_bytes / L2_BANDWIDTH or 0
    return math.max(rows * vectors / target.fma_pipes, loads / target.load_ports,
        target.fma_latency) + 0.5 + 0.02 * loads + tight + 0.1 * stream
end

local function product_cycles(row_groups, column_groups, depth, machine)
    local cycles = 0.0
    for _, r in ipairs(row_groups) do
        for _, c in ipairs(column_groups) do
            local tile <const> = depth * step_cycles(r.size, c.size, depth, machine)
                + 2 * r.size * c.size
            cycles = cycles + r.count * c.count * tile
        end
    end
    return cycles
end

-- Whether every panel holds whole heads or divides one evenly.
local function panels_fit_heads(column_groups, head_width, lanes)
    if head_width % lanes ~= 0 then return false end
    local column = 0
    for _, group in ipairs(column_groups) do
        local width <const> = group.size * lanes
        local unit <const> = math.min(width, head_width)
        if math.max(width, head_width) % unit ~= 0 or column % unit ~= 0 then return false end
        column = column + group.count * width
    end
    return true
end

local function refuse(key, value, message, allowed)
    error({ errors = { { key = key, value = value, message = message, allowed = allowed } } }, 0)
end

-- The cheapest legal tile for rows x vectors of a product of the given depth, or the user's.
-- split_rows(rows) gives the row groups for a tile height.
local function choose_tile(name, problem, machine, shape, split_rows)
    local forced <const> = problem.plan[name] or {}
    local best
    for rows = forced.rows or 1, forced.rows or machine.registers do
        for vectors = forced.vectors or 1, forced.vectors or 8 do
            if plan.tile_registers(rows, vectors) <= machine.registers then
                local row_groups <const> = split_rows(rows)
                local column_groups <const> = split_even(shape.vectors, vectors)
                local cycles = product_cycles(row_groups, column_groups, shape.depth,
                    machine)
                -- Contiguous heads are worth more than the last per cent of a tile.
                if shape.head_width and not panels_fit_heads(column_groups, shape.head_width,
                    machine.lanes) then
                    cycles = cycles * 1.03
                end
                if not best or cycles < best.cycles - 1e-9 then
                    best = { rows = rows, vectors = vectors, row_groups = row_groups,
                        column_groups = column_groups, cycles = cycles }
                end
            end
        end
    end
    if not best then
        local rows <const>, vectors <const> = forced.rows or 1, forced.vectors or 1
        refuse("plan." .. name, ("{rows=%d, vectors=%d}"):format(rows, vectors),
            ("needs %d vector registers"):format(plan.tile_registers(rows, vectors)),
            ("rows * vectors + vectors + 1 <= %d on %s"):format(machine.registers, machine.name))
    end
    return best
end

-- ---- Projections ---------------------------------------------------------------------------

-- Groups of equal weight panels with their first panel, column and packed offset (floats).
local function panel_groups(column_groups, lanes, depth, has_bias, base)
    local groups <const>, panel, column, offset = {}, 0, 0, base
    for _, group in ipairs(column_groups) do
        local width <const> = group.size * lanes
        local floats <const> = width * (depth + (has_bias and 1 or 0))
        groups[#groups + 1] = { count = group.count, vectors = group.size, first_panel = panel,
            first_column = column, offset = offset, panel_floats = floats }
        panel = panel + group.count
        column = column + group.count * width
        offset = offset + group.count * floats
    end
    return groups, offset
end

local function depth_unroll(name, problem, depth, tile_area, straight)
    local forced <const> = problem.plan[name] and problem.plan[name].unroll
    if straight then return depth end
    if forced then return math.min(forced, depth) end
    if problem.unroll == "tiles" then return 1 end
    -- enough multiply-adds a turn to hide the loop, no more: every step costs code
    local wanted <const> = tile_area >= 48 and 1 or tile_area >= 24 and 2 or tile_area >= 12 and 4
        or 8
    return depth * tile_area <= 128 and depth or math.min(wanted, depth)
end

local function make_projection(name, stage, problem, machine, shape)
    local lanes <const> = machine.lanes
    shape.vectors = ceil_div(shape.columns, lanes)
    local tile <const> = choose_tile(stage, problem, machine, shape,
        function(rows) return split_even(shape.rows, rows) end)
    local groups <const>, packed_end <const> = panel_groups(tile.column_groups, lanes, shape.depth,
        shape.bias, shape.packed_base)
    return {
        name = name, rows = shape.rows, depth = shape.depth, columns = shape.columns,
        padded_columns = shape.vectors * lanes, bias = shape.bias, groups = groups,
        panels = groups[#groups].first_panel + groups[#groups].count,
        row_groups = tile.row_groups, tiles = ceil_div(shape.rows, tile.rows),
        tile_rows = tile.rows, tile_vectors = tile.vectors,
        cycles = tile.cycles, packed_end = packed_end,
        unroll = depth_unroll(stage, problem, shape.depth, tile.rows * tile.vectors,
            shape.straight),
        straight = shape.straight,
    }
end

-- Weights that do not stay in L2 from call to call arrive late at the start of every panel: each
-- panel
-- then asks for the next one.
local function choose_prefetch(built)
    local stay <const> = built.packed_bytes <= built.machine.target.l2 // 2
    local list <const> = { table.unpack(built.projections) }
    list[#list + 1] = built.output
    for _, projection in ipairs(list) do
        projection.prefetch = not stay and not built.straight and projection.tiles > 1
    end
end

-- ---- Layouts -------------------------------------------------------------------------------

-- Where element (batch, head, row, d) of a projected tensor lives, in floats.
-- Head-major when heads are whole vectors and no panel straddles a head unevenly: each head is then
-- contiguous. Otherwise dense rows, with an odd number of cache lines a row so that the rows of one
-- head spread over all cache sets.
local function projected_layout(projection, head_width, heads, rows_per_item, lanes)
    local sizes <const> = {}
    for i, group in ipairs(projection.groups) do
        sizes[i] = { count = group.count, size = group.vectors }
    end
    if panels_fit_heads(sizes, head_width, lanes) then
        return { kind = "heads", batch = rows_per_item * head_width,
            head = projection.rows * head_width, row = head_width,
            floats = projection.rows * head_width * heads }
    end
    local stride = round_up(projection.padded_columns, LINE_FLOATS)
    if stride // LINE_FLOATS % 2 == 0 then stride = stride + LINE_FLOATS end
    -- A vector load of the last head may run past its row; the tail keeps it inside the buffer.
    return { kind = "rows", batch = rows_per_item * stride, head = head_width, row = stride,
        floats = projection.rows * stride + LINE_FLOATS }
end

-- The output of a projection, per group of panels: offset of panel p's vector v is
-- (p // heads_per_..)… reduced to: block = p // per_block, at = p % per_block.
local function panel_targets(projection, layout, head_width, lanes)
    for _, group in ipairs(projection.groups) do
        local width <const> = group.vectors * lanes
        local vector_offsets <const> = {}
        if layout.kind == "rows" then
            group.per_block, group.block_stride, group.panel_stride = 1, width, 0
            group.target = group.first_column
            for v = 0, group.vectors - 1 do vector_offsets[v + 1] = v * lanes end
        elseif width <= head_width then
            -- several panels a head; the group may start inside one
            local per_head <const> = head_width // width
            assert(group.first_column % width == 0, "panels of a group are aligned to their width")
            group.per_block, group.block_stride, group.panel_stride = per_head, layout.head, width
            group.start = group.first_column // width
            group.target = 0
            for v = 0, group.vectors - 1 do vector_offsets[v + 1] = v * lanes end
        else
            -- several heads a panel
            local heads_per_panel <const> = width // head_width
            group.per_block, group.panel_stride = 1, 0
            group.block_stride = heads_per_panel * layout.head
            group.target = group.first_column // head_width * layout.head
            for v = 0, group.vectors - 1 do
                local column <const> = v * lanes
                vector_offsets[v + 1] = column // head_width * layout.head + column % head_width
            end
        end
        group.start = group.start or 0
        group.vector_offsets = vector_offsets
    end
end

-- ---- Attention -----------------------------------------------------------------------------

-- Query blocks: {first, count, vectors, queries}; only the last may hold fewer queries than lanes.
local function query_blocks(seq_len, lanes, groups)
    local blocks <const>, first = {}, 0
    for _, group in ipairs(groups) do
        local width <const> = group.size * lanes
        local whole <const> = math.min(group.count, (seq_len - first) // width)
        if whole > 0 then
            blocks[#blocks + 1] = { first = first, count = whole, vectors = group.size,
                queries = width }
            first = first + whole * width
        end
        if whole < group.count then
            blocks[#blocks + 1] = { first = first, count = 1, vectors = group.size,
                queries = seq_len - first }
            first = seq_len
        end
    end
    return blocks
end

local function make_attention(problem, machine, straight)
    local lanes <const> = machine.lanes
    local range_loops <const> = problem.key_range and not straight
    local function split_keys(rows)
        if not range_loops then return split_even(problem.kv_len, rows) end
        local whole <const>, rest <const> = problem.kv_len // rows, problem.kv_len % rows
        local groups <const> = {}
        if whole > 0 then groups[#groups + 1] = { count = whole, size = rows } end
        if rest > 0 then groups[#groups + 1] = { count = 1, size = rest } end
        return groups
    end
    local scores <const> = choose_tile("scores", problem, machine,
        { vectors = ceil_div(problem.seq_len, lanes), depth = problem.head_dim }, split_keys)
    local blocks <const> = query_blocks(problem.seq_len, lanes, scores.column_groups)

    local value_vectors <const> = ceil_div(problem.v_head_dim, lanes)
    local block_queries <const> = blocks[1].queries
    local context <const> = choose_tile("context", problem, machine,
        { vectors = value_vectors, depth = problem.kv_len },
        function(rows) return split_even(block_queries, rows) end)
    local count, widest = 0, 0
    for _, block in ipairs(blocks) do
        block.first_index = count
        block.width = block.vectors * lanes
        block.row_groups = split_even(block.queries, context.rows)
        count = count + block.count
        widest = math.max(widest, block.width)
    end
    return {
        blocks = blocks, block_count = count, width = widest,
        key_groups = scores.row_groups, key_rows = scores.rows, range_loops = range_loops,
        scores_vectors = scores.vectors,
        scores_unroll = depth_unroll("scores", problem, problem.head_dim,
            scores.rows * scores.vectors, straight),
        context_rows = context.rows, column_groups = context.column_groups,
        context_vectors = context.vectors,
        context_unroll = depth_unroll("context", problem, problem.kv_len,
            context.rows * context.vectors, straight),
        value_vectors = value_vectors,
        straight = straight,
        cycles = (scores.cycles + context.cycles * count) * problem.batch * problem.heads,
        mask_panel = problem.mask_tensor ~= nil and problem.mask_tensor.per_query,
        repair = problem.masked,
        -- what a block computes depends on where its queries stand, not only on its pointers
        by_query = problem.causal ~= nil or problem.padded_queries == "zero",
        heads_inside = problem.return_weights == "mean",
    }
end

-- ---- Buffers -------------------------------------------------------------------------------

-- Appends a named buffer and returns its offset in floats; every buffer starts on a cache line.
local function add_buffer(list, name, floats, meaning)
    local offset <const> = list.floats
    list[#list + 1] = { name = name, offset = offset, floats = floats, meaning = meaning }
    list.floats = offset + round_up(floats, LINE_FLOATS)
    return offset
end

local function part_buffers(problem, attention)
    local list <const> = { floats = 0 }
    add_buffer(list, "queries", problem.head_dim * attention.width,
        "query block, transposed: [head_dim][queries]")
    add_buffer(list, "scores", problem.kv_len * attention.width,
        "logits, then weights before division: [kv_len][queries]")
    add_buffer(list, "maxima", attention.width, "reference maximum of each query")
    add_buffer(list, "inverse_sums", attention.width, "1 / sum of weights of each query")
    if attention.mask_panel then
        add_buffer(list, "mask_panel", problem.kv_len * attention.width,
            "mask of the query block, transposed: [kv_len][queries]")
    end
    return list
end

-- ---- Code size -----------------------------------------------------------------------------

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

-- The panels of a group share one function, and so do equal row tiles.
local function projection_ops(projection)
    local groups <const> = {}
    for i, group in ipairs(projection.groups) do groups[i] = { count = 1, size = group.vectors } end
    local calls <const> = projection.straight and 6 * projection.panels * projection.tiles or 0
    return product_ops(projection.row_groups, groups, projection.unroll, false) + calls
end

local function estimate_ops(built)
    local problem <const>, attention <const> = built.problem, built.attention
    local ops = 40
    local straight <const> = built.straight
    for _, projection in ipairs(built.projections) do
        ops = ops + projection_ops(projection)
    end
    if built.output then ops = ops + projection_ops(built.output) end
    -- Straight-line functions are shared by all batch items and heads, not by query blocks whose
    -- static mask differs.
    for _, block in ipairs(attention.blocks) do
        local copies <const> = built.straight and attention.by_query and block.count or 1
        local vectors <const> = { { count = 1, size = block.vectors } }
        local variants <const> = attention.range_loops and 2 or 1
        ops = ops + copies * (variants * product_ops(attention.key_groups, vectors,
                attention.scores_unroll, straight)
            + product_ops(block.row_groups, attention.column_groups, attention.context_unroll,
                straight))
        if straight then ops = ops + 10 * problem.batch * problem.heads * block.count end
        ops = ops + copies * block.vectors
            * (straight and 14 * problem.kv_len + 3 * problem.head_dim or 40)
        if attention.repair then
            ops = ops + copies * (straight and 3 * problem.kv_len * attention.value_vectors or 60)
        end
    end
    return ops
end

-- Seconds gcc -O3 needs, from straight-line AVX2 functions of 500 to 2 000 statements.
local function compile_seconds(ops) return 0.15 + 0.00035 * ops end

-- ---- The plan ------------------------------------------------------------------------------

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
    local H <const>, G <const> = problem.heads, problem.kv_heads
    local D <const>, V <const> = problem.head_dim, problem.v_head_dim
    local L <const>, S <const> = problem.seq_len, problem.kv_len

    if mha then
        local biases <const> = problem.fold.biases
        local specs <const> = {
            { name = "q", rows = problem.query_rows, depth = problem.d_model, heads = H, width = D,
                per_item = L, meaning = "queries" },
            { name = "k", rows = problem.key_rows, depth = problem.kv_dim, heads = G, width = D,
                per_item = S, meaning = "keys" },
            { name = "v", rows = problem.key_rows, depth = problem.kv_dim, heads = G, width = V,
                per_item = S, meaning = "values" },
        }
        for _, spec in ipairs(specs) do
            local projection <const> = make_projection(spec.name, "project", problem, machine,
                { rows = spec.rows, depth = spec.depth, columns = spec.heads * spec.width,
                    head_width = spec.width, straight = straight,
                    bias = biases[spec.name], packed_base = packed })
            packed = projection.packed_end
            projection.source = (spec.name == "q" or not problem.cross) and "x" or "context"
            local layout <const> = projected_layout(projection, spec.width, spec.heads,
                spec.per_item, lanes)
            panel_targets(projection, layout, spec.width, lanes)
            projection.layout = layout
            projection.offset = add_buffer(shared, spec.name, layout.floats, spec.meaning
                .. (layout.kind == "heads" and ", head-major [head][row][dim]"
                    or ", [row][column]"))
            built.projections[#built.projections + 1] = projection
            built[spec.name] = layout
        end
    else
        built.q = { batch = H * L * D, head = L * D, row = D }
        built.k = { batch = G * S * D, head = S * D, row = D }
        if V % lanes == 0 then
            built.v = { batch = G * S * V, head = S * V, row = V }
        else
            -- Rows of values end in a partial vector: copied once into padded rows.
            local row <const> = ceil_div(V, lanes) * lanes
            built.v = { batch = G * S * row, head = S * row, row = row }
            built.pad_values = { rows = problem.batch * G * S, from = V, to = row,
                offset = add_buffer(shared, "v", problem.batch * G * S * row,
                    "values, rows padded to whole vectors") }
        end
    end

    built.attention = make_attention(problem, machine, straight)
    if mha then
        built.out = { batch = L * H * V, head = V, row = H * V }
    else
        built.out = { batch = H * L * V, head = L * V, row = V }
    end
    if problem.output_projection then
        built.output = make_projection("o", "output", problem, machine,
            { rows = problem.query_rows, depth = H * V, columns = problem.d_model,
                bias = problem.fold.biases.o, packed_base = packed, straight = straight })
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

    built.part_buffers = part_buffers(problem, built.attention)
    built.shared_buffers = shared
    built.part_offset = shared.floats
    built.part_bytes = built.part_buffers.floats * FLOAT_BYTES
    built.workspace_bytes = (shared.floats + built.part_buffers.floats) * FLOAT_BYTES
    built.packed_floats = packed
    built.packed_bytes = packed * FLOAT_BYTES
    choose_prefetch(built)
    built.phases = (mha and 2 or 1) + (built.output and 1 or 0) + (built.pad_values and 1 or 0)

    -- Compilers spill and hoist: sixteen times the register file covers the largest frame seen
    -- (14.5 KB of 32 KB with AVX-512); the fuzzer compiles with this bound as an error.
    built.frame_bytes = math.max(4096, 16 * machine.registers * lanes * FLOAT_BYTES)
    built.ops = estimate_ops(built)
    built.code_bytes = built.ops * target.bytes_per_op
    built.compile_seconds = compile_seconds(built.ops)
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
    refuse("unroll", "full", ("straight-line code for %s is predicted at %d bytes and %.0f s of "
        .. "compiling, over code_budget = %d"):format(isa_numbers.name, built.code_bytes,
        built.compile_seconds, problem.code_budget),
        'code_budget >= the predicted bytes, or unroll = "auto"')
end

return plan
