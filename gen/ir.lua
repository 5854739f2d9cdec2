-- Statements of a kernel as data, between the stages (which build them) and emit (which prints
-- them).
--
-- Four kinds of value: an *index* (affine expression over size_t variables), a *mem* (pointer name
-- plus index), a *variable name* (string) and a *float* constant. Statements collect in blocks,
-- blocks in functions. Ops are names of the ISA vocabulary (gen/isa) or of emit's scalar C.
-- A loop whose bounds are constants may be unrolled while it is built: the body is then called with
-- constant indices, so a stage writes its loop nest once. Nothing here knows C or an ISA.
local ir <const> = {}

-- ---- Indices -------------------------------------------------------------------------------

local Index <const> = {}
Index.__index = Index

-- Terms are never changed, so indices may share them.
local NO_TERMS <const> = {}

local function new_index(constant, terms)
    return setmetatable({ kind = "index", constant = constant, terms = terms }, Index)
end

-- An index from an integer, or an index unchanged.
function ir.index(value)
    if type(value) == "table" and value.kind == "index" then return value end
    assert(math.type(value) == "integer", "an integer or an index")
    return new_index(value, NO_TERMS)
end

-- An index naming the size_t variable `name`.
function ir.var(name) return new_index(0, { { name = name, factor = 1 } }) end

function Index.__add(left, right)
    left, right = ir.index(left), ir.index(right)
    if #right.terms == 0 then return new_index(left.constant + right.constant, left.terms) end
    if #left.terms == 0 then return new_index(left.constant + right.constant, right.terms) end
    local terms <const>, position <const> = {}, {}
    for _, side in ipairs({ left.terms, right.terms }) do
        for _, term in ipairs(side) do
            local at <const> = position[term.name]
            if at then
                terms[at] = { name = term.name, factor = terms[at].factor + term.factor }
            else
                terms[#terms + 1] = { name = term.name, factor = term.factor }
                position[term.name] = #terms
            end
        end
    end
    for i = #terms, 1, -1 do
        if terms[i].factor == 0 then table.remove(terms, i) end
    end
    return new_index(left.constant + right.constant, terms)
end

function Index.__mul(left, right)
    if math.type(left) == "integer" then left, right = right, left end
    if type(right) == "table" then
        assert(#right.terms == 0, "an index stays affine")
        right = right.constant
    end
    if right == 0 then return new_index(0, NO_TERMS) end
    local terms <const> = {}
    for i, term in ipairs(left.terms) do
        terms[i] = { name = term.name, factor = term.factor * right }
    end
    return new_index(left.constant * right, terms)
end

-- The integer an index is known to be, or nil.
function ir.constant(value)
    value = ir.index(value)
    if #value.terms == 0 then return value.constant end
    return nil
end

-- ---- Memory and constants ------------------------------------------------------------------

-- Element `index` behind the pointer variable `base`.
function ir.mem(base, index) return { kind = "mem", base = base, index = ir.index(index or 0) } end

-- `mem` moved by `index` elements.
function ir.offset(mem, index) return ir.mem(mem.base, mem.index + index) end

function ir.float(value) return { kind = "float", value = value } end

-- A word that is no variable, such as a field's name.
function ir.word(text) return { kind = "word", text = text } end

-- The address of the variable `name`, for a call that assigns it.
function ir.ref(name) return { kind = "ref", name = name } end

-- ---- Blocks --------------------------------------------------------------------------------

local Block <const> = {}
Block.__index = Block

function ir.block() return setmetatable({ kind = "block", nodes = {} }, Block) end

local function push(block, node) block.nodes[#block.nodes + 1] = node end

-- A comment of one line.
function Block:note(text) push(self, { kind = "note", text = text }) end

function Block:blank() push(self, { kind = "blank" }) end

-- const TYPE name = op(args); returns the name.
function Block:let(type_name, name, op, ...)
    push(self, { kind = "let", type = type_name, name = name, op = op, args = { ... } })
    return name
end

-- TYPE name = op(args), to be assigned again; returns the name.
function Block:declare(type_name, name, op, ...)
    push(self, { kind = "let", type = type_name, name = name, op = op, args = { ... },
        mutable = true })
    return name
end

function Block:set(name, op, ...) push(self, { kind = "set", name = name, op = op,
    args = { ... } }) end

-- A statement without a result, such as a store.
function Block:run(op, ...) push(self, { kind = "run", op = op, args = { ... } }) end

local folds <const> = {
    min = function(a, b) return a < b and a or b end,
    excess = function(a, b) return a > b and a - b or 0 end,
    round_down = function(a, b) return a // b * b end,
    quotient = function(a, b) return a // b end,
    remainder = function(a, b) return a % b end,
}

-- const size_t name = fn(args) as an index; folded away when every argument is constant.
-- fn: min, excess (a - b or 0), quotient, remainder, round_down (to a multiple of b), at_least (the
-- larger), or load_i32 (a mem).
function Block:size(name, fn, ...)
    local args <const> = { ... }
    if folds[fn] then
        local a <const>, b <const> = ir.constant(args[1]), ir.constant(args[2])
        if a and b then return ir.index(folds[fn](a, b)) end
        if b == 0 and fn == "excess" then return ir.index(args[1]) end
        if a == 0 then return ir.index(0) end
        args[1], args[2] = ir.index(args[1]), ir.index(args[2])
    end
    push(self, { kind = "let", type = "size", name = name, op = fn, args = args })
    return ir.var(name)
end

-- A pointer variable for `mem`, unless its offset is constant (then the mem itself serves).
function Block:pointer(type_name, name, mem)
    if ir.constant(mem.index) then return mem end
    push(self, { kind = "let", type = type_name, name = name, op = "address", args = { mem } })
    return ir.mem(name)
end

function Block:scope(build)
    local body <const> = ir.block()
    build(body)
    push(self, { kind = "scope", body = body })
end

-- for (size_t var = from; var + step <= to; var += step); from and to may be indices, step an
-- integer or the name of a variable. With `below`, or a variable step, the test is var < to.
-- A loop known to have no turn is left out.
function Block:loop(options, build)
    local from <const>, to <const> = ir.constant(options.from), ir.constant(options.to)
    if from and to and from >= to then return end
    local body <const> = ir.block()
    build(body, ir.var(options.var))
    push(self, { kind = "for", var = options.var, from = ir.index(options.from),
        to = ir.index(options.to), step = options.step or 1, below = options.below, body = body })
end

-- for (name = from, …; name != to; name += step, …): a loop over pointers instead of an index.
-- pointers: list of {name, from (a mem), step (an integer)}; `to`, a mem, is where the first ends.
function Block:walk(pointers, to, build)
    local body <const> = ir.block()
    build(body)
    push(self, { kind = "walk", pointers = pointers, to = to, body = body })
end

-- The same with constant bounds and a count: unrolled (constants to `build`) or a loop.
function Block:each(var, count, unrolled, build)
    if count == 0 then return end
    if count == 1 then
        self:scope(function(body) build(body, ir.index(0)) end)
    elseif unrolled then
        for i = 0, count - 1 do
            self:scope(function(body) build(body, ir.index(i)) end)
        end
    else
        self:loop({ var = var, from = 0, to = count }, build)
    end
end

-- if (fn(args)) { … }. Conditions over constants are decided here.
function Block:when(fn, args, build, otherwise)
    local known = nil
    if fn == "lt" then
        local a <const>, b <const> = ir.constant(args[1]), ir.constant(args[2])
        if a and b then known = a < b end
        args = { ir.index(args[1]), ir.index(args[2]) }
    end
    if known == nil then
        local body <const> = ir.block()
        build(body)
        local other
        if otherwise then
            other = ir.block()
            otherwise(other)
        end
        push(self, { kind = "if", fn = fn, args = args, body = body, otherwise = other })
    elseif known then
        self:scope(build)
    elseif otherwise then
        self:scope(otherwise)
    end
end

-- Ends the innermost loop's turn or, in a function body, the function.
function Block:leave(what) push(self, { kind = "leave", what = what }) end

-- ---- Functions -----------------------------------------------------------------------------

-- Every statement passes here several times; numeric loops cost half of ipairs.
local function note_use(seen, value)
    local kind <const> = type(value)
    if kind == "string" then
        seen[value] = true
    elseif kind == "table" then
        local index = value
        if value.kind == "mem" then
            seen[value.base] = true
            index = value.index
        elseif value.kind == "ref" then
            seen[value.name] = true
        end
        local terms <const> = index.terms
        for i = 1, terms and #terms or 0 do seen[terms[i].name] = true end
    end
end

local function collect_uses(block, seen, declared)
    local nodes <const> = block.nodes
    for i = 1, #nodes do
        local node <const> = nodes[i]
        local kind <const>, args <const> = node.kind, node.args
        if kind == "let" then
            declared[node.name] = true
        elseif kind == "set" then
            seen[node.name] = true
        elseif kind == "for" then
            declared[node.var] = true
            note_use(seen, node.step)
            note_use(seen, node.from)
            note_use(seen, node.to)
        elseif kind == "walk" then
            for _, pointer in ipairs(node.pointers) do
                declared[pointer.name] = true
                note_use(seen, pointer.name)
                note_use(seen, pointer.from)
            end
            note_use(seen, node.to)
        end
        for k = 1, args and #args or 0 do note_use(seen, args[k]) end
        if node.body then collect_uses(node.body, seen, declared) end
        if node.otherwise then collect_uses(node.otherwise, seen, declared) end
    end
end

-- The set of variable names a block uses and does not declare.
function ir.uses(block)
    local seen <const>, declared <const> = {}, {}
    collect_uses(block, seen, declared)
    for name in pairs(declared) do seen[name] = nil end
    return seen
end

-- Drops the values in the set `unused`: a stage may name what only some shapes need. Ops with a
-- result have no effect of their own.
local function drop_unused(block, unused)
    local kept <const>, dropped = {}, false
    for _, node in ipairs(block.nodes) do
        if node.kind == "let" and unused[node.name] then
            dropped = true
        else
            kept[#kept + 1] = node
            if node.body and drop_unused(node.body, unused) then dropped = true end
            if node.otherwise and drop_unused(node.otherwise, unused) then dropped = true end
        end
    end
    if dropped then block.nodes = kept end
    return dropped
end

-- Drops what is unused, and what only that used. Returns ir.uses of what is left.
local function prune(block)
    while true do
        local seen <const>, declared <const> = {}, {}
        collect_uses(block, seen, declared)
        local unused <const> = {}
        for name in pairs(declared) do unused[name] = not seen[name] or nil end
        if not next(unused) or not drop_unused(block, unused) then
            for name in pairs(declared) do seen[name] = nil end
            return seen
        end
    end
end

-- Names are looked up over the whole function, not by scope: within one function a stage gives a
-- name one meaning.
--
-- A function from `candidates`, an ordered list of {type, name}: those the body uses become its
-- parameters. `comment` is a list of lines. Call it with Block:call(fn). The fields `apart`
-- (never inlined) and `piece` (inlined where the compiler optimises) may be set.
function ir.func(name, comment, candidates, build)
    local body <const> = ir.block()
    build(body)
    local seen <const>, params <const> = prune(body), {}
    for _, candidate in ipairs(candidates) do
        if seen[candidate[2]] then params[#params + 1] = candidate end
    end
    return { name = name, comment = comment, params = params, body = body }
end

-- A function that gives an int: build(body) returns its name. Block:ask calls it.
function ir.question(name, comment, candidates, build)
    local fn <const> = ir.func(name, comment, candidates, function(body)
        push(body, { kind = "leave", what = "return", args = { build(body) } })
    end)
    fn.result = "int"
    return fn
end

local function arguments(fn, replace)
    local args <const> = {}
    for i, param in ipairs(fn.params) do
        local value = param[2]
        if replace and replace[value] ~= nil then value = replace[value] end
        args[i] = value
    end
    return args
end

-- fn(parameters …): each parameter gets the variable of the same name, or replace[name].
function Block:call(fn, replace)
    push(self, { kind = "call", name = fn.name, args = arguments(fn, replace) })
end

-- const int name = fn(parameters …); returns the name.
function Block:ask(name, fn)
    push(self, { kind = "let", type = "int", name = name, fn = fn.name, args = arguments(fn) })
    return name
end

local function equal(a, b)
    if a == b then return true end
    if type(a) ~= "table" or type(b) ~= "table" then return false end
    for key, value in pairs(a) do
        if not equal(value, b[key]) then return false end
    end
    for key in pairs(b) do
        if a[key] == nil then return false end
    end
    return true
end

-- Whether two functions differ in their name and comment only.
function ir.is_same(a, b) return equal(a.params, b.params) and equal(a.body, b.body) end

-- Number of statements a block prints; the plan's estimates are checked against it.
function ir.count(block)
    local total = 0
    for _, node in ipairs(block.nodes) do
        if node.kind ~= "note" and node.kind ~= "blank" then total = total + 1 end
        if node.body then total = total + ir.count(node.body) end
        if node.otherwise then total = total + ir.count(node.otherwise) end
    end
    return total
end

return ir
