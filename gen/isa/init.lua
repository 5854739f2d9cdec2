-- Registry of instruction sets. One data file each; this module only names them and checks that a
-- file offers every operation the stages use, so a hole is found when the file is loaded.
--
-- An ISA file returns a table:
--   name, arch, lanes, registers      a key of arch_macros below or "any"; float lanes of a vector,
--                                     architectural vector registers
--   trial                             how weights with references of 0 are tried without maxima
--                                     (gen/stage/softmax.lua): "sums" where exp2 beyond its domain
--                                     is no smaller than at its end (+inf at most), so that sums
--                                     tell a logit too large; "bits" where exp2_near is cheaper and
--                                     bits tell a logit out of its domain; nil: not at all
--   header                            intrinsics header, or nil
--   guard                             preprocessor condition that must hold, and what to say if not
--   flags                             compiler flags for kernel files
--   features                          ATTN_CPU_* macro, or "0"
--   cpu_test                          /proc/cpuinfo flags that must all be present
--   types                             C types of "vec" and "mask"
--   target                            default numbers of the planner for this ISA
--   ops[name] = {text, meaning, helper}   C text with $1..$n; meaning is the same for one lane, in
--                                     plain C (see vocabulary below); helper names a C function
--   helpers[name] = {text, needs}     C text of static functions that ops rely on
local isa <const> = {}

-- Best last: dispatchers try them from the end.
isa.names = { "scalar", "neon", "avx2", "avx512" }

-- What compilers for an architecture predefine, by the arch of an ISA file.
isa.arch_macros = { aarch64 = "__aarch64__", x86_64 = "__x86_64__" }

-- Every op a stage may use, with its meaning for lane $lane: `$n` is that lane of a vector operand,
-- `$n[$lane]` the memory element, everything else a scalar. A mask lane is 0 or 1.
isa.vocabulary = {
    zero = { result = "vec", meaning = "0.0f" },
    splat = { result = "vec", args = { "float" }, meaning = "$1" },
    minus_infinity = { result = "vec", meaning = "-INFINITY" },
    load = { result = "vec", args = { "mem" }, meaning = "$1[$lane]" },
    load_part = { result = "vec", args = { "mem", "count" },
        meaning = "$lane < $2 ? $1[$lane] : 0.0f" },
    broadcast = { result = "vec", args = { "mem" }, meaning = "$1[0]" },
    -- groups of $group floats, a power of two below the lanes: one of them in every place; one from
    -- each of $count rows, zeros behind; and back to the rows
    spread = { result = "vec", args = { "mem", "group" }, meaning = "$1[$lane % $2]" },
    join = { result = "vec", args = { "mem", "stride", "group", "groups" },
        meaning = "$lane / $3 < $4 ? $1[$lane / $3 * $2 + $lane % $3] : 0.0f" },
    split = { args = { "mem", "vec", "stride", "group", "groups" },
        meaning = "if ($lane / $4 < $5) $1[$lane / $4 * $3 + $lane % $4] = $2" },
    -- groups of two vectors in turn: those of their lower halves, of their upper halves
    zip_low = { result = "vec", args = { "lanes", "lanes", "group" },
        meaning = "$lane / $3 % 2 == 0 ? $1[$lane / $3 / 2 * $3 + $lane % $3] "
            .. ": $2[$lane / $3 / 2 * $3 + $lane % $3]" },
    zip_high = { result = "vec", args = { "lanes", "lanes", "group" },
        meaning = "$lane / $3 % 2 == 0 ? $1[LANES / 2 + $lane / $3 / 2 * $3 + $lane % $3] "
            .. ": $2[LANES / 2 + $lane / $3 / 2 * $3 + $lane % $3]" },
    store = { args = { "mem", "vec" }, meaning = "$1[$lane] = $2" },
    store_part = { args = { "mem", "vec", "count" }, meaning = "if ($lane < $3) $1[$lane] = $2" },
    add = { result = "vec", args = { "vec", "vec" }, meaning = "$1 + $2" },
    sub = { result = "vec", args = { "vec", "vec" }, meaning = "$1 - $2" },
    mul = { result = "vec", args = { "vec", "vec" }, meaning = "$1 * $2" },
    div = { result = "vec", args = { "vec", "vec" }, meaning = "$1 / $2" },
    fma = { result = "vec", args = { "vec", "vec", "vec" }, meaning = "fmaf($1, $2, $3)" },
    max = { result = "vec", args = { "vec", "vec" }, meaning = "$1 > $2 ? $1 : $2", nan = "any",
        zero = "any" },
    ceil = { result = "vec", args = { "vec" }, meaning = "ceilf($1)", zero = "any" },
    -- above -142 and up to -141.5 either of both
    exp2 = { result = "vec", args = { "vec" },
        meaning = "$1 <= -142.0f ? 0.0f : (float)ldexp(exp2($1), 16)", ulp = 3,
        domain = "x <= 64 or NaN" },
    exp2_fast = { result = "vec", args = { "vec" },
        meaning = "$1 <= -142.0f ? 0.0f : (float)ldexp(exp2($1), 16)", ulp = 64,
        domain = "x <= 64 or NaN" },
    -- the same bits, in a smaller domain
    exp2_near = { result = "vec", args = { "vec" },
        meaning = "$1 <= -142.0f ? 0.0f : (float)ldexp(exp2($1), 16)", ulp = 3,
        domain = "-142 <= x <= 64 or NaN" },
    exp2_near_fast = { result = "vec", args = { "vec" },
        meaning = "$1 <= -142.0f ? 0.0f : (float)ldexp(exp2($1), 16)", ulp = 64,
        domain = "-142 <= x <= 64 or NaN" },
    -- more bits in the first: $2 + 1.5 * 2^23 + 142 is 1.5 * 2^23 but for the last 8 bits where $2,
    -- rounded, lies from -142 to 113, and differs in others where it lies beyond or is NaN
    or_stray = { result = "vec", args = { "vec", "vec" },
        meaning = "float_of(bits_of($1) | (bits_of($2 + 0x1.80011cp23f) ^ bits_of(0x1.8p23f)))" },
    has_high_bits = { result = "int", args = { "vec" }, meaning = "bits_of($1) > 0xff" },
    -- neighbours of both operands added: applied log2(lanes) times it sums the lanes of vectors
    pair_sums = { result = "vec", args = { "lanes", "lanes" },
        meaning = "$lane < LANES / 2 ? $1[2 * $lane] + $1[2 * $lane + 1] "
            .. ": $2[2 * $lane - LANES] + $2[2 * $lane - LANES + 1]" },
    -- the same within every four lanes, and of every four lanes with the four behind them: cheaper
    -- where wide vectors are made of quarters. near_sums twice, then far_sums, sum lanes as well.
    near_sums = { result = "vec", args = { "lanes", "lanes" },
        meaning = "$lane % 4 < 2 ? $1[$lane + $lane % 4] + $1[$lane + $lane % 4 + 1] "
            .. ": $2[$lane + $lane % 4 - 4] + $2[$lane + $lane % 4 - 3]" },
    far_sums = { result = "vec", args = { "lanes", "lanes" },
        meaning = "$lane < LANES / 2 ? $1[2 * $lane - $lane % 4] + $1[2 * $lane - $lane % 4 + 4] "
            .. ": $2[2 * $lane - $lane % 4 - LANES] + $2[2 * $lane - $lane % 4 - LANES + 4]" },
    pair_max = { result = "vec", args = { "lanes", "lanes" }, nan = "any", zero = "any",
        meaning = "$lane < LANES / 2 ? fmaxf($1[2 * $lane], $1[2 * $lane + 1]) "
            .. ": fmaxf($2[2 * $lane - LANES], $2[2 * $lane - LANES + 1])" },
    lanes_from = { result = "mask", args = { "size" }, meaning = "$lane >= $1" },
    lanes_if = { result = "mask", args = { "bool" }, meaning = "$1" },
    lanes_above = { result = "mask", args = { "vec", "vec" }, meaning = "$1 > $2" },
    lanes_both = { result = "mask", args = { "mask", "mask" }, meaning = "$1 && $2" },
    lanes_allowed = { result = "mask", args = { "vec" }, meaning = "$1 != -INFINITY" },
    select = { result = "vec", args = { "mask", "vec", "vec" }, meaning = "$1 ? $2 : $3" },
    has_nan = { result = "int", args = { "vec" }, meaning = "isnan($1)" },
    has_above = { result = "int", args = { "vec", "vec" }, meaning = "$1 > $2" },
    has_nan_part = { result = "int", args = { "vec", "count" },
        meaning = "$lane < $2 && isnan($1)" },
    -- for much later, into L2; for a few hundred cycles later and once only, as near as can be
    prefetch = { args = { "mem" }, meaning = "(void)$1" },
    prefetch_soon = { args = { "mem" }, meaning = "(void)$1" },
    -- for a line to be written, which another core may have: taken away from there (x86-64 CPUs
    -- older than PREFETCHW execute it as a NOP)
    prefetch_write = { args = { "mem" }, meaning = "(void)$1" },
}

-- C functions every ISA provides beside the ops: lanes x lanes transpose,
-- dst[c * dst_stride + r] = src[r * src_stride + c]; and the same of groups of floats, as many rows
-- as there are groups in a vector.
isa.required_helpers = { "transpose_block", "regroup_block" }

-- The transpose of a block with fewer rows than lanes, from ops and helpers that are there.
local function transpose_part(data)
    local lanes <const>, lines <const> = data.lanes, {}
    local function op(name, first, second)
        return (data.ops[name].text:gsub("%$1", first):gsub("%$2", second or ""))
    end
    for row = 0, lanes - 1 do
        local value <const> = ("%d < rows ? %s : %s"):format(row,
            op("load", ("src + %d * src_stride"):format(row)), op("zero", ""))
        lines[#lines + 1] = "    " .. op("store", ("block + %d"):format(row * lanes), value)
    end
    return { needs = { "transpose_block" }, text = ([[
/* The same with `rows` rows, and zeros for those up to %d. */
static inline void transpose_part(const float *src, size_t src_stride, float *dst,
                                  size_t dst_stride, size_t rows)
{
    float block[%d];
%s;
    transpose_block(block, %d, dst, dst_stride);
}
]]):format(lanes, lanes * lanes, table.concat(lines, ";\n"), lanes) }
end

local loaded <const> = {}

-- The data table of ISA `name`; raises a plain error for an unknown name or an incomplete file.
function isa.get(name)
    if loaded[name] then return loaded[name] end
    local known = false
    for _, candidate in ipairs(isa.names) do known = known or candidate == name end
    assert(known, "unknown isa " .. tostring(name))
    local data <const> = require("gen.isa." .. name)
    for op in pairs(isa.vocabulary) do
        assert(data.ops[op], ("isa %s lacks op %s"):format(name, op))
    end
    for _, helper in ipairs(isa.required_helpers) do
        assert(data.helpers[helper], ("isa %s lacks helper %s"):format(name, helper))
    end
    assert(data.arch == "any" or isa.arch_macros[data.arch],
        ("isa %s: no macro known for its arch"):format(name))
    data.arch_macro = isa.arch_macros[data.arch]
    data.helpers.transpose_part = transpose_part(data)
    loaded[name] = data
    return data
end

return isa
