-- Chooses how a folded problem is computed: tiles, layouts, buffers, unrolling.
-- In: problem with fold, the ISA's numbers (lanes, registers, target). Out: plan, pure printable
-- data. Knows registers, caches and budgets; prints no C and names no instruction.
-- One module below gen/plan/ for each part: forms (of the layer), tiles, projection, qkv (which
-- products compute q, k, v), orientation (of attention: attention, which has context, dims, heads),
-- items, size.
local numbers <const> = require("gen.plan.numbers")
local projection <const> = require("gen.plan.projection")
local attention <const> = require("gen.plan.attention")
local forms <const> = require("gen.plan.forms")
local heads <const> = require("gen.plan.heads")
local items <const> = require("gen.plan.items")
local orientation <const> = require("gen.plan.orientation")
local qkv <const> = require("gen.plan.qkv")
local size <const> = require("gen.plan.size")

local plan <const> = {}

local FLOAT_BYTES <const> = numbers.FLOAT_BYTES
local ceil_div <const>, add_buffer <const> = numbers.ceil_div, numbers.add_buffer

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
        trial = isa_numbers.trial,
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

    local fold <const>, along_heads <const> = problem.fold, problem.along_heads
    local score_dim <const>, value_dim <const> = forms.widths(problem, fold)
    built.score_dim, built.value_dim = score_dim, value_dim
    built.products = {}
    -- Appends a planned product: packed behind the ones before.
    local function add_product(planned)
        packed = planned.packed_end
        built.products[#built.products + 1] = planned
        return planned
    end

    -- Keys and values in a tensor of the caller, [B, G, S, width].
    local function given(argument, width)
        return { argument = argument, batch = G * S * width, head = S * width, row = width }
    end
    if mha then
        local input <const> = problem.cross and "context" or "x"
        for _, planned in ipairs(qkv.build(problem, machine, bounded, straight, packed)) do
            add_product(planned)
            planned.offset = add_buffer(shared, planned.name, planned.layout.floats,
                planned.meaning)
            built.projections[#built.projections + 1] = planned
            for _, part in ipairs(planned.parts) do built[part.name] = part.layout end
        end
        -- rows of the input, where they stand for the keys or values of all heads
        local rows <const> = { argument = input, batch = S * problem.kv_dim, head = 0,
            row = problem.kv_dim }
        if fold.keys ~= "projected" then built.k = rows end
        if fold.values ~= "projected" then built.v = rows end
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
    if fold.keys == "lifted" then
        -- q' = Wk^T . q, head by head
        local head <const> = ceil_div(score_dim, lanes) * lanes
        local layout <const> = { batch = L * H * head, head = head, row = H * head,
            buffer = "lifted" }
        built.lift = add_product(projection.build_blocks("lift", "project", problem, machine,
            { rows = problem.query_rows, heads = problem.group, blocks = G, depth = D,
                columns = score_dim, packed_base = packed, straight = straight,
                input = built.q, output = layout, padded = true }))
        built.lift.input, built.lift.output = "q", "lifted"
        add_buffer(shared, "lifted", problem.query_rows * layout.row,
            "queries times the key weights, [row][head][column of the input]")
        built.q = layout
    end

    if mha then
        built.out = { batch = L * H * value_dim, head = along_heads and 1 or value_dim,
            dim = along_heads and H or 1, row = H * value_dim }
    else
        built.out = { batch = H * L * V, head = L * V, row = V }
    end
    built.out.buffer = fold.values == "deferred" and "contexts"
        or problem.output_projection and "heads" or nil
    built.out.argument = not built.out.buffer and "y" or nil
    local out_width <const> = fold.values == "folded" and value_dim or V
    local attended <const>, q <const>, out <const> = attention.stack_heads(problem, built, lanes)
    built.q, built.out = q, out
    built.attention = orientation.choose(attended, machine,
        { score = score_dim, value = value_dim }, straight)
    built.attention.problem = attended
    if built.v.argument and value_dim % lanes ~= 0
        and built.attention.orientation == "queries" and built.attention.context_along_dims then
        -- Rows of values end in a partial vector: copied once into padded rows.
        local row <const> = ceil_div(value_dim, lanes) * lanes
        local rows <const> = problem.batch * (built.v.batch // value_dim)
        built.pad_values = { rows = rows, from = value_dim, to = row,
            argument = built.v.argument, with_projections = fold.values ~= "projected" }
        built.v = { buffer = "padded_v", batch = built.v.batch // value_dim * row,
            head = built.v.head // value_dim * row, row = row }
        add_buffer(shared, "padded_v", rows * row, "values, rows padded to whole vectors")
    end
    if fold.values == "deferred" then
        -- Wv for each head's context
        add_buffer(shared, "contexts", problem.query_rows * H * value_dim,
            "weighted inputs [row][head][column of the input]")
        built.defer = add_product(projection.build_blocks("defer", "project", problem, machine,
            { rows = problem.query_rows, heads = problem.group, blocks = G, depth = value_dim,
                columns = V, bias = fold.biases.v, packed_base = packed, straight = straight,
                input = { row = H * value_dim, head = value_dim },
                output = { row = H * V, head = V } }))
        built.defer.input = "contexts"
        built.defer.output = problem.output_projection and "heads" or nil
    end
    if problem.output_projection then
        local attention_plan <const> = built.attention
        built.output = add_product(projection.build("o", "output", problem, machine,
            { rows = problem.query_rows, depth = H * out_width, columns = problem.d_model,
                input_blocks = attention_plan.in_place and { rows = attention_plan.output_rows,
                    heads = H, items = attention_plan.items } or nil,
                items = problem.batch, bounded = bounded.o, bias = fold.biases.o,
                takes_rows = not problem.is_block,
                packed_base = packed, straight = straight }))
        built.output.interleaved = along_heads
        for _, group in ipairs(built.output.groups) do
            group.per_block, group.block_stride, group.panel_stride = 1, group.vectors * lanes, 0
            group.target, group.start = group.first_column, 0
            group.vector_offsets = {}
            for v = 0, group.vectors - 1 do group.vector_offsets[v + 1] = v * lanes end
        end
        built.concat_offset = add_buffer(shared, "heads", problem.query_rows * H * out_width,
            "concatenated heads " .. (attention_plan.in_place and "[vector][dim][row][head]"
                or along_heads and "[row][dim][head]" or "[row][head][dim]"))
    end

    built.part_buffers = orientation.part_buffers(attended, built.attention,
        { score = score_dim, value = value_dim })
    built.shared_buffers = shared
    built.part_offset = shared.floats
    built.part_bytes = built.part_buffers.floats * FLOAT_BYTES
    built.workspace_bytes = (shared.floats + built.part_buffers.floats) * FLOAT_BYTES
    built.packed_floats = packed
    built.packed_bytes = packed * FLOAT_BYTES
    projection.choose_prefetch(built)
    built.phases = (mha and 2 or 1) + (built.append and 1 or 0) + (built.output and 1 or 0)
        + (built.pad_values and not built.pad_values.with_projections and 1 or 0)
        + (built.lift and 1 or 0) + (built.defer and 1 or 0)

    -- Compilers spill and hoist: sixteen times the register file covers all frames of a call, and
    -- 6 KB where that is small (clang's scalar code reaches 4.4 KB); the fuzzer adds up what
    -- compilers report and fails beyond it.
    built.frame_bytes = math.max(6144, 16 * machine.registers * lanes * FLOAT_BYTES)
    built.ops = size.estimate_ops(built)
    built.code_bytes = built.ops * target.bytes_per_op
    built.compile_seconds = size.compile_seconds(built.ops)
    built.projection_flops, built.core_flops = forms.flops(problem, fold)
    built.form_cycles = forms.cycles(built)
    built.cycles = math.ceil(built.form_cycles)
    return built
end

-- A depth unrolling, prefetching, or blocks of items or keys asked for by hand are about loops.
local function forces_loops(problem)
    local scores <const> = problem.plan.scores or {}
    if problem.plan.layer or scores.prefetch then return true end
    for _, stage in ipairs({ "project", "scores", "context", "output" }) do
        if problem.plan[stage] and problem.plan[stage].unroll then return true end
    end
    return scores.key_block ~= nil and scores.key_block < problem.kv_len
end

-- The plan with loops: of the whole batch, or of blocks of its items one after the other.
local function build_loops(problem, isa_numbers)
    local whole <const> = build_plan(problem, isa_numbers, false)
    local together <const> = items.choose(problem, whole)
    if not together then return whole end
    return items.repeat_plan(build_plan(items.restrict(problem, together), isa_numbers, false),
        problem, together)
end

-- The plan of one form of the layer; see plan.build.
local function build_form(problem, isa_numbers)
    if problem.unroll == "tiles" or problem.unroll == "auto" and forces_loops(problem) then
        return build_loops(problem, isa_numbers)
    end
    local built <const> = build_plan(problem, isa_numbers, true)
    if built.code_bytes <= problem.code_budget then return built end
    if problem.unroll == "auto" then return build_loops(problem, isa_numbers) end
    numbers.refuse("unroll", "full", ("straight-line code for %s is predicted at %d bytes and "
        .. "%.0f s of compiling, over code_budget = %d"):format(isa_numbers.name,
            built.code_bytes, built.compile_seconds, problem.code_budget),
        'code_budget >= the predicted bytes, or unroll = "auto"')
end

-- The forms to plan, each with and without lanes along heads where those may be: list of
-- {form, along_heads}.
local function candidates(problem, machine)
    local forced <const> = orientation.forced(problem)
    local obstacle <const> = heads.obstacle(problem, machine.lanes)
    local list <const> = {}
    if forced == "heads" then
        for _, form in ipairs(problem.forms) do
            if heads.fits_form(form) then list[1] = { form = form, along_heads = true } end
        end
        if obstacle or #list == 0 then
            numbers.refuse("plan.scores.orientation", forced, "orientation \"heads\" "
                .. (obstacle or "needs projected keys and values"), '"queries" or "dims"')
        end
        return list
    end
    for _, form in ipairs(forms.candidates(problem)) do
        if not forced and not obstacle and heads.fits_form(form)
            and heads.stays(problem, problem.target.l1d or machine.target.l1d) then
            list[#list + 1] = { form = form, along_heads = true }
        end
        list[#list + 1] = { form = form }
    end
    return list
end

-- Plans `problem` (with fold) for an ISA's numbers {name, lanes, registers, target}; the config's
-- target numbers override the ISA's. unroll = "auto" is straight-line code where that fits
-- code_budget (short kernels lose more to loops than to instruction fetch), else loops around
-- unrolled tiles. Raises {errors = {…}} when a forced tile does not fit the registers or
-- unroll = "full" exceeds code_budget.
-- Of the legal forms of the layer (problem.forms), with lanes along heads or not, it takes the one
-- predicted to be fastest.
function plan.build(problem, isa_numbers)
    local plans <const>, chosen, failure = {}, nil, nil
    for _, candidate in ipairs(candidates(problem, isa_numbers)) do
        local one <const> = {}
        for key, value in pairs(problem) do one[key] = value end
        one.fold, one.along_heads = candidate.form, candidate.along_heads
        local ok <const>, built = xpcall(build_form, function(problem_found)
            return type(problem_found) == "table" and problem_found
                or debug.traceback(problem_found, 2)
        end, one, isa_numbers)
        if ok then
            plans[#plans + 1] = built
            if not chosen or built.form_cycles < chosen.form_cycles then chosen = built end
        elseif type(built) ~= "table" then
            error(built, 0)
        else
            failure = failure or built -- a refusal; another form may fit
        end
    end
    if not chosen then error(failure, 0) end
    local reasons <const> = chosen.problem.fold.reasons
    if problem.op == "mha" then
        table.insert(reasons, 1, forms.reason(chosen, plans))
    end
    return chosen
end

return plan
