-- Register tiles: how many registers one needs, what it costs on a machine, which is the cheapest.
-- Knows registers, pipes and caches; not what the product is for.
local numbers <const> = require("gen.plan.numbers")

local tiles <const> = {}

local FLOAT_BYTES <const> = numbers.FLOAT_BYTES
local split_even <const> = numbers.split_even

-- Registers a tile keeps live: accumulators, one row of B, one broadcast of A. A single row uses
-- every vector of B once, so that it can come with the multiply-add.
function tiles.tile_registers(rows, vectors)
    return rows == 1 and vectors + 2 or rows * vectors + vectors + 1
end

-- Registers to spare with which gcc spills no accumulator however far the depth is unrolled. With
-- fewer it moves loads of later steps ahead and does from four steps a turn on (AVX2 6x2); with
-- none it leaves B in memory, and does not (4x3).
local ENOUGH_SPARE <const>, TIGHT_UNROLL <const> = 3, 2
local FEW_REGISTERS <const> = numbers.FEW_REGISTERS

local function spare_registers(rows, vectors, machine)
    return machine.registers - tiles.tile_registers(rows, vectors)
end

-- Bytes a cycle that L2 delivers while the FMA pipes are busy.
local L2_BANDWIDTH <const> = 32

-- What a step of few accumulators takes beyond the FMA latency: nothing hides a late load.
local SLACK <const> = 0.15

-- What a step costs where B is a panel of weights, one stream from beyond L1: each accumulator less
-- than half as many again as hide the FMA latency (AVX2: 2x4 and 4x2 take 8 % longer than 4x3 in
-- 2x4x64; 3x3 8 % and 5x2 6 % for 1000 rows of 120; TinyBERT's 6x1 six cycles), a tile that leaves
-- no register, and a cycle of L2's.
local LATE_LOADS <const>, NO_SPARE <const>, PANEL_STREAM <const> = 0.2, 0.22, 0.03

-- The last two where B is something else, or (the first) registers are many.
local NO_SPARE_ELSE <const>, STREAM_ELSE <const> = 0.5, 0.1

-- Cycles of one step along the depth: the FMA pipes, the load ports or the FMA latency decide. Half
-- a cycle stands for loop and address work that small tiles repeat more often; a little more for
-- every load, for panels of B that come from L2 again for every row tile, and for a tile that
-- leaves few registers to spare: of 16 the best tiles do, of 32 others are as good.
local function step_cycles(rows, vectors, depth, machine, is_panel)
    local target <const> = machine.target
    local loads <const> = rows + vectors
    local spare <const> = spare_registers(rows, vectors, machine)
    local tight <const> = spare >= ENOUGH_SPARE and 0
        or spare > 0 and machine.registers <= FEW_REGISTERS and 0.08
        or is_panel and machine.registers <= FEW_REGISTERS and NO_SPARE or NO_SPARE_ELSE
    local step_bytes <const> = vectors * machine.lanes * FLOAT_BYTES
    local stream <const> = depth * step_bytes > target.l1d // 2 and step_bytes / L2_BANDWIDTH or 0
    local needed <const> = target.fma_latency * target.fma_pipes
    local late <const> = is_panel
        and LATE_LOADS * math.max(0, needed + needed // 2 - rows * vectors) or 0
    return math.max(rows * vectors / target.fma_pipes, loads / target.load_ports,
        target.fma_latency + SLACK) + 0.5 + 0.02 * loads + tight
        + (is_panel and PANEL_STREAM or STREAM_ELSE) * stream + late
end

-- Cycles that a tile waits for its last exp2, and that each accumulator beyond twice those the FMA
-- latency needs costs every other one where masks and exp2 follow: their chains fill the scheduler,
-- and the next tile's products wait (AVX-512, GPT-2: 12x2 is 3 % of the attention behind 8x2, AVX2,
-- stories: 4x2 as much behind 5x2; without masks such tiles are within 1 %).
local DRAIN <const>, CROWDING <const> = 15, 0.2

local function masking_cycles(rows, vectors, machine)
    local needed <const> = 2 * machine.target.fma_latency * machine.target.fma_pipes
    return DRAIN + CROWDING * rows * vectors * math.max(0, rows * vectors - needed)
end

-- Predicted cycles of a product cut into tiles; is_masked: masks and exp2 follow each; is_panel: B
-- is a panel of weights (not for one lane: of single floats compilers make vectors of their own).
function tiles.cycles(row_groups, column_groups, depth, machine, is_masked, is_panel)
    local cycles = 0.0
    for _, r in ipairs(row_groups) do
        for _, c in ipairs(column_groups) do
            local tile <const> = depth * step_cycles(r.size, c.size, depth, machine, is_panel)
                + 2 * r.size * c.size
                + (is_masked and masking_cycles(r.size, c.size, machine) or 0)
            cycles = cycles + r.count * c.count * tile
        end
    end
    return cycles
end

-- Whether every panel holds whole heads or divides one evenly.
function tiles.panels_fit_heads(column_groups, head_width, lanes)
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

-- The cheapest legal tile for rows x vectors of a product of the given depth, or the user's.
-- split_rows(rows) gives the row groups for a tile height; shape.sums: how many accumulators a tile
-- may have where others need registers beside it; shape.computed(rows, column_groups): the fraction
-- of the product that is computed in such tiles (nil: all); shape.lag(column_groups): what such
-- columns cost when they are shared out, as a fraction (nil: nothing); shape.is_masked: masks and
-- exp2 follow; shape.row_unit: tiles have a multiple of so many rows.
function tiles.choose(name, problem, machine, shape, split_rows)
    local forced <const> = problem.plan[name] or {}
    local best
    local unit <const> = shape.row_unit or 1
    for rows = forced.rows or unit, forced.rows or machine.registers, unit do
        for vectors = forced.vectors or 1, forced.vectors or 8 do
            local fits <const> = tiles.tile_registers(rows, vectors) <= machine.registers
            if fits and (forced.rows or forced.vectors or rows * vectors
                <= (shape.sums or math.huge)) then
                local row_groups <const> = split_rows(rows)
                local column_groups <const> = split_even(shape.vectors, vectors)
                local cycles = tiles.cycles(row_groups, column_groups, shape.depth,
                    machine, shape.is_masked, shape.is_panel)
                -- Contiguous heads are worth more than the last per cent of a tile.
                if shape.head_width and not tiles.panels_fit_heads(column_groups, shape.head_width,
                    machine.lanes) then
                    cycles = cycles * 1.03
                end
                local cost = shape.computed and cycles * shape.computed(rows, column_groups)
                    or cycles
                if shape.lag then cost = cost * (1 + shape.lag(column_groups)) end
                if not best or cost < best.cost - 1e-9 then
                    best = { cost = cost, rows = rows, vectors = vectors, row_groups = row_groups,
                        column_groups = column_groups, cycles = cycles }
                end
            end
        end
    end
    if not best then
        local rows <const>, vectors <const> = forced.rows or 1, forced.vectors or 1
        numbers.refuse("plan." .. name, ("{rows=%d, vectors=%d}"):format(rows, vectors),
            ("needs %d vector registers"):format(tiles.tile_registers(rows, vectors)),
            ("rows * vectors + vectors + 1 <= %d on %s"):format(machine.registers, machine.name))
    end
    return best
end

-- Steps of the depth per turn of the loop of a rows x vectors tile; the depth itself: no loop.
function tiles.depth_unroll(name, problem, machine, depth, rows, vectors, straight)
    local tile_area <const> = rows * vectors
    local forced <const> = problem.plan[name] and problem.plan[name].unroll
    if straight then return depth end
    if forced then return math.min(forced, depth) end
    if problem.unroll == "tiles" then return 1 end
    -- enough multiply-adds a turn to hide the loop, no more: every step costs code
    local wanted = tile_area >= 48 and 1 or tile_area >= 24 and 2 or tile_area >= 12 and 4 or 8
    local spare <const> = spare_registers(rows, vectors, machine)
    if rows > 1 and spare > 0 and spare < ENOUGH_SPARE then
        wanted = math.min(wanted, TIGHT_UNROLL)
    end
    return depth * tile_area <= 128 and depth or math.min(wanted, depth)
end

return tiles
