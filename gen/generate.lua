-- The whole pipeline in one call: config record -> problem -> fold -> plan -> stages -> emit ->
-- template. Pure but for reading the skeletons beside it; writing files is the caller's.
local bundle <const> = require("gen.bundle")
local fold <const> = require("gen.fold")
local fs <const> = require("gen.fs")
local isa <const> = require("gen.isa")
local manifest <const> = require("gen.manifest")
local plan <const> = require("gen.plan")
local problem <const> = require("gen.problem")
local report <const> = require("gen.report")
local split <const> = require("gen.split")
local stages <const> = require("gen.stages")

local generate <const> = {}

local skeletons <const> = { "kernel.c.in", "kernel.h.in", "variant.h.in", "pack_declaration.h.in",
    "dispatcher.h.in", "dispatcher.c.in", "dispatcher_pack.c.in", "pack.c.in" }

local function root()
    local path <const> = assert(package.searchpath("gen.generate", package.path))
    return path:match("^(.*)gen/generate%.lua$")
end

local function read_skeletons()
    local texts <const> = {}
    for _, name in ipairs(skeletons) do
        texts[name] = assert(fs.read(root() .. "templates/" .. name))
    end
    texts["kernel.h"] = assert(fs.read(root() .. "runtime/include/attngen/kernel.h"))
    return texts
end

-- The resolved config as plain data, for the banner and the manifest.
function generate.config_data(record)
    local data <const> = {}
    for key, value in pairs(record) do data[key] = value end
    if not next(data.plan) then data.plan = nil end
    if not data.tuning or not next(data.tuning) then data.tuning = nil end
    if not next(data.target) then data.target = nil end
    local masks <const> = {}
    for _, name in ipairs({ "causal", "lengths", "padding", "bool", "additive" }) do
        if record.mask[name] then masks[#masks + 1] = name end
    end
    data.mask = #masks > 0 and masks or "none"
    if record.scale_is_default then data.scale = nil end
    data.scale_is_default = nil
    -- what the other keys imply, or the op refuses, is not repeated
    if not record.mask.bool and not record.mask.additive then data.mask_shape = nil end
    if not record.mask.lengths then data.padded_queries = nil end
    if not record.mask.causal then data.causal_align = nil end
    if record.op == "sdpa" then
        for _, key in ipairs({ "d_model", "kv_dim", "bias", "cross", "output_projection" }) do
            data[key] = nil
        end
    elseif not record.output_projection then
        data.bias = { q = record.bias.q, k = record.bias.k, v = record.bias.v }
    end
    if not record.cross then data.kv_dim = nil end
    if not record.kv_cache then data.kv_cache = nil end
    if record.kv_cache == "static" then
        data.bias = { q = record.bias.q, o = record.output_projection and record.bias.o or nil }
    end
    if record.queries == "all" then data.queries = nil end
    return data
end

-- The plan of a record for one ISA. Raises {errors = {…}} where the planner refuses.
function generate.build_plan(record, isa_name)
    local copy <const> = {}
    for key, value in pairs(record) do copy[key] = value end
    local tuned <const> = record.tuning and record.tuning[isa_name]
    if tuned then copy.plan, copy.unroll = tuned.plan, tuned.unroll or record.unroll end
    return plan.build(fold.apply(problem.build(copy)), isa.get(isa_name))
end

-- Variants in the registry's order, whatever order the config names them in.
local function variant_names(record)
    local names <const> = {}
    for _, name in ipairs(isa.names) do
        for _, wanted in ipairs(record.isa) do
            if wanted == name then names[#names + 1] = name end
        end
    end
    return names
end

-- The bundle of a validated record: { files = {{path, text}, …}, manifest }. Raises {errors = {…}}
-- for what only the plan can refuse (registers, code budget).
function generate.bundle(record)
    local resolved <const> = {}
    for key, value in pairs(record) do resolved[key] = value end
    resolved.config_data = generate.config_data(record)
    resolved.config_lines = manifest.lines(resolved.config_data)
    resolved.hash = manifest.hash(table.concat(resolved.config_lines, "\n"))
    local names <const> = variant_names(record)
    local variants <const> = {}
    for i, name in ipairs(names) do
        local built <const> = generate.build_plan(record, name)
        variants[i] = { plan = built, isa = isa.get(name),
            phases = split.apply(stages.build(built), 4 * built.machine.lanes),
            tuned = record.tuning and record.tuning[name] or nil,
            prefix = #names > 1 and record.name .. "_" .. name or record.name }
    end
    return bundle.build(resolved, variants, read_skeletons())
end

-- What would be generated, one report per ISA: {name, variants = {…}}.
function generate.plan(record)
    local reports <const> = {}
    for i, name in ipairs(variant_names(record)) do
        reports[i] = report.build(generate.build_plan(record, name))
        reports[i].origin = report.origin(record, name)
    end
    return { name = record.name, variants = reports }
end

-- The reports as text.
function generate.describe(reports)
    local texts <const> = {}
    for i, one in ipairs(reports.variants) do texts[i] = report.describe(one) end
    return table.concat(texts, "\n")
end

return generate
