-- Writes the C program that judges every op of an ISA table against its scalar meaning.
--   input:  an ISA's data table (gen/isa/*.lua, or a copy with planted faults), the vocabulary
--   output: C text; compiled with the repository's root as include path (tests/vocab/check.h)
-- Each op is printed by gen.emit in a function of its own, so its text, its operands' parentheses
-- and its helpers are those of a kernel. Builds and runs nothing.
local emit <const> = require("gen.emit")
local ir <const> = require("gen.ir")
local isa_data <const> = require("gen.isa")

local M = {}

-- How masks enter and leave C arrays of 0 and 1. Vector masks are all ones or all zeros a lane.
local MASKS <const> = {
    int = { read = "return lanes[0];", write = "lanes[0] = mask;" },
    __mmask16 = {
        read = [[
    unsigned bits = 0;
    for (size_t i = 0; i < LANES; i++)
        bits |= (unsigned)lanes[i] << i;
    return (__mmask16)bits;]],
        write = [[
    for (size_t i = 0; i < LANES; i++)
        lanes[i] = (int32_t)((unsigned)mask >> i & 1u);]],
    },
}
local VECTOR_MASK <const> = {
    read = [[
    int32_t bits[LANES];
    MASK mask;
    for (size_t i = 0; i < LANES; i++)
        bits[i] = -lanes[i];
    memcpy(&mask, bits, sizeof mask);
    return mask;]],
    write = [[
    int32_t bits[LANES];
    memcpy(bits, &mask, sizeof bits);
    for (size_t i = 0; i < LANES; i++)
        lanes[i] = bits[i] == -1 ? 1 : bits[i] == 0 ? 0 : MIXED_LANE;]],
}

local ACCESS <const> = [[
static inline VEC read_vec(const float *lanes)
{
    VEC vec;
    memcpy(&vec, lanes, sizeof vec);
    return vec;
}

static inline void write_vec(float *lanes, VEC vec)
{
    memcpy(lanes, &vec, sizeof vec);
}

static inline void write_int(int *number, int value)
{
    *number = value;
}

static inline MASK read_mask(const int32_t *lanes)
{
READ
}

static inline void write_mask(int32_t *lanes, MASK mask)
{
WRITE
}
]]

-- Arguments by kind: the parameter that brings the operand, its C value for the meaning.
local PARAMETERS <const> = {
    { "pointer", "v1" }, { "pointer", "v2" }, { "pointer", "v3" },
    { "lengths", "m1" }, { "lengths", "m2" }, { "lengths", "m3" },
    { "writable", "memory" }, { "size", "at" }, { "size", "count" }, { "size", "group" },
    { "size", "stride" }, { "int", "flag" },
    { "float", "scalar" }, { "writable", "vec_out" }, { "mask_lanes", "mask_out" },
    { "int_out", "number_out" },
}
local FIELDS <const> = {
    v1 = "in->vec[0]", v2 = "in->vec[1]", v3 = "in->vec[2]", m1 = "in->mask[0]",
    m2 = "in->mask[1]", m3 = "in->mask[2]", memory = "in->memory", at = "in->at",
    count = "in->count", group = "in->group", stride = "in->group + STRIDE_EXTRA",
    flag = "in->flag", scalar = "in->scalar", vec_out = "out->vec",
    mask_out = "out->mask", number_out = "&out->number",
}

local MEANING_ARGS <const> = {
    lanes = "const float *const a%d = in->vec[%d];",
    vec = "const float a%d = in->vec[%d][lane];", mask = "const int32_t a%d = in->mask[%d][lane];",
    mem = "float *const a%d = in->memory + in->at;", count = "const size_t a%d = in->count;",
    size = "const size_t a%d = in->count;", groups = "const size_t a%d = in->count;",
    group = "const size_t a%d = in->group;",
    stride = "const size_t a%d = in->group + STRIDE_EXTRA;", bool = "const int a%d = in->flag;",
    float = "const float a%d = in->scalar;",
}
local RESULTS <const> = { vec = "RESULT_VEC", mask = "RESULT_MASK", int = "RESULT_INT" }

-- A copy of the ISA whose printer also reads and writes the test's arrays.
local function with_access(isa)
    local copy <const> = { ops = {}, types = {} }
    for key, value in pairs(isa) do copy[key] = copy[key] or value end
    for key, value in pairs(isa.ops) do copy.ops[key] = value end
    for key, value in pairs(isa.types) do copy.types[key] = value end
    copy.types.mask_lanes, copy.types.int_out = "int32_t *", "int *"
    copy.ops.test_read_vec, copy.ops.test_read_mask = { text = "read_vec($1)" },
        { text = "read_mask($1)" }
    copy.ops.test_write_vec = { text = "write_vec($1, $2)" }
    copy.ops.test_write_mask = { text = "write_mask($1, $2)" }
    copy.ops.test_write_int = { text = "write_int($1, $2)" }
    return copy
end

-- The function that applies `op` once; `count` is a variable's index or a constant one.
local function apply_function(name, op, spec, count)
    return ir.func(name, { op .. "." }, PARAMETERS, function(body)
        local args <const> = {}
        for i, kind in ipairs(spec.args or {}) do
            if kind == "vec" or kind == "lanes" then
                args[i] = body:let("vec", "a" .. i, "test_read_vec", "v" .. i)
            elseif kind == "mask" then
                args[i] = body:let("mask", "a" .. i, "test_read_mask", "m" .. i)
            elseif kind == "mem" then
                args[i] = ir.mem("memory", ir.var("at"))
            elseif kind == "count" or kind == "size" or kind == "groups" then
                args[i] = count
            elseif kind == "group" or kind == "stride" then
                args[i] = ir.var(kind)
            else
                args[i] = ({ bool = "flag", float = "scalar" })[kind]
            end
        end
        if not spec.result then
            body:run(op, table.unpack(args))
        elseif spec.result == "int" then
            body:let("int", "result", op, table.unpack(args))
            body:run("test_write_int", "number_out", "result")
        else
            body:let(spec.result, "result", op, table.unpack(args))
            body:run("test_write_" .. spec.result, spec.result .. "_out", "result")
        end
    end)
end

-- The ISA's transpose, called as packing queries calls it.
local function transpose_function()
    return ir.func("apply_transpose", { "Transposes a block." }, { { "pointer", "src" },
        { "size", "src_stride" }, { "writable", "dst" }, { "size", "dst_stride" } },
        function(body)
            body:run("transpose", ir.mem("src"), ir.var("src_stride"), ir.mem("dst"),
                ir.var("dst_stride"))
        end)
end

local function regroup_function()
    return ir.func("apply_regroup", { "Transposes groups." }, { { "pointer", "src" },
        { "size", "src_stride" }, { "writable", "dst" }, { "size", "dst_stride" },
        { "size", "group" } },
        function(body)
            body:run("regroup", ir.mem("src"), ir.var("src_stride"), ir.mem("dst"),
                ir.var("dst_stride"), ir.var("group"))
        end)
end

local function call_text(fn)
    local args <const> = {}
    for i, param in ipairs(fn.params) do args[i] = FIELDS[param[2]] end
    return ("%s(%s);"):format(fn.name, table.concat(args, ", "))
end

local function takes_count(spec)
    for _, kind in ipairs(spec.args or {}) do
        if kind == "count" or kind == "size" or kind == "groups" then return kind end
    end
    return nil
end

-- run_OP: unpacks the operands, with the count as a variable and as each constant.
local function run_text(printer, op, spec, lanes)
    local fn <const> = apply_function("apply_" .. op, op, spec, ir.var("count"))
    printer:func(fn)
    local lines <const> = { ("static void run_%s(const operands *in, outcome *out)"):format(op),
        "{", "    (void)in;", "    (void)out;" }
    local kind <const> = takes_count(spec)
    if kind then
        lines[#lines + 1] = "    switch (in->constant ? in->count : SIZE_MAX) {"
        local last <const> = { count = lanes - 1, groups = lanes // 2, size = lanes + 2 }
        local first <const> = kind == "size" and 0 or 1
        for count = first, last[kind] do
            local constant <const> = apply_function(("apply_%s_%d"):format(op, count), op, spec,
                ir.index(count))
            printer:func(constant)
            lines[#lines + 1] = ("    case %d: %s return;"):format(count, call_text(constant))
        end
        lines[#lines + 1] = "    default: break;"
        lines[#lines + 1] = "    }"
    end
    lines[#lines + 1] = "    " .. call_text(fn)
    lines[#lines + 1] = "}\n"
    return table.concat(lines, "\n")
end

-- mean_OP: the meaning for one lane, in plain C.
local function mean_text(op, spec, meaning)
    local lines <const> = {
        ("static void mean_%s(const operands *in, outcome *out, size_t lane)"):format(op),
        "{", "    (void)in;", "    (void)out;", "    (void)lane;" }
    for i, kind in ipairs(spec.args or {}) do
        lines[#lines + 1] = "    " .. MEANING_ARGS[kind]:format(i, i - 1)
        lines[#lines + 1] = ("    (void)a%d;"):format(i)
    end
    local text <const> = meaning:gsub("%$lane", "lane"):gsub("%$(%d)", "a%1")
    if spec.result == "vec" then
        lines[#lines + 1] = ("    out->vec[lane] = %s;"):format(text)
    elseif spec.result == "mask" then
        lines[#lines + 1] = ("    out->mask[lane] = (%s) ? 1 : 0;"):format(text)
    elseif spec.result == "int" then
        lines[#lines + 1] = ("    if (%s)\n        out->number = 1;"):format(text)
    else
        lines[#lines + 1] = "    " .. text .. ";"
    end
    lines[#lines + 1] = "}\n"
    return table.concat(lines, "\n")
end

-- How many elements of memory the meaning names.
local function reach_of(meaning)
    if meaning:find("[$lane]", 1, true) then return "LANES" end
    return meaning:find("[0]", 1, true) and "1" or "0"
end

local function entry_text(op, spec, meaning)
    local driver <const> = spec.ulp and (op:find("near", 1, true) and "exp2_near" or "exp2")
        or op:match("^or_stray")
        or spec.args and table.concat(spec.args, "_"):gsub("lanes", "vec") or "none"
    local nan <const> = spec.nan ~= "any" and "NAN_EXACT"
        or spec.args[1] == "lanes" and "NAN_ANY_LANE" or "NAN_ANY"
    return ('    {"%s", run_%s, mean_%s, drive_%s, %s, %d, %s, %d, %s},'):format(op, op, op, driver,
        RESULTS[spec.result] or "RESULT_NONE", spec.ulp or 0, nan,
        spec.zero == "any" and 1 or 0, reach_of(meaning))
end

-- Ops that or_stray is judged with where it judges trials.
M.TRIAL_OPS = { "exp2_near", "exp2_near_fast", "has_high_bits" }

-- Names of the vocabulary's ops, sorted.
function M.op_names(vocabulary)
    local names <const> = {}
    for name in pairs(vocabulary) do names[#names + 1] = name end
    table.sort(names)
    return names
end

-- The program's text.
function M.text(isa, vocabulary)
    local printer <const> = emit.printer(with_access(isa))
    local masks <const> = MASKS[isa.types.mask] or VECTOR_MASK
    local runs <const>, means <const>, entries <const> = {}, {}, {}
    for _, op in ipairs(M.op_names(vocabulary)) do
        local spec <const> = vocabulary[op]
        local meaning <const> = isa.ops[op].meaning or spec.meaning
        runs[#runs + 1] = run_text(printer, op, spec, isa.lanes)
        means[#means + 1] = mean_text(op, spec, meaning)
        entries[#entries + 1] = entry_text(op, spec, meaning)
    end
    for _, op in ipairs(isa.trial == "bits" and M.TRIAL_OPS or {}) do
        if not vocabulary[op] then
            runs[#runs + 1] = run_text(printer, op, isa_data.vocabulary[op], isa.lanes)
        end
    end
    printer:func(transpose_function())
    printer:func(regroup_function())
    local access <const> = ACCESS:gsub("READ", function() return masks.read end)
        :gsub("WRITE", function() return masks.write end):gsub("VEC", isa.types.vec)
        :gsub("%f[%w_]MASK%f[^%w_]", isa.types.mask)
    local parts <const> = {
        ("/* Written by tests/vocab/program.lua for %s. */"):format(isa.name),
        ("#define LANES %d"):format(isa.lanes),
        ("#define EXP2_GROWS %d"):format(isa.trial == "sums" and 1 or 0),
        ("#define TRIAL_BY_BITS %d"):format(isa.trial == "bits" and 1 or 0),
        '#include "tests/vocab/check.h"\n',
        isa.header and ("#include <%s>\n"):format(isa.header) or "",
        access, table.concat(printer:helper_texts(), "\n"), printer:text(),
        table.concat(runs, "\n"), table.concat(means, "\n"),
        "static const operation operations[] = {", table.concat(entries, "\n"), "};\n",
        "int main(void)\n{\n    return judge(operations, sizeof operations / "
            .. "sizeof operations[0], apply_transpose, apply_regroup);\n}\n",
    }
    return table.concat(parts, "\n")
end

return M
