-- Prints functions of gen/ir as C: syntax, formatting, literals. Takes the texts of vector ops from
-- the ISA's data and decides nothing about the kernel.
local emit <const> = {}

local WIDTH <const> = 100

-- Scalar C that no ISA changes. `$n` is an argument as a value or address, `$[n]` as an element.
local scalar_ops <const> = {
    address = "$1",
    from_memory = "from_memory($1)",
    at = "*$1",
    put_at = "*$1 = $2",
    field = "$1->$2",
    field_at = "$1->$2 + $3",
    share = "$1 * $2 / $3",
    share_end = "$1 * ($2 + 1) / $3",
    share_after = "($1 * $2 + $4 % $3) / $3",
    share_end_after = "($1 * ($2 + 1) + $4 % $3) / $3",
    outside_in = "$1 % 2 == 0 ? $1 / 2 : $2 - $1 / 2",
    transpose = "transpose_block($1, $2, $3, $4)",
    transpose_part = "transpose_part($1, $2, $3, $4, $5)",
    regroup = "regroup_block($1, $2, $3, $4, $5)",
    nonzero = "$1 != 0",
    times_zero = "$[1] * 0.0f",
    min = "$1 < $2 ? $1 : $2",
    at_least = "$1 > $2 ? $1 : $2",
    excess = "$1 > $2 ? $1 - $2 : 0",
    round_down = "$1 / $2 * $2",
    sum = "$1 + $2",
    times = "$1 * $2",
    quotient = "$1 / $2",
    remainder = "$1 % $2",
    copy = "$1",
    one = "1",
    none = "0",
    load_i32 = "(size_t)$[1]",
    load_f32 = "$[1]",
    copy_f32 = "$[1] = $[2]",
    store_zero = "$[1] = 0.0f",
    store_one = "$[1] = 1.0f",
    store_product = "$[1] = $[2] * $[3]",
    store_value = "$[1] = $2",
    add_value = "$[1] += $2",
    scale_value = "$[1] *= $2",
    add_product = "$[1] += $[2] * $[3]",
    constant_f32 = "$1",
    or_into = "$1 | $2",
    and_not = "$1 && !$2",
    byte_set = "$[1] != 0",
    lt = "$1 < $2",
    ge = "$1 >= $2",
    both = "($1) && ($2)",
    value_allowed = "$[1] != minus_infinity()",
    float_positive = "!($1 > 0.0f && $1 < 0x1p127f)",
    true_ = "$1",
    false_ = "!$1",
    store_keep = "$[1] = $[2] != 0 ? 0.0f : minus_infinity()",
    store_keep_add = "$[1] = $[2] != 0 ? $[3] : minus_infinity()",
}

local scalar_helpers <const> = { from_memory = "from_memory", transpose = "transpose_block",
    transpose_part = "transpose_part", regroup = "regroup_block",
    value_allowed = "minus_infinity",
    store_keep = "minus_infinity",
    store_keep_add = "minus_infinity" }

local c_types <const> = {
    size = "size_t", float = "float", int = "int",
    input = "const float *restrict", output = "float *restrict", scratch = "float *restrict",
    pointer = "const float *", bytes = "const uint8_t *", lengths = "const int32_t *",
    args = "const attn_args *restrict", writable = "float *",
}

-- A float literal that reads back exactly.
function emit.float(value)
    if value == math.floor(value) and math.abs(value) < 1e6 then return ("%.1ff"):format(value) end
    return ("%af"):format(value)
end

-- Joined by `..`, here and below: string.format costs three times as much, and every line passes.
local function term_text(factor, name) return factor == 1 and name or factor .. " * " .. name end

-- A sum, what is subtracted last.
local function index_text(index)
    local constant <const>, terms <const> = index.constant, index.terms
    if #terms == 0 then return constant .. "" end
    local sum, subtracted = nil, ""
    for i = 1, #terms do
        local term <const> = terms[i]
        if term.factor < 0 then
            subtracted = subtracted .. " - " .. term_text(-term.factor, term.name)
        else
            local text <const> = term_text(term.factor, term.name)
            sum = sum and sum .. " + " .. text or text
        end
    end
    assert(sum, "an index starts with what is added")
    if constant > 0 then sum = sum .. " + " .. constant end
    if constant < 0 then subtracted = subtracted .. " - " .. -constant end
    return sum .. subtracted
end

local function is_zero(index) return #index.terms == 0 and index.constant == 0 end

local function value_text(value)
    if type(value) == "string" then return value end
    if value.kind == "index" then return index_text(value) end
    if value.kind == "word" then return value.text end
    if value.kind == "ref" then return "&" .. value.name end
    if value.kind == "float" then return emit.float(value.value) end
    if is_zero(value.index) then return value.base end
    return value.base .. " + " .. index_text(value.index)
end

local function element_text(value)
    return value.base .. "[" .. index_text(value.index) .. "]"
end

-- Sums as operands of *, -, < … need parentheses; text inside a call does not.
local function operand_text(value)
    local text <const> = value_text(value)
    if type(value) == "table" and value.kind == "index" and text:find(" [+-] ") then
        return "(" .. text .. ")"
    end
    return text
end

local Printer <const> = {}
Printer.__index = Printer

-- A printer for one file. It remembers which helper functions the printed ops rely on.
function emit.printer(isa_data)
    return setmetatable({ isa = isa_data, lines = {}, depth = 0, helpers = {}, parsed = {},
        scratch = {} },
        Printer)
end

-- Where to break `text` so that the first piece has at most `room` characters: after the last
-- comma, else before the last operator.
local function find_break(text, room)
    for position = room, 20, -1 do
        if text:sub(position, position + 1) == ", " then return position + 1 end
    end
    for position = room, 20, -1 do
        if text:find("^ [%+%-%?:|&=]+ ", position) then return position end
    end
    return nil
end

-- Appends a line of code to `lines`, broken where it is too long. Comments and preprocessor lines
-- stay as they are.
local function add_line(lines, line)
    if #line <= WIDTH and line:find("[^ ]") then
        lines[#lines + 1] = line
        return
    end
    local indent <const> = line:match("^ *")
    local rest, prefix = line:sub(#indent + 1), indent
    while #prefix + #rest > WIDTH and not rest:find("^[/*#]") do
        local cut <const> = find_break(rest, WIDTH - #prefix)
        if not cut then break end
        lines[#lines + 1] = prefix .. rest:sub(1, cut):gsub("%s+$", "")
        rest = rest:sub(cut + 1):gsub("^%s+", "")
        prefix = indent .. "    "
    end
    lines[#lines + 1] = rest == "" and "" or prefix .. rest
end

-- `text` with its long lines of code broken.
function emit.wrap(text)
    local lines <const> = {}
    for line in text:gmatch("([^\n]*)\n") do add_line(lines, line) end
    return table.concat(lines, "\n") .. "\n"
end

-- One line at the current depth.
function Printer:line(text) add_line(self.lines, ("    "):rep(self.depth) .. text) end

-- An op's text cut into literals and {argument number, how to print it}: as an element (`$[n]`, and
-- `*($n)`, which reads better so), an operand (in parentheses where it is a sum) or a value (inside
-- a call).
local function parse_text(text, is_vector_op)
    local pieces <const>, at = {}, 1
    local inside_call <const> = is_vector_op and text:find("^[%w_]+%(")
    text = text:gsub("%*%(%$(%d)%)", "$[%1]")
    for literal, marker, position in text:gmatch("([^$]*)($%[?%d%]?)()") do
        pieces[#pieces + 1] = literal
        local element <const> = marker:sub(2, 2) == "["
        if not element and marker:sub(-1) == "]" then
            marker, position = marker:sub(1, -2), position - 1
        end
        pieces[#pieces + 1] = { argument = tonumber(marker:match("%d")),
            print = element and element_text or inside_call and value_text or operand_text }
        at = position
    end
    pieces[#pieces + 1] = text:sub(at)
    return pieces
end

function Printer:op_text(op, args)
    local pieces = self.parsed[op]
    if not pieces then
        local vector_op <const> = self.isa.ops[op]
        local text <const> = vector_op and vector_op.text or scalar_ops[op]
        assert(text, "no such op: " .. tostring(op))
        local helper <const> = vector_op and vector_op.helper or scalar_helpers[op]
        if helper then self.helpers[helper] = true end
        pieces = parse_text(text, vector_op ~= nil)
        self.parsed[op] = pieces
    end
    local out <const> = self.scratch
    for i = 1, #pieces, 2 do -- literals and arguments take turns
        local piece <const> = pieces[i + 1]
        out[i] = pieces[i]
        if piece then out[i + 1] = piece.print(args[piece.argument]) end
    end
    return table.concat(out, "", 1, #pieces)
end

function Printer:type_text(name)
    local pointee <const> = name:match("^(%w+) %*$")
    if pointee then return self:type_text(pointee) .. " *" end
    return self.isa.types[name] or c_types[name] or error("no such type: " .. tostring(name))
end

local function join_pointer(type_text, name)
    if type_text:sub(-1) == "*" then return type_text .. name end
    return type_text .. " " .. name
end

local printers <const> = {}

local function call_text(name, values)
    local args <const> = {}
    for i, value in ipairs(values) do args[i] = value_text(value) end
    return ("%s(%s)"):format(name, table.concat(args, ", "))
end

function printers.note(self, node) self:line("/* " .. node.text .. " */") end

function printers.blank(self) self:line("") end

function printers.let(self, node)
    local type_text = self:type_text(node.type)
    if not node.mutable and not type_text:find("*", 1, true) then type_text = "const "
        .. type_text end
    type_text = join_pointer(type_text, node.name)
    local value <const> = node.fn and call_text(node.fn, node.args)
        or self:op_text(node.op, node.args)
    self:line(type_text .. " = " .. value .. ";")
end

function printers.set(self, node)
    self:line(node.name .. " = " .. self:op_text(node.op, node.args) .. ";")
end

function printers.run(self, node) self:line(self:op_text(node.op, node.args) .. ";") end

function printers.call(self, node) self:line(call_text(node.name, node.args) .. ";") end

local function print_body(self, body)
    self.depth = self.depth + 1
    -- a scope that fills its block adds nothing
    while #body.nodes == 1 and body.nodes[1].kind == "scope" do body = body.nodes[1].body end
    self:block(body)
    self.depth = self.depth - 1
end

function printers.scope(self, node)
    if #node.body.nodes == 0 then return end
    self:line("{")
    print_body(self, node.body)
    self:line("}")
end

printers["for"] = function(self, node)
    local first <const> = ("size_t %s = %s"):format(node.var, index_text(node.from))
    local whole_turns <const> = math.type(node.step) == "integer"
        and #node.from.terms == 0 and #node.to.terms == 0
        and (node.to.constant - node.from.constant) % node.step == 0
    local below <const> = node.below or whole_turns or math.type(node.step) ~= "integer"
        or node.step == 1
    local test <const> = below and ("%s < %s"):format(node.var, index_text(node.to))
        or ("%s + %d <= %s"):format(node.var, node.step, index_text(node.to))
    local step <const> = node.step == 1 and node.var .. "++"
        or ("%s += %s"):format(node.var, node.step)
    self:line(("for (%s; %s; %s) {"):format(first, test, step))
    print_body(self, node.body)
    self:line("}")
end

function printers.walk(self, node)
    local first <const>, steps <const> = {}, {}
    for i, pointer in ipairs(node.pointers) do
        first[i] = ("*%s = %s"):format(pointer.name, value_text(pointer.from))
        steps[i] = ("%s += %d"):format(pointer.name, pointer.step)
    end
    self:line(("for (const float %s; %s != %s; %s) {"):format(table.concat(first, ", "),
        node.pointers[1].name, value_text(node.to), table.concat(steps, ", ")))
    print_body(self, node.body)
    self:line("}")
end

printers["if"] = function(self, node)
    self:line(("if (%s) {"):format(self:op_text(node.fn, node.args)))
    print_body(self, node.body)
    if node.otherwise then
        self:line("} else {")
        print_body(self, node.otherwise)
    end
    self:line("}")
end

function printers.leave(self, node)
    local value <const> = node.args and node.args[1]
    self:line(node.what .. (value and " " .. value or "") .. ";")
end

function Printer:block(block)
    local nodes <const> = block.nodes
    for i = 1, #nodes do
        local node <const> = nodes[i]
        local print_node <const> = printers[node.kind] or error("no such statement: " .. node.kind)
        print_node(self, node)
    end
end

-- A comment of several lines in house style.
function Printer:comment(lines)
    if #lines == 1 then
        self:line("/* " .. lines[1] .. " */")
        return
    end
    for i, text in ipairs(lines) do
        local open <const> = i == 1 and "/* " or " * "
        self:line(open .. text .. (i == #lines and " */" or ""))
    end
end

-- static void name(params) { body } with its comment above; `fn.apart`: never inlined;
-- `fn.piece`: always, where the compiler optimises; `fn.result`: its type where it gives a value.
function Printer:func(fn)
    local params <const> = {}
    for i, param in ipairs(fn.params) do
        params[i] = join_pointer(self:type_text(param[1]), param[2])
    end
    self:comment(fn.comment)
    local kind <const> = fn.apart and "apart" or fn.piece and "piece"
    if kind then self.helpers[kind] = true end
    self:line(("%s %s %s(%s)"):format(kind and kind:upper() or "static", fn.result or "void",
        fn.name, #params > 0 and table.concat(params, ", ") or "void"))
    self:line("{")
    print_body(self, fn.body)
    self:line("}")
    self:line("")
end

-- ---- A divider between sections ----
function Printer:section(title)
    if #self.lines == 0 then self:line("") end
    local text <const> = "/* ---- " .. title .. " "
    self:line(text .. ("-"):rep(WIDTH - #text - 3) .. " */")
    self:line("")
end

function Printer:text() return table.concat(self.lines, "\n") end

-- Texts of the helper functions that the printed ops need, dependencies first.
function Printer:helper_texts()
    local done <const>, texts <const> = {}, {}
    local function visit(name)
        if done[name] then return end
        done[name] = true
        local helper <const> = self.isa.helpers[name] or emit.common_helpers[name]
        for _, need in ipairs(helper.needs or {}) do visit(need) end
        texts[#texts + 1] = helper.text
    end
    local names <const> = {}
    for name in pairs(self.helpers) do names[#names + 1] = name end
    table.sort(names)
    for _, name in ipairs(names) do visit(name) end
    return texts
end

emit.common_helpers = {
    apart = { text = [[
/* Called from a loop and kept out of it: inlined, compilers move its loads out of that loop, have
 * no registers for them and keep them on the stack. */
#if defined(__GNUC__)
#define APART static __attribute__((noinline))
#elif defined(_MSC_VER)
#define APART static __declspec(noinline)
#else
#define APART static
#endif
]] },
    piece = { text = [[
/* A piece of a long function. Without optimisation every value has its own place on the stack: in
 * pieces the frames stay small. Optimised, the pieces are one function again. */
#if defined(__OPTIMIZE__) && defined(__GNUC__)
#define PIECE static inline __attribute__((always_inline))
#else
#define PIECE static
#endif
]] },
    from_memory = { text = [[
/* The same address, where the compiler no longer knows what was stored: parts of whole vectors are
 * loaded from there. gcc would take them out of registers, by shuffles on a multiply-add's pipe. */
static inline float *from_memory(float *at)
{
#if defined(__GNUC__)
    __asm__("" : "+r"(at));
#endif
    return at;
}
]] },
    float_bits = { text = [[
union float_bits {
    float f;
    uint32_t u;
};
]] },
    minus_infinity = { needs = { "float_bits" }, text = [[
static inline float minus_infinity(void)
{
    const union float_bits v = {.u = 0xff800000u};
    return v.f;
}
]] },
}

return emit
