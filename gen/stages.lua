-- From a plan to the functions of a kernel: runs the stages in order and collects what they build.
-- In: plan. Out: list of phases, each {name, title, functions, entry}; `entry` is the function that
-- the driver calls with (weights, args, workspace, part, parts) as far as it needs them, or another
-- phase does (`inner`).
local ir <const> = require("gen.ir")
local project <const> = require("gen.stage.project")
local attention <const> = require("gen.stage.attention")
local dims <const> = require("gen.stage.dims")
local heads <const> = require("gen.stage.heads")
local cache <const> = require("gen.stage.cache")
local output <const> = require("gen.stage.output")

local stages <const> = {}

-- Which way the lanes lie decides how heads and rows are walked.
local attention_walks <const> = { queries = attention, dims = dims, heads = heads }

-- Fields of attn_args by the name phases use, with the type of the local pointer.
local argument_fields <const> = {
    { "x", "pointer" }, { "context", "pointer" }, { "q", "pointer" }, { "k", "pointer" },
    { "v", "pointer" }, { "k_cache", "writable" }, { "v_cache", "writable" },
    { "kv_lengths", "lengths" }, { "key_keep", "bytes" },
    { "mask_keep", "bytes" }, { "mask_add", "pointer" }, { "y", "writable" },
    { "weights_out", "writable", "weights" },
}

local entry_parameters <const> = {
    { "input", "weights" }, { "args", "args" }, { "scratch", "workspace" }, { "size", "part" },
    { "size", "parts" },
}

local Phase <const> = {}
Phase.__index = Phase

-- Appends a function and returns it.
function Phase:add(fn)
    self.functions[#self.functions + 1] = fn
    return fn
end

-- Appends `fn` unless the phase has the same function under that name already; different functions
-- of one name are told apart by a number.
function Phase:share(fn)
    local wanted <const> = fn.name
    local alike <const> = self.by_name[wanted] or {}
    self.by_name[wanted] = alike
    for _, known in ipairs(alike) do
        if ir.is_same(known, fn) then return known end
    end
    if #alike > 0 then fn.name = ("%s_%d"):format(wanted, #alike + 1) end
    alike[#alike + 1] = fn
    return self:add(fn)
end

local Kernel <const> = {}
Kernel.__index = Kernel

function Kernel:phase(name, title)
    local phase <const> = setmetatable({ name = name, title = title, functions = {},
        by_name = {},
        body = ir.block() }, Phase)
    self.phases[#self.phases + 1] = phase
    return phase
end

-- The workspace buffer `name`.
function Kernel:buffer(name)
    assert(self.buffers[name], "no such buffer: " .. name)
    return ir.mem("ws_" .. name)
end

-- Where the tensor of `layout` lives: a workspace buffer or an argument of the call.
function Kernel:place(layout)
    if layout.argument then return ir.mem(layout.argument) end
    return ir.offset(self:buffer(layout.buffer), layout.offset or 0)
end

local item_block_parameters <const> = { table.unpack(entry_parameters) }
item_block_parameters[#item_block_parameters + 1] = { "size", "item_block" }

-- The function the driver calls, for all items or those of an item block: local pointers for what
-- the body uses, then the body.
local function make_entry(phase, plan)
    local used <const> = ir.uses(phase.body)
    local parameters <const> = plan.item_block and item_block_parameters or entry_parameters
    return ir.func("phase_" .. phase.name, { phase.title .. "." }, parameters, function(block)
        if plan.straight then
            -- nothing to share out: one part does it all
            block:when("nonzero", { "part" }, function(body) body:leave("return") end)
        end
        for _, field in ipairs(argument_fields) do
            if used[field[1]] then
                local name <const> = ir.word(field[3] or field[1])
                local stride <const> = plan.item_block and plan.item_block.strides[field[1]] or 0
                if stride > 0 then
                    block:let(field[2], field[1], "field_at", "args", name,
                        ir.var("item_block") * stride)
                else
                    block:let(field[2], field[1], "field", "args", name)
                end
            end
        end
        for _, buffer in ipairs(plan.shared_buffers) do
            if used["ws_" .. buffer.name] then
                block:let("writable", "ws_" .. buffer.name, "address",
                    ir.mem("workspace", buffer.offset))
            end
        end
        for _, node in ipairs(phase.body.nodes) do block.nodes[#block.nodes + 1] = node end
    end)
end

-- A phase of its own around all others: blocks of items, one after the other.
local function add_item_blocks(kernel, plan)
    local stages_of_block <const> = { table.unpack(kernel.phases) }
    local blocks <const> = plan.item_block
    local title <const> = blocks.items == 1 and "Item by item through all stages"
        or ("%d items at a time through all stages"):format(blocks.items)
    local phase <const> = kernel:phase("items", title)
    phase.entry = ir.func("phase_items", { phase.title .. "." }, entry_parameters, function(body)
        body:let("writable", "own", "address",
            ir.mem("workspace", ir.var("part") * plan.part_floats))
        local count <const> = ir.index(blocks.count)
        local first <const> = body:size("first", "share", count, "part", "parts")
        local last <const> = body:size("last", "share_end", count, "part", "parts")
        body:loop({ var = "item_block", from = first, to = last }, function(inner, item_block)
            for _, stage in ipairs(stages_of_block) do
                stage.inner = true
                inner:call(stage.entry, { workspace = ir.mem("own"), part = ir.index(0),
                    parts = ir.index(1), item_block = item_block })
            end
        end)
    end)
end

-- The phases of the kernel that `plan` describes.
function stages.build(plan)
    local kernel <const> = setmetatable({ phases = {}, buffers = {} }, Kernel)
    for _, buffer in ipairs(plan.shared_buffers) do kernel.buffers[buffer.name] = buffer end
    if plan.problem.op == "mha" then project.build(kernel, plan) end
    if plan.append then cache.build(kernel, plan) end
    if plan.pad_values then project.build_padding(kernel, plan) end
    if plan.lift then
        project.build_blocks(kernel, plan, plan.lift, "lift", "Queries times the key weights")
    end
    attention_walks[plan.attention.orientation].build(kernel, plan)
    if plan.defer then
        project.build_blocks(kernel, plan, plan.defer, "defer",
            "Value weights: heads = context . Wv^T")
    end
    if plan.output then output.build(kernel, plan) end
    for _, phase in ipairs(kernel.phases) do phase.entry = make_entry(phase, plan) end
    if plan.item_block then add_item_blocks(kernel, plan) end
    return kernel.phases
end

return stages
