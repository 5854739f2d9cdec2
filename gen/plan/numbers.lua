-- Whole-number helpers of the planner, and the sizes every part of it uses.
local numbers <const> = {}

numbers.FLOAT_BYTES = 4
numbers.LINE_FLOATS = 16

-- Hardware prefetchers stop at the end of a page, and start in the next one when a line of it was
-- asked for: streams from beyond L2 touch every page this much before they read it.
local PAGE_FLOATS <const> = 1024
numbers.AHEAD_FLOATS = 3 * PAGE_FLOATS

-- Rows of so many floats with the start of one row in every page.
function numbers.rows_a_page(floats) return math.max(1, PAGE_FLOATS // floats) end

-- Most products that one accumulator adds up (docs/numerics.md); deeper sums restart.
numbers.LONGEST_SUM = 384

-- Vector registers of a machine that leaves few beside a tile.
numbers.FEW_REGISTERS = 16

function numbers.ceil_div(a, b) return (a + b - 1) // b end

function numbers.round_up(a, b) return numbers.ceil_div(a, b) * b end

-- Splits `total` into the fewest parts of at most `most`, as even as possible, each a multiple of
-- `unit` (nil: 1) as `total` is: list of {count, size}, larger first.
function numbers.split_even(total, most, unit)
    unit = unit or 1
    total = total // unit
    local parts <const> = numbers.ceil_div(total, most // unit)
    local small <const>, larger <const> = total // parts, total % parts
    local groups <const> = {}
    if larger > 0 then groups[#groups + 1] = { count = larger, size = (small + 1) * unit } end
    groups[#groups + 1] = { count = parts - larger, size = small * unit }
    return groups
end

-- Appends a named buffer and returns its offset in floats; every buffer starts on a cache line.
function numbers.add_buffer(list, name, floats, meaning)
    local offset <const> = list.floats
    list[#list + 1] = { name = name, offset = offset, floats = floats, meaning = meaning }
    list.floats = offset + numbers.round_up(floats, numbers.LINE_FLOATS)
    return offset
end

-- Raises the refusal that `attngen` reports as a config error (exit 2).
function numbers.refuse(key, value, message, allowed)
    error({ errors = { { key = key, value = value, message = message, allowed = allowed } } }, 0)
end

return numbers
