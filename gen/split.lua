-- Cuts functions that hold too many statements into several: without optimisation every value of
-- every statement has a place of its own on the stack, and a long function a frame that a small
-- thread cannot give. Where the compiler optimises they are inlined again.
-- In: phases of IR, bytes of a vector. Out: the same phases, pieces before their function.
-- Knows statements and scopes; not what they compute.
local ir <const> = require("gen.ir")

local split <const> = {}

-- Estimated bytes at which a function is cut. What compilers really take differs by a quarter
-- either way, and must stay below 64 KiB.
split.FRAME_BYTES = 49152

local SCALAR_BYTES <const> = 8
-- Places of a variable that a piece reads from an address and writes back.
local HANDED_OVER <const> = 4
local vector_types <const> = { vec = true, mask = true }

-- ---- What a statement takes ----------------------------------------------------------------

-- The operands of an intrinsic, its result and the variable: one place each.
local function own_bytes(node, vector_bytes)
    if node.kind ~= "let" and node.kind ~= "set" and node.kind ~= "run" then return 0 end
    local places = node.kind == "let" and 2 or 1
    local args <const> = node.args
    for i = 1, #args do
        if type(args[i]) == "string" then places = places + 1 end
    end
    local is_vector <const> = node.kind ~= "let" or vector_types[node.type]
    return places * (is_vector and vector_bytes or SCALAR_BYTES)
end

local function block_bytes(block, vector_bytes)
    local bytes, nodes <const> = 0, block.nodes
    for i = 1, #nodes do
        local node <const> = nodes[i]
        bytes = bytes + own_bytes(node, vector_bytes)
        if node.body then bytes = bytes + block_bytes(node.body, vector_bytes) end
        if node.otherwise then bytes = bytes + block_bytes(node.otherwise, vector_bytes) end
    end
    return bytes
end

-- ---- What a run of statements needs from outside -------------------------------------------

local function wrap(nodes)
    local block <const> = ir.block()
    block.nodes = nodes
    return block
end

local function leaves(block)
    for _, node in ipairs(block.nodes) do
        if node.kind == "leave" or node.body and leaves(node.body)
            or node.otherwise and leaves(node.otherwise) then
            return true
        end
    end
    return false
end

-- The names that a block assigns, as a list and as a set.
local function collect_sets(block, found)
    local function add(name)
        if found[name] then return end
        found[#found + 1], found[name] = name, true
    end
    for _, node in ipairs(block.nodes) do
        if node.kind == "set" then
            add(node.name)
        elseif node.kind == "call" then
            for _, arg in ipairs(node.args) do
                if type(arg) == "table" and arg.kind == "ref" then add(arg.name) end
            end
        end
        if node.body then collect_sets(node.body, found) end
        if node.otherwise then collect_sets(node.otherwise, found) end
    end
    return found
end

-- Of each node its bytes, the bytes up to its end, the names it assigns, whether it leaves: the
-- search for runs asks again from every start. Also the bytes of all.
local function survey(nodes, vector_bytes)
    local facts <const>, total = {}, 0
    for i, node in ipairs(nodes) do
        local one <const> = wrap({ node })
        local bytes <const> = block_bytes(one, vector_bytes)
        total = total + bytes
        facts[i] = { bytes = bytes, upto = total, assigned = collect_sets(one, {}),
            leaves = leaves(one) }
    end
    return facts, total
end

-- ---- Cutting -------------------------------------------------------------------------------

local Cutter <const> = {}
Cutter.__index = Cutter

-- A function from `nodes`, and the statement that calls it. Variables that the nodes assign are
-- handed over by address.
function Cutter:outline(nodes, scope)
    local body <const>, names <const>, used <const> = wrap(nodes), {}, {}
    for name in pairs(ir.uses(body)) do names[#names + 1] = name end
    table.sort(names)
    for _, name in ipairs(names) do used[#used + 1] = scope[name] and name or nil end
    table.sort(used, function(a, b) return scope[a].order < scope[b].order end)
    local assigned <const> = collect_sets(body, {})
    local params <const>, args <const>, first <const>, last <const> = {}, {}, {}, {}
    for i, name in ipairs(used) do
        local kind <const> = scope[name].type
        if assigned[name] then
            local at <const> = name .. "_at"
            params[i], args[i] = { kind .. " *", at }, ir.ref(name)
            first[#first + 1] = { kind = "let", type = kind, name = name, op = "at",
                args = { ir.word(at) }, mutable = true }
            last[#last + 1] = { kind = "run", op = "put_at", args = { ir.word(at), name } }
        else
            params[i], args[i] = { kind, name }, name
        end
    end
    for _, list in ipairs({ nodes, last }) do table.move(list, 1, #list, #first + 1, first) end
    local number <const> = #self.pieces + 1
    local fn <const> = { name = ("%s_piece%d"):format(self.name, number), piece = true,
        comment = { ("Piece %d of %s."):format(number, self.name) }, params = params,
        body = wrap(first) }
    self.pieces[number] = fn
    return { kind = "call", name = fn.name, args = args }
end

-- The last node of the longest run from `from` that fits in a function and declares nothing that a
-- later node of the block uses; nil when there is none.
function Cutter:find_run(nodes, facts, from, last_use, scope)
    local bytes, needed, best = 0, from, nil
    local start <const> = facts[from].upto - facts[from].bytes
    local handed <const> = {}
    for i = from, #nodes do
        local node <const>, fact <const> = nodes[i], facts[i]
        bytes = bytes + fact.bytes
        for _, name in ipairs(fact.assigned) do
            if scope[name] and not handed[name] then
                handed[name] = true
                bytes = bytes + HANDED_OVER * self.vector_bytes
            end
        end
        if bytes > self.limit and i > from or fact.leaves then break end
        if node.kind == "let" then needed = math.max(needed, last_use[node.name] or i) end
        if needed <= i then
            best = i
        elseif facts[needed].upto - start > self.limit then
            break -- a value lives longer than any run
        end
    end
    return best
end

-- Replaces runs of statements of `block` by calls until what is left fits.
function Cutter:cut(block, outer)
    local scope <const> = setmetatable({}, { __index = outer })
    local function declare(name, kind)
        self.order = self.order + 1
        scope[name] = { type = kind, order = self.order }
    end
    local nodes <const>, last_use <const> = block.nodes, {}
    for i, node in ipairs(nodes) do
        if node.kind == "let" then declare(node.name, node.type) end
        for name in pairs(ir.uses(wrap({ node }))) do last_use[name] = i end
    end
    for _, node in ipairs(nodes) do
        for _, inner in ipairs({ node.body or false, node.otherwise or false }) do
            if inner and block_bytes(inner, self.vector_bytes) > self.limit then
                local inside <const> = setmetatable({}, { __index = scope })
                if node.kind == "for" then
                    self.order = self.order + 1
                    inside[node.var] = { type = "size", order = self.order }
                end
                for _, pointer in ipairs(node.pointers or {}) do
                    self.order = self.order + 1
                    inside[pointer.name] = { type = "pointer", order = self.order }
                end
                self:cut(inner, inside)
            end
        end
    end
    local facts <const>, total <const> = survey(nodes, self.vector_bytes)
    if total <= self.limit then return end
    local kept <const>, i = {}, 1
    while i <= #nodes do
        local last <const> = self:find_run(nodes, facts, i, last_use, scope)
        if last and facts[last].upto - facts[i].upto + facts[i].bytes > self.limit // 8 then
            kept[#kept + 1] = self:outline({ table.unpack(nodes, i, last) }, scope)
            i = last + 1
        else
            kept[#kept + 1] = nodes[i]
            i = i + 1
        end
    end
    block.nodes = kept
end

-- Estimated bytes of a function's frame without optimisation.
function split.frame_bytes(fn, vector_bytes) return block_bytes(fn.body, vector_bytes) end

-- The pieces of `fn`, which then calls them; none where it fits.
local function pieces_of(fn, vector_bytes)
    if split.frame_bytes(fn, vector_bytes) <= split.FRAME_BYTES then return {} end
    local cutter <const> = setmetatable({ name = fn.name, pieces = {}, order = 0,
        limit = split.FRAME_BYTES, vector_bytes = vector_bytes }, Cutter)
    local scope <const> = {}
    for _, param in ipairs(fn.params) do
        cutter.order = cutter.order + 1
        scope[param[2]] = { type = param[1], order = cutter.order }
    end
    cutter:cut(fn.body, scope)
    return cutter.pieces
end

-- Cuts the functions of `phases`.
function split.apply(phases, vector_bytes)
    for _, phase in ipairs(phases) do
        local functions <const> = {}
        for _, fn in ipairs(phase.functions) do
            local pieces <const> = pieces_of(fn, vector_bytes)
            table.move(pieces, 1, #pieces, #functions + 1, functions)
            functions[#functions + 1] = fn
        end
        phase.functions = functions
    end
    return phases
end

return split
