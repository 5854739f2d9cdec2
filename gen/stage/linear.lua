-- A linear layer over packed weight panels, out = bias + in . W^T: what the projections and the
-- output projection have in common. One function computes a run of equal row tiles of one panel (a
-- few vectors of columns), in straight-line code a single tile. Equal functions are shared,
-- whichever matrix they serve.
--
-- Panel in memory: [bias row, if any][depth][vectors * lanes], 64-byte aligned.
local ir <const> = require("gen.ir")
local numbers <const> = require("gen.plan.numbers")
local tile <const> = require("gen.tile")

local linear <const> = {}

local LINE_FLOATS <const> = 16

local parameters <const> = { { "input", "input" }, { "input", "panel" },
    { "input", "next_panel" }, { "output", "out" }, { "size", "first" }, { "size", "last" } }

-- Floats from the first row of the input to row `row`; to the blocks' first rows where it varies.
local function row_offset(projection, options, row)
    local blocks <const>, known <const> = projection.input_blocks, ir.constant(row)
    if not blocks then return row * options.input_row end
    if not known then return row * projection.depth end
    local at <const>, each <const> = known % blocks.rows, blocks.rows // blocks.items
    return (known - at) * projection.depth
        + (at % each * blocks.items + at // each) * blocks.heads
end

-- Floats from the start of a row to its element k.
local function element_offset(projection, k)
    local blocks <const> = projection.input_blocks
    if not blocks then return k end
    -- what varies is a multiple of the heads
    local head <const> = k.constant % blocks.heads
    return (k + -head) * blocks.rows + head
end

-- Asks for what the turn at step k of a tile's first sum walks over: the `rows` rows from `row` on
-- that the tile will write, of every head the panel has columns of.
local function ask_for_lines(block, projection, group, options, row, rows, k)
    local steps <const> = math.min(projection.depth, numbers.LONGEST_SUM)
    local step <const> = rows * options.output_row // steps + 1
    for _, offset in ipairs(group.vector_offsets) do
        if offset % options.output_row == 0 then
            for ahead = 0, step * projection.unroll - 1, LINE_FLOATS do
                block:run("prefetch_write", ir.mem("out", row * options.output_row + k * step
                    + (offset + ahead)))
            end
        end
    end
end

-- The tile_index-th tile of `rows` rows.
local function emit_tile(block, plan, projection, group, options, tile_index, rows)
    local row <const> = tile_index * rows
    local lanes <const> = plan.machine.lanes
    local width <const> = group.vectors * lanes
    local weights_at <const> = projection.bias and width or 0
    local from <const> = block:pointer("pointer", "in_rows",
        ir.mem("input", row_offset(projection, options, row)))
    local function place(r, v)
        return ir.mem("out", (row + r) * options.output_row + group.vector_offsets[v + 1])
    end
    local out <const> = tile.carry(place, function(v)
        local partial <const> = v == group.vectors - 1 and options.last_lanes < lanes
        return partial and ir.index(options.last_lanes) or nil
    end)
    if projection.prefetch_out == "first" then
        local lines_apart <const> = math.max(1, LINE_FLOATS // lanes)
        block:note("where the tile goes")
        for r = 0, rows - 1 do
            for v = 0, group.vectors - 1, lines_apart do
                block:run("prefetch_write", place(r, v))
            end
        end
    end
    local next_panel <const> = options.prefetch and options.prefetch(tile_index)
    local c <const> = tile.product(block, {
        title = ("%d rows x %d columns"):format(rows, width),
        rows = rows, vectors = group.vectors, registers = plan.machine.registers,
        depth = projection.depth, unroll = projection.unroll, index = ir.index,
        a = function(k, r)
            return ir.offset(from, element_offset(projection, k)
                + row_offset(projection, options, r))
        end,
        b = function(k, v) return ir.mem("panel", k * width + v * lanes + weights_at) end,
        start = projection.bias
            and function(_, v) return "load", ir.mem("panel", v * lanes) end or nil,
        carry = out, prefetch = next_panel,
        prefetch_first = projection.prefetch_out == "line by line" and function(body, k)
            ask_for_lines(body, projection, group, options, row, rows, k)
            if next_panel then next_panel(body, k) end
        end or nil,
        ahead = projection.ahead and { row = width,
            line = function(k) return ir.mem("panel", k * width + projection.ahead) end },
    })
    for r = 0, rows - 1 do
        for v = 0, group.vectors - 1 do out.store(block, c[r][v], r, v) end
    end
end

-- Floats of the next panel that every row tile asks for: a walk over the tiles asks for all, and so
-- does the half of them that one of two parts takes.
local function tile_share(projection, group)
    local walk <const> = projection.block_tiles
        or projection.row_parts and (projection.tiles + 1) // 2 or projection.tiles
    return group.panel_floats // walk + 1
end

-- The tiles of `rows` rows of one panel, as a function(input, panel, next_panel, out, first, last):
-- those from `first` to `last`, counted from the row that input and out point at; a lone tile needs
-- no count. next_panel: what tile `first` asks for while it works.
local function rows_function(plan, projection, group, options, rows, lone)
    local share <const> = tile_share(projection, group)
    local step <const> = share // projection.depth + 1
    options.prefetch = projection.prefetch and function(tile_index)
        local from <const> = lone and ir.index(0)
            or (tile_index + ir.var("first") * -1) * share
        return function(block, k) block:run("prefetch", ir.mem("next_panel", from + k * step)) end
    end
    local columns <const> = group.vectors * plan.machine.lanes
    local formula <const> = projection.bias and "bias + in . panel" or "in . panel"
    return ir.func(("%s_%dx%d"):format(options.name, rows, group.vectors),
        { lone and ("%d rows of one panel of %d columns: out = %s."):format(rows, columns, formula)
            or ("Tiles first to last - 1, of %d rows, of one panel of %d columns: out = %s.")
                :format(rows, columns, formula) },
        parameters, function(block)
            if lone then
                emit_tile(block, plan, projection, group, options, ir.index(0), rows)
                return
            end
            block:loop({ var = "tile", from = ir.var("first"), to = ir.var("last") },
                function(body, i) emit_tile(body, plan, projection, group, options, i, rows) end)
        end)
end

-- Row tiles of an item that hold one of its first `length` rows, as an index; with `panels` what
-- holds one of the first `length` (row, panel) pairs, as (tile, panel) pairs. `tag` ends the names.
local function live_tiles(block, projection, length, panels, tag)
    panels, tag = panels or 1, tag or ""
    local total, row = ir.index(0), 0
    for i, group in ipairs(projection.row_groups) do
        local rest <const> = block:size("behind" .. row .. tag, "excess", length,
            ir.index(row * panels))
        local tiles = block:size("tiles" .. row .. tag, "quotient", rest + (group.size - 1),
            ir.index(group.size))
        if i < #projection.row_groups then
            tiles = block:size("live" .. row .. tag, "min", tiles, ir.index(group.count * panels))
        end
        total = i == 1 and tiles or block:size("tiles" .. tag, "sum", total, tiles)
        row = row + group.count * group.size
    end
    return total
end

-- The number of an item's rows that are wanted, as an index.
local function wanted_rows(block, plan, projection, item, at_least)
    local length = block:size("length", "load_i32", ir.mem("kv_lengths", item))
    if projection.item_rows < plan.problem.kv_len then
        length = block:size("rows", "min", length, ir.index(projection.item_rows))
    end
    if at_least > 0 then length = block:size("wanted", "at_least", length, ir.index(at_least)) end
    return length
end

-- Shares out (block of row tiles, panel, row tile) triples, block by block. Calls
-- build(body, panel, begin, end, item, block_begin) for runs of tiles of one panel.
local function share_blocks(body, projection, group, build)
    local tiles <const>, block_tiles <const> = projection.tiles, projection.block_tiles
    local units <const> = ir.index(group.count * tiles)
    local block_units <const> = group.count * block_tiles
    local first <const> = body:size("first", "share", units, "part", "parts")
    local last <const> = body:size("last", "share_end", units, "part", "parts")
    local from <const> = body:size("first_block", "quotient", first, ir.index(block_units))
    local to <const> = body:size("last_block", "quotient", last + (block_units - 1),
        ir.index(block_units))
    body:loop({ var = "row_block", from = from, to = to }, function(inner, row_block)
        local block_begin <const> = inner:size("block_begin", "copy", row_block * block_tiles)
        -- the last block may have fewer tiles
        local left <const> = inner:size("tiles_left", "excess", ir.index(tiles), block_begin)
        local here <const> = inner:size("block_size", "min", left, ir.index(block_tiles))
        inner:declare("size", "unit", "copy", row_block * block_units)
        inner:loop({ var = "panel", from = 0, to = group.count }, function(deep, panel)
            local before <const> = deep:size("before", "excess", first, ir.var("unit"))
            local behind <const> = deep:size("behind", "excess", last, ir.var("unit"))
            local done <const> = deep:size("done", "min", before, here)
            local wanted <const> = deep:size("wanted", "min", behind, here)
            local begin <const> = deep:size("begin", "sum", block_begin, done)
            local stop <const> = deep:size("end", "sum", block_begin, wanted)
            build(deep, panel, begin, stop, ir.index(0), block_begin)
            deep:set("unit", "sum", "unit", here)
        end)
    end)
end

-- Shares out (row tile, panel) pairs, row tile by row tile: a part takes tiles with all panels, and
-- of those at its ends some panels, so that all have as many rows times panels. Calls
-- build(body, panel, begin, end, item, begin) for the run of tiles [begin, end) of every panel.
local function share_rows(body, projection, group, build)
    local panels <const> = group.count
    local rows <const> = ir.index(projection.item_rows * panels)
    local first <const> = live_tiles(body, projection,
        body:size("rows_before", "share", rows, "part", "parts"), panels, "_before")
    local last <const> = live_tiles(body, projection,
        body:size("rows_with", "share_end", rows, "part", "parts"), panels, "_with")
    body:loop({ var = "panel", from = 0, to = panels }, function(inner, panel)
        local later <const> = panel * -1 + (panels - 1)
        local begin <const> = inner:size("begin", "quotient", first + later, ir.index(panels))
        local stop <const> = inner:size("end", "quotient", last + later, ir.index(panels))
        build(inner, panel, begin, stop, ir.index(0), begin)
    end)
end

-- Shares out (panel, item, row tile) triples, panel by panel, so that parts differ by a tile at
-- most. Calls build(body, panel, begin, end, item) for the run of tiles [begin, end) of an item.
local function share_panels(body, projection, group, build)
    local items <const>, tiles <const> = projection.items, projection.tiles
    local panel_tiles <const> = items * tiles
    local units <const> = ir.index(group.count * panel_tiles)
    local first <const> = body:size("first", "share", units, "part", "parts")
    local last <const> = body:size("last", "share_end", units, "part", "parts")
    local from <const> = body:size("first_panel", "quotient", first, ir.index(panel_tiles))
    local to <const> = body:size("last_panel", "quotient", last + (panel_tiles - 1),
        ir.index(panel_tiles))
    body:loop({ var = "panel", from = from, to = to }, function(inner, panel)
        if panel_tiles == 1 then
            build(inner, panel, ir.index(0), ir.index(1), ir.index(0))
            return
        end
        inner:each("item", items, false, function(deep, item)
            local before <const> = panel * panel_tiles + item * tiles
            local begin <const> = deep:size("begin", "excess", first, before)
            local left <const> = deep:size("left", "excess", last, before)
            local stop <const> = deep:size("end", "min", left, ir.index(tiles))
            if items == 1 then
                build(deep, panel, begin, stop, item)
            else
                deep:when("lt", { begin, stop },
                    function(call) build(call, panel, begin, stop, item) end)
            end
        end)
    end)
end

-- Where rows do not end at an item's length: by blocks of rows, by rows, or by panels (one panel is
-- shared by rows either way).
local function share_tiles(phase, projection, group, build)
    phase.body:scope(function(body)
        if projection.block_tiles then
            share_blocks(body, projection, group, build)
        elseif projection.row_parts and group.count > 1 then
            body:note(("up to %d parts share rows times panels, more of them share panels"):format(
                projection.row_parts))
            body:when("ge", { ir.index(projection.row_parts), ir.var("parts") },
                function(few) share_rows(few, projection, group, build) end,
                function(many) share_panels(many, projection, group, build) end)
        else
            share_panels(body, projection, group, build)
        end
    end)
end

-- The same where an item's rows end at its length: build(body, panel, begin, end, item, is_last),
-- all items of a panel while it is hot. is_last(inside) runs for the part that has the item's last
-- tile; with options.after every item has one.
local function share_live_tiles(phase, plan, projection, group, options, build)
    local at_least <const> = options.after and 1 or 0
    local function live(body, item)
        return live_tiles(body, projection, wanted_rows(body, plan, projection, item, at_least))
    end
    phase.body:scope(function(body)
        body:note("row tiles of a panel that hold rows within their item's length")
        body:declare("size", "total", "copy", ir.index(0))
        body:each("item", projection.items, false, function(inner, item)
            inner:set("total", "sum", "total", live(inner, item))
        end)
        body:let("size", "units", "times", ir.var("total"), ir.index(group.count))
        local first <const> = body:size("first", "share", ir.var("units"), "part", "parts")
        local last <const> = body:size("last", "share_end", ir.var("units"), "part", "parts")
        body:declare("size", "unit", "copy", ir.index(0))
        body:loop({ var = "panel", from = 0, to = group.count }, function(inner, panel)
            inner:each("item", projection.items, false, function(deep, item)
                local tiles <const> = live(deep, item)
                local begin <const> = deep:size("begin", "excess", first, ir.var("unit"))
                local left <const> = deep:size("left", "excess", last, ir.var("unit"))
                local to <const> = deep:size("end", "min", left, tiles)
                deep:set("unit", "sum", "unit", tiles)
                deep:when("lt", { begin, to }, function(call)
                    build(call, panel, begin, to, item, function(last_tile)
                        call:when("ge", { to, tiles }, last_tile)
                    end)
                end)
            end)
        end)
    end)
end

-- Appends one panel group of `projection` to `phase`: its functions, and in the phase's body the
-- calls for the share (part of parts) of its tiles.
--   group                    with last_lanes: see peel
--   options.name             of the functions
--   options.input, out       mems of the first input row and of the output tensor
--   options.input_item       floats from item to item of the input
--   options.input_row, output_row   strides of a row in floats
--   options.output_item      from item to item of the output; nil: the rows of all items follow
--   options.after            called with (block, out of the panel and item, item) when an item's
--                            rows of a panel are done
function linear.build(phase, plan, projection, group, options)
    options.last_lanes = group.last_lanes or plan.machine.lanes
    local output_item <const> = options.output_item
        or projection.item_rows * options.output_row
    -- where the panel's columns go, and what it is multiplied with
    local function panel_ends(body, panel)
        local at <const> = panel + group.start
        local major, minor = at, ir.index(0)
        if group.per_block > 1 then
            major = body:size("block", "quotient", at, ir.index(group.per_block))
            minor = body:size("within", "remainder", at, ir.index(group.per_block))
        end
        return ir.offset(options.out, major * group.block_stride
            + minor * group.panel_stride + group.target),
            ir.offset(options.input, major * (group.input_block or 0))
    end
    -- row groups of an item with their functions; in straight-line code one call a tile
    local runs <const>, row, tile_count = {}, 0, 0
    local lone <const> = projection.straight or projection.tiles == 1
    for _, row_group in ipairs(projection.row_groups) do
        local fn <const> = phase:share(
            rows_function(plan, projection, group, options, row_group.size, lone))
        fn.apart = not projection.straight
        runs[#runs + 1] = { fn = fn, count = row_group.count, size = row_group.size, row = row,
            tile = tile_count }
        row = row + row_group.count * row_group.size
        tile_count = tile_count + row_group.count
    end
    local share <const> = projection.prefetch and tile_share(projection, group)
    -- tiles [first, last) of a run, from `row` of the item on; `done` tiles of its rows' walk over
    -- the panel come before
    local function call_run(body, run, panel, out, input, item, first_row, first, last, done)
        local at <const> = panel * group.panel_floats + group.offset
        body:call(run.fn, { panel = ir.mem("weights", at),
            next_panel = share and ir.mem("weights", at + done * share + group.panel_floats),
            input = ir.offset(input, item * options.input_item
                + row_offset(projection, options, first_row)),
            out = ir.offset(out, item * output_item + first_row * options.output_row),
            first = first, last = last })
    end
    -- tiles [begin, to) of an item, counted over all its runs; the walk began with tile `walk`
    local function call_tiles(body, panel, begin, to, item, walk)
        local out <const>, input <const> = panel_ends(body, panel)
        for i, run in ipairs(runs) do
            local first, last, done = begin, to, begin
            if run.tile > 0 then
                first = body:size("begin" .. i, "excess", begin, ir.index(run.tile))
                last = body:size("behind" .. i, "excess", to, ir.index(run.tile))
                done = first + run.tile
            end
            if i < #runs then last = body:size("end" .. i, "min", last, ir.index(run.count)) end
            call_run(body, run, panel, out, input, item, run.row, first, last,
                walk and done + walk * -1 or done)
        end
        return out
    end
    local function finish(body, out, item)
        local item_floats <const> = projection.rows // plan.problem.batch * options.output_row
        options.after(body, ir.offset(out, item * item_floats), item)
    end

    if projection.straight then
        for i = 0, group.count - 1 do
            local panel <const> = ir.index(i)
            local out <const>, input <const> = panel_ends(phase.body, panel)
            for item = 0, projection.items - 1 do
                for _, run in ipairs(runs) do
                    for t = 0, run.count - 1 do
                        call_run(phase.body, run, panel, out, input, ir.index(item),
                            run.row + t * run.size)
                    end
                end
            end
            for item = 0, options.after and plan.problem.batch - 1 or -1 do
                finish(phase.body, out, ir.index(item))
            end
        end
    elseif not projection.bounded then
        share_tiles(phase, projection, group, call_tiles)
    else
        share_live_tiles(phase, plan, projection, group, options,
            function(body, panel, begin, to, item, when_last)
                local out <const> = call_tiles(body, panel, begin, to, item)
                if options.after then
                    when_last(function(inner) finish(inner, out, item) end)
                end
            end)
    end
end

-- A group as the list of groups its output needs: where the last vector of the whole projection is
-- only partly there, the last panel stands alone. Each has last_lanes.
function linear.peel(group, projection, lanes)
    local rest <const> = projection.columns % lanes
    local is_last <const> = group.first_panel + group.count == projection.panels
    local function copy(changes)
        local made <const> = {}
        for key, value in pairs(group) do made[key] = value end
        for key, value in pairs(changes) do made[key] = value end
        return made
    end
    if rest == 0 or not is_last then return { copy({ last_lanes = lanes }) } end
    local before <const> = group.count - 1
    local last <const> = copy({ count = 1, last_lanes = rest,
        first_panel = group.first_panel + before,
        offset = group.offset + before * group.panel_floats,
        target = group.target + before * group.block_stride })
    if before == 0 then return { last } end
    return { copy({ count = before, last_lanes = lanes }), last }
end

return linear
