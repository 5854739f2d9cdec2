-- The plans a search may try: a pure function of the problem, the target and the compilers at hand.
--   input:  a record with one ISA, {compilers = {"gcc", …}, levels = {"-O3", …}}
--   output: dimensions of legal, hopeful values, the pruned ones with their reason, and candidates
-- Dimensions come from the list of plan overrides in gen.keys: a new override is a new dimension.
-- What the config fixes itself is no dimension. Builds nothing and measures nothing.
local diagnostics <const> = require("gen.diagnostics")
local generate <const> = require("gen.generate")
local isa <const> = require("gen.isa")
local keys <const> = require("gen.keys")
local tiles <const> = require("gen.plan.tiles")

local M = {}

-- A value whose stage costs this much more than the stage's best, by the planner's model, is not
-- tried. The model is within some ten per cent of the truth for tiles that do not spill.
M.HOPELESS = 1.5

-- Fields of a plan that only name a choice; two plans that differ in them alone are the same code.
-- (The rows of a key tile are more than a name where the key loop has a bound of its own.)
local NAMES <const> = { cycles = true, softmax_cycles = true, gather_cycles = true,
    tile_rows = true, tile_vectors = true, scores_vectors = true, context_rows = true,
    context_vectors = true, reason = true, reasons = true,
    context_reason = true, context_cycles = true }

----------------------------------------------------------------------------------------------------
-- Plans
----------------------------------------------------------------------------------------------------

local function serialise(value, out, skip)
    if type(value) ~= "table" then
        out[#out + 1] = math.type(value) == "float" and ("%a"):format(value) or tostring(value)
        return
    end
    out[#out + 1] = "{"
    for _, key in ipairs(diagnostics.sorted_keys(value)) do
        if not skip[key] then
            out[#out + 1] = tostring(key) .. "="
            serialise(value[key], out, skip)
            out[#out + 1] = ";"
        end
    end
    out[#out + 1] = "}"
end

-- Equal for plans that are emitted as the same code.
function M.signature(plan)
    local out <const> = {}
    local skip <const> = setmetatable({ problem = true,
        key_rows = not plan.attention.range_loops or nil }, { __index = NAMES })
    serialise(plan, out, skip)
    serialise(plan.problem.fold, out, NAMES)
    return table.concat(out)
end

-- The planner's model, cycles a component: which ones a value changes says what it is about.
local function components(plan)
    local list <const> = {}
    for index, projection in ipairs(plan.projections) do
        list[index] = projection.cycles
    end
    list[#list + 1] = plan.attention.cycles
    list[#list + 1] = plan.output and plan.output.cycles
    return list
end

local function total(list)
    local sum = 0.0
    for _, cycles in ipairs(list) do
        sum = sum + cycles
    end
    return sum
end

-- Model cycles of the components that differ from the planner's own plan, and its own there.
local function changed(list, default)
    local mine, its = 0.0, 0.0
    for index = 1, math.max(#list, #default) do
        if list[index] ~= default[index] then
            mine, its = mine + (list[index] or 0.0), its + (default[index] or 0.0)
        end
    end
    return mine, its
end

----------------------------------------------------------------------------------------------------
-- Values
----------------------------------------------------------------------------------------------------

-- The record with the overrides `set` ("project.rows" or "unroll" -> value).
function M.with_values(record, set)
    local copy <const> = {}
    for key, value in pairs(record) do
        copy[key] = value
    end
    copy.plan = {}
    for _, stage in ipairs(keys.plan_stages) do
        local given <const> = record.plan[stage.name]
        local fields
        for _, field in ipairs(stage.fields) do
            local value = set[stage.name .. "." .. field.name]
            if value == nil and given then
                value = given[field.name]
            end
            if value ~= nil then
                fields = fields or {}
                fields[field.name] = value
            end
        end
        copy.plan[stage.name] = fields
    end
    copy.unroll = set.unroll or record.unroll
    return copy
end

-- The plan of a record, or nil and why it is refused.
local function try_plan(record)
    local ok <const>, result = pcall(generate.build_plan, record, record.isa[1])
    if ok then
        return result
    elseif type(result) == "table" and result.errors then
        local problem <const> = result.errors[1]
        return nil, ("%s: %s"):format(problem.key, problem.message)
    end
    error(result, 0)
end

local function is_given(record, stage, field)
    local given <const> = record.plan[stage.name]
    return given ~= nil and given[field.name] ~= nil
end

-- "6x2" for the fields of a tile, "unroll 4" for one field.
local function label_of(fields, values)
    local texts <const> = {}
    for index, value in ipairs(values) do
        texts[index] = tostring(value)
    end
    return fields[1].tile and table.concat(texts, "x")
        or fields[1].name .. " " .. texts[1]
end

-- Every combination of the fields' values: list of lists, the last field fastest.
local function combine(fields)
    local combinations = { {} }
    for _, field in ipairs(fields) do
        local longer <const> = {}
        for _, start in ipairs(combinations) do
            for _, value in ipairs(field.tried or keys.plan_values(field)) do
                local one <const> = { table.unpack(start) }
                one[#one + 1] = value
                longer[#longer + 1] = one
            end
        end
        combinations = longer
    end
    return combinations
end

----------------------------------------------------------------------------------------------------
-- Dimensions
----------------------------------------------------------------------------------------------------

-- The groups of fields that vary together: the tile of a stage, then every other field alone.
local function field_groups(record, stage)
    local tile <const>, groups <const> = {}, {}
    for _, field in ipairs(stage.fields) do
        if not is_given(record, stage, field) then
            if field.tile then
                tile[#tile + 1] = field
            else
                groups[#groups + 1] = { field }
            end
        end
    end
    if #tile > 0 then
        table.insert(groups, 1, tile)
    end
    return groups
end

local function prune(dimension, label, kind, reason)
    dimension.pruned[#dimension.pruned + 1] = { label = label, kind = kind, reason = reason }
end

-- The planner's own value stays first; then the likely ones.
local function sort_values(dimension)
    local first <const> = table.remove(dimension.values, 1)
    local place <const> = {}
    for index, value in ipairs(dimension.values) do
        place[value] = index
    end
    table.sort(dimension.values, function(a, b)
        if a.cycles ~= b.cycles then
            return a.cycles < b.cycles
        end
        return place[a] < place[b]
    end)
    table.insert(dimension.values, 1, first)
end

-- Adds the values that are legal, new and not hopeless. `settings` is a list of {set=, label=}.
local function fill(dimension, record, default, settings)
    local seen <const> = { [M.signature(default)] = "the planner's choice" }
    local base <const> = components(default)
    local found <const> = {}
    for _, setting in ipairs(settings) do
        local plan, refusal = nil, setting.refusal
        if not refusal then
            plan, refusal = try_plan(M.with_values(record, setting.set))
        end
        local signature <const> = plan and M.signature(plan)
        if not plan then
            prune(dimension, setting.label, "illegal", refusal)
        elseif seen[signature] then
            prune(dimension, setting.label, "same", "the same code as " .. seen[signature])
        else
            seen[signature] = setting.label
            local mine <const>, its <const> = changed(components(plan), base)
            found[#found + 1] = { set = setting.set, label = setting.label, mine = mine, its = its,
                cycles = total(components(plan)) - total(base) }
        end
    end
    local best = math.huge
    for _, value in ipairs(found) do
        -- 1.0: nothing the model knows has changed
        value.ratio = value.its > 0.0 and value.mine / value.its or 1.0
        best = math.min(best, value.ratio)
    end
    best = math.min(best, 1.0)
    for _, value in ipairs(found) do
        if value.ratio > M.HOPELESS * best then
            prune(dimension, value.label, "hopeless",
                ("%.1f times the best of its stage by the model"):format(value.ratio / best))
        else
            dimension.values[#dimension.values + 1] = { set = value.set, label = value.label,
                cycles = value.cycles }
        end
    end
    sort_values(dimension)
end

-- Its first value is always the planner's own choice, which sets nothing.
local function new_dimension(name)
    return { name = name, pruned = {},
        values = { { set = {}, label = "planner's", cycles = 0.0 } } }
end

-- What the planner would say about a tile that needs too many registers: most of them do, and the
-- rest of their plan is not worth making.
local function tile_refusal(record, stage, set)
    local rows <const>, vectors <const> = set[stage.name .. ".rows"], set[stage.name .. ".vectors"]
    local needed <const> = rows and vectors and tiles.tile_registers(rows, vectors)
    return needed and needed > isa.get(record.isa[1]).registers
        and ("plan.%s: needs %d vector registers"):format(stage.name, needed) or nil
end

local function plan_dimension(record, default, stage, fields)
    local names <const> = {}
    for index, field in ipairs(fields) do
        names[index] = stage.name .. "." .. field.name
    end
    local dimension <const> = new_dimension(fields[1].tile and stage.name .. ".tile" or names[1])
    local settings <const> = {}
    for _, values in ipairs(combine(fields)) do
        local set <const> = {}
        for index, name in ipairs(names) do
            set[name] = values[index]
        end
        settings[#settings + 1] = { set = set, label = label_of(fields, values),
            refusal = tile_refusal(record, stage, set) }
    end
    fill(dimension, record, default, settings)
    return dimension
end

local function unroll_dimension(record, default)
    local dimension <const> = new_dimension("unroll")
    local settings <const> = {}
    for _, value in ipairs({ "full", "tiles" }) do
        settings[#settings + 1] = { set = { unroll = value }, label = value }
    end
    fill(dimension, record, default, settings)
    return dimension
end

-- The compilers and their levels: the first of each is the default.
local function list_dimension(name, list)
    local dimension <const> = { name = name, pruned = {}, values = {} }
    for index, value in ipairs(list) do
        dimension.values[index] = { set = { [name] = value }, label = value, cycles = 0.0 }
    end
    return dimension
end

-- How much of the model's time a dimension can move: the order in which a greedy search goes.
local function weight(dimension)
    local most = 0.0
    for _, value in ipairs(dimension.values) do
        most = math.max(most, math.abs(value.cycles))
    end
    return most
end

-- {record=, isa=, dimensions=, size=, default=}: size is the number of candidates (a float beyond
-- 2^63).
function M.build(record, options)
    local default <const>, refusal = try_plan(record)
    if not default then
        return nil, refusal
    end
    local stages <const> = {}
    for _, stage in ipairs(keys.plan_stages) do
        if keys.has_stage(stage, record) then
            for _, fields in ipairs(field_groups(record, stage)) do
                local dimension <const> = plan_dimension(record, default, stage, fields)
                dimension.place, dimension.weight = #stages, weight(dimension)
                stages[#stages + 1] = dimension
            end
        end
    end
    table.sort(stages, function(a, b)
        if a.weight ~= b.weight then
            return a.weight > b.weight
        end
        return a.place < b.place
    end)
    local dimensions <const> = { list_dimension("compiler", options.compilers) }
    if record.unroll == "auto" then
        dimensions[2] = unroll_dimension(record, default)
    end
    table.move(stages, 1, #stages, #dimensions + 1, dimensions)
    dimensions[#dimensions + 1] = list_dimension("level", options.levels)
    local size = 1
    for _, dimension in ipairs(dimensions) do
        local count <const> = #dimension.values
        size = math.type(size) == "integer" and size > math.maxinteger // count
            and size * 1.0 * count or size * count
    end
    local space <const> = { record = record, isa = record.isa[1], dimensions = dimensions,
        size = size }
    local first <const> = {}
    for index in ipairs(dimensions) do
        first[index] = 1
    end
    space.default = M.candidate(space, first)
    return space
end

----------------------------------------------------------------------------------------------------
-- Candidates
----------------------------------------------------------------------------------------------------

-- The candidate that takes value picks[i] of dimension i:
--   {picks=, key=, set=, compiler=, level=, cycles=}; equal keys are equal candidates.
function M.candidate(space, picks)
    local candidate <const> = { picks = { table.unpack(picks) }, set = {}, cycles = 0.0 }
    local parts <const> = {}
    for index, dimension in ipairs(space.dimensions) do
        local value <const> = dimension.values[picks[index]]
        candidate.cycles = candidate.cycles + value.cycles
        for _, name in ipairs(diagnostics.sorted_keys(value.set)) do
            if name == "compiler" or name == "level" then
                candidate[name] = value.set[name]
            else
                candidate.set[name] = value.set[name]
            end
            parts[#parts + 1] = ("%s=%s"):format(name, tostring(value.set[name]))
        end
    end
    table.sort(parts)
    candidate.key = table.concat(parts, " ")
    return candidate
end

-- The plan of a legal candidate.
function M.plan(space, candidate)
    return assert(try_plan(M.with_values(space.record, candidate.set)))
end

-- The record of a candidate: what to emit. nil and why, when the values do not go together.
function M.record(space, candidate)
    local record <const> = M.with_values(space.record, candidate.set)
    local plan <const>, refusal = try_plan(record)
    if not plan then
        return nil, refusal
    end
    return record
end

-- The plan overrides of a candidate as the config writes them: {project = {rows = 6}, …}.
function M.overrides(space, candidate)
    return M.with_values(space.record, candidate.set).plan
end

return M
