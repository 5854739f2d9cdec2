-- Copies a matrix transposed: lanes x lanes blocks in registers, single elements at thin edges.
local ir <const> = require("gen.ir")

-- Visits the starts of blocks along `length`. An edge that takes more than a quarter of a block is
-- one more block, which overlaps the one before. Returns how much the blocks cover.
local function each_start(block, ctx, name, length, visit)
    local lanes <const> = ctx.lanes
    local whole <const>, edge <const> = length // lanes, length % lanes
    local overlaps <const> = whole > 0 and 4 * edge > lanes
    block:each(name, overlaps and whole + 1 or whole, ctx.straight, function(body, i)
        visit(body, overlaps and body:size(name .. "_start", "min", i * lanes,
            ir.index(length - lanes)) or i * lanes)
    end)
    return overlaps and length or whole * lanes
end

-- to[c][r] = from[r][c] for r below `rows` and c below `columns`; from and to are {mem, row}: where
-- the matrix starts, and floats from one row to the next. `to.padded`: rows of `to` are whole
-- vectors. Returns how many of them got zeros behind their last element.
local function transpose(block, ctx, from, to, rows, columns)
    local lanes <const> = ctx.lanes
    local edge <const> = to.padded and columns >= lanes and rows % lanes or 0
    local done_rows, done_columns = 0, 0
    local function strip(body, r, count)
        done_columns = each_start(body, ctx, "column_block", columns, function(inner, c)
            inner:run(count and "transpose_part" or "transpose",
                ir.offset(from.mem, r * from.row + c), ir.index(from.row),
                ir.offset(to.mem, c * to.row + r), ir.index(to.row), count)
        end)
    end
    if columns >= lanes and rows - edge >= lanes then
        done_rows = each_start(block, ctx, "row_block", rows - edge, strip)
    end
    if edge > 0 then
        strip(block, ir.index(rows - edge), ir.index(edge))
        done_rows = rows
    end
    local function copy(first_row, row_count, first_column, column_count)
        if row_count == 0 or column_count == 0 then return end
        block:each("row", row_count, ctx.straight, function(body, r)
            body:each("column", column_count, ctx.straight, function(inner, c)
                inner:run("copy_f32", ir.offset(to.mem, (c + first_column) * to.row + r
                    + first_row), ir.offset(from.mem, (r + first_row) * from.row + c
                    + first_column))
            end)
        end)
    end
    copy(0, done_rows, done_columns, columns - done_columns)
    copy(done_rows, rows - done_rows, 0, columns)
    return edge > 0 and done_columns or 0
end

return transpose
