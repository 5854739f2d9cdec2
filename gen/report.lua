-- What `attngen plan` says: the plan as plain JSON-able data and as text. In: plan. Decides
-- nothing.
local report <const> = {}

local function tile_text(rows, vectors) return ("%dx%d"):format(rows, vectors) end

local function row_groups_text(groups)
    local parts <const> = {}
    for i, group in ipairs(groups) do parts[i] = ("%dx%d"):format(group.count, group.size) end
    return table.concat(parts, " + ")
end

local function projection_report(projection)
    local panels <const> = {}
    for i, group in ipairs(projection.groups) do
        panels[i] = { count = group.count, vectors = group.vectors }
    end
    return {
        stage = projection.name, rows = projection.rows, items = projection.items,
        ends_at_length = projection.bounded or false, depth = projection.depth,
        columns = projection.columns, bias = projection.bias,
        tile = { rows = projection.tile_rows, vectors = projection.tile_vectors },
        row_tiles = row_groups_text(projection.row_groups), panels = panels,
        unroll = projection.unroll, prefetches_next_panel = projection.prefetch,
        prefetches_ahead_bytes = projection.ahead and projection.ahead * 4,
        prefetches_output = projection.prefetch_out, row_block_tiles = projection.block_tiles,
        parts_by_rows = projection.row_parts,
        layout = projection.layout and projection.layout.kind or "rows",
        merged_reason = projection.reason,
    }
end

local function buffer_report(list)
    local out <const> = {}
    for i, buffer in ipairs(list) do
        out[i] = { name = buffer.name, offset = buffer.offset, bytes = buffer.floats * 4,
            meaning = buffer.meaning }
    end
    return out
end

-- "tuned on CPU with gcc -O2 (tuned/avx2/….json, fnv1a64 …)"
function report.tuned_text(tuned)
    local text = "tuned"
    if tuned.cpu then text = text .. " on " .. tuned.cpu end
    if tuned.compiler then
        text = text .. " with " .. tuned.compiler .. (tuned.level and " " .. tuned.level or "")
    end
    if not next(tuned.plan) and not tuned.unroll then
        text = text .. ", which the planner's default won"
    end
    if tuned.file then
        text = ("%s (%s%s)"):format(text, tuned.file,
            tuned.fnv1a64 and ", fnv1a64 " .. tuned.fnv1a64 or "")
    end
    return text
end

-- Whose decision the plan of a record is.
function report.origin(record, isa_name)
    local tuned <const> = record.tuning and record.tuning[isa_name]
    if tuned then return report.tuned_text(tuned) end
    return next(record.plan) and "the config's, and the planner's default where it says nothing"
        or "planner's default"
end

local orientation_names <const> = { queries = "queries", dims = "the head", heads = "heads" }

local function scores_report(attention)
    local data <const> = { orientation = attention.orientation, reason = attention.reason,
        keys_prefetched_ahead = attention.key_ahead, prefetches = attention.prefetch or nil,
        items_a_vector = attention.items and attention.items > 1 and attention.items or nil,
        blocks = {} }
    for i, block in ipairs(attention.blocks) do
        data.blocks[i] = { count = block.count, queries = block.queries or block.rows,
            vectors = block.vectors, lanes_a_query = block.split,
            context_row_tiles = row_groups_text(block.row_groups or attention.dim_groups),
            context_dim_tiles = block.dim_groups and ("%s, vectors %s, k unrolled by %d"):format(
                row_groups_text(block.dim_groups), row_groups_text(block.vector_groups),
                block.context_unroll),
            context_reason = block.context_reason }
    end
    if attention.orientation == "dims" then
        data.key_tiles = ("%dx%d"):format(attention.key_tiles, attention.lanes)
        data.unroll, data.tile = attention.chunks, { rows = attention.tile_rows, vectors = 1 }
    else
        data.key_tiles, data.unroll = row_groups_text(attention.key_groups),
            attention.scores_unroll
        data.tile = { rows = attention.key_rows, vectors = attention.scores_vectors }
        local last <const> = attention.blocks[1].last_vectors
        data.last_queries = last and last * attention.lanes or nil
    end
    return data
end

-- The report of one plan: a table of strings, numbers and lists only.
function report.build(plan)
    local problem <const>, attention <const> = plan.problem, plan.attention
    local projections <const> = {}
    for i, product in ipairs(plan.products) do projections[i] = projection_report(product) end
    return {
        name = problem.name, isa = plan.machine.name, op = problem.op, unroll = problem.unroll,
        straight_line = plan.straight, items_at_a_time = plan.item_block and plan.item_block.items,
        target = plan.machine.target,
        fold = plan.problem.fold.reasons,
        form = problem.op == "mha" and { keys = problem.fold.keys, values = problem.fold.values }
            or nil,
        projections = projections,
        scores = scores_report(attention),
        softmax = { rows = attention.in_blocks and "in blocks of keys" or "whole",
            fused = attention.key_block ~= nil,
            key_block = attention.key_block, blocks_together = attention.together,
            base = problem.fold.base == 2 and "2" or "e", accuracy = problem.accuracy,
            uses_tried = attention.uses_tried },
        context = { tile = { rows = attention.context_rows, vectors = attention.context_vectors },
            unroll = attention.context_unroll, repairs_rows = attention.repair,
            along_dims = attention.context_along_dims ~= false,
            along_queries = attention.context_along_queries },
        buffers = { shared = buffer_report(plan.shared_buffers),
            part = buffer_report(plan.part_buffers) },
        flops = { projections = plan.projection_flops, core = plan.core_flops },
        cycles = plan.cycles,
        packed_bytes = plan.packed_bytes, workspace_bytes = plan.workspace_bytes,
        part_bytes = plan.part_bytes, frame_bytes = plan.frame_bytes,
        code_bytes = plan.code_bytes, compile_seconds = plan.compile_seconds,
        phases = plan.phases,
    }
end

-- Lines of the plan, at most `width` long: used by `attngen plan` and the emitted banner.
function report.lines(data)
    local lines <const> = {}
    local function put(format, ...) lines[#lines + 1] = format:format(...) end
    put("isa %s, unroll %s: %s, phases %d", data.isa, data.unroll,
        data.straight_line and "no loop left" or "loops around unrolled tiles", data.phases)
    if data.items_at_a_time then
        put("layer: %d item%s at a time through all stages; rows and buffers below are %s",
            data.items_at_a_time, data.items_at_a_time == 1 and "" or "s",
            data.items_at_a_time == 1 and "one item's" or "theirs")
    end
    for _, reason in ipairs(data.fold) do put("fold: %s", reason) end
    for _, p in ipairs(data.projections) do
        local panels <const> = {}
        for i, panel in ipairs(p.panels) do
            panels[i] = ("%d panel%s of %d vectors"):format(panel.count,
                panel.count == 1 and "" or "s", panel.vectors)
        end
        put("%s: %d rows%s x %d -> %d, tile %s (rows x vectors), row tiles %s%s, %s, k unrolled by "
            .. "%d, %s%s",
            p.stage, p.rows, p.ends_at_length and " (up to each item's length)" or "", p.depth,
            p.columns, tile_text(p.tile.rows, p.tile.vectors), p.row_tiles,
            p.row_block_tiles and (" in blocks of %d"):format(p.row_block_tiles) or "",
            table.concat(panels, " + "), p.unroll,
            (p.parts_by_rows and ("rows shared by up to %d parts, "):format(p.parts_by_rows) or "")
                .. (p.prefetches_output and ("output prefetched %s, "):format(p.prefetches_output)
                    or ""),
            (p.prefetches_next_panel and "next panel prefetched, " or p.prefetches_ahead_bytes
                and ("a line a page prefetched %d bytes ahead, "):format(
                    p.prefetches_ahead_bytes) or "")
                .. (p.layout == "heads" and "stored head by head" or "stored by rows"))
        if p.merged_reason then put("%s: one product: %s", p.stage, p.merged_reason) end
    end
    local scores <const> = data.scores
    put("attention: lanes along %s: %s", orientation_names[scores.orientation], scores.reason)
    for _, block in ipairs(scores.blocks) do
        put("attention: %d block%s of %d %s, context %s tiles %s", block.count,
            block.count == 1 and "" or "s", block.queries, block.vectors
                and (block.lanes_a_query and ("queries (%d lanes each)"):format(
                    block.lanes_a_query) or ("queries%s (%d vectors)"):format(
                        scores.items_a_vector and " of two items" or "", block.vectors))
                or "query rows, the heads of a kv head stacked",
            block.context_dim_tiles and "dim" or "row",
            block.context_dim_tiles or block.context_row_tiles)
        if block.context_reason then
            put("context: lanes along %s: %s", block.context_dim_tiles and "queries"
                or "the head", block.context_reason)
        end
    end
    if scores.orientation == "dims" then
        put("scores: %d row%s x %s keys a tile, summed across lanes%s", scores.tile.rows,
            scores.tile.rows == 1 and "" or "s", scores.key_tiles:match("x(%d+)"),
            scores.keys_prefetched_ahead and (", a line a page of keys and"
                .. " values prefetched %d keys ahead"):format(scores.keys_prefetched_ahead) or "")
    else
        put("scores: key tiles %s, k unrolled by %d%s%s", scores.key_tiles, scores.unroll,
            scores.last_queries and (", keys that only a block's last %d queries see apart"):format(
                scores.last_queries) or "",
            scores.prefetches == "blocks" and ", what the next blocks read prefetched"
                or scores.prefetches and ", next keys and own values prefetched" or "")
    end
    put("softmax: %s%s, base %s, %s", data.softmax.fused and "in the score tiles, " or "",
        data.softmax.rows == "whole" and "whole rows"
            or ("blocks of %d keys for %d blocks of queries at a time"):format(
                data.softmax.key_block, data.softmax.blocks_together), data.softmax.base,
        data.softmax.accuracy)
    if data.softmax.uses_tried then
        put("softmax: tried weights are used before their sums are looked at")
    end
    if data.context.along_dims then
        put("context: tile %s%s, k unrolled by %d",
            tile_text(data.context.tile.rows, data.context.tile.vectors),
            data.context.along_queries and " where lanes lie along the head" or "",
            data.context.unroll)
    end
    if data.context.repairs_rows then
        put("context: rows with NaN computed again from allowed keys")
    end
    put("matmul flops: projections %d, core %d; at least %d cycles", data.flops.projections,
        data.flops.core, data.cycles)
    put("bytes: packed %d, workspace %d (%d more a part), stack under %d, code about %d",
        data.packed_bytes, data.workspace_bytes, data.part_bytes, data.frame_bytes, data.code_bytes)
    for _, list in ipairs({ { "workspace", data.buffers.shared },
        { "workspace of a part", data.buffers.part } }) do
        for _, buffer in ipairs(list[2]) do
            put("%s + %d: %s, %s", list[1], buffer.offset, buffer.name, buffer.meaning)
        end
    end
    return lines
end

-- The report as text for people.
function report.describe(data)
    local lines <const> = { ("%s (%s)"):format(data.name, data.op) }
    if data.origin then lines[2] = "  plan: " .. data.origin end
    for _, line in ipairs(report.lines(data)) do lines[#lines + 1] = "  " .. line end
    lines[#lines + 1] = ("  predicted compile time: %.1f s"):format(data.compile_seconds)
    return table.concat(lines, "\n") .. "\n"
end

return report
