-- The rules of the keys that say for which machine and how: isa, plan, tuning, target.
--   input:  the check object, the record so far, what "native" stands for
--   output: record.isa, plan, tuning, target; errors in the check object
-- Whether a plan fits the registers is the planner's to say.

local diagnostics <const> = require("gen.diagnostics")
local isa <const> = require("gen.isa")
local keys <const> = require("gen.keys")
local values <const> = require("gen.config.check")

local contains <const>, list_length <const> = values.contains, values.list_length
local report <const>, refuse_type <const> = values.report, values.refuse_type

local M = {}

local function resolve_native(check, native)
    local token, why
    if native then
        token, why = native()
    end
    if token and contains(isa.names, token) then
        return token
    end
    report(check, "isa", '"native" cannot be resolved here' .. (why and ": " .. why or ""),
        keys.quote_choices(isa.names), nil, "native")
end

local function check_isa(check, record, native)
    local choices <const> = { "native", table.unpack(isa.names) }
    local allowed <const> = keys.quote_choices(choices) .. ", or a list of them"
    local value <const> = check.raw.isa == nil and "native" or check.raw.isa
    local list <const> = type(value) == "string" and { value } or value
    record.isa = {}
    local length <const> = list_length(list)
    if not length then
        refuse_type(check, "isa", "an ISA or a list of ISAs", allowed, value)
        return
    elseif length == 0 then
        report(check, "isa", "empty list", allowed)
        return
    end
    local given <const>, resolved <const> = {}, {}
    for _, item in ipairs(list) do
        if type(item) ~= "string" then
            refuse_type(check, "isa", "a string", allowed, item)
        elseif not contains(choices, item) then
            report(check, "isa", "unknown ISA", allowed, diagnostics.nearest(item, choices), item)
        elseif given[item] then
            report(check, "isa", ('"%s" is given twice'):format(item), "each ISA once")
        else
            given[item] = true
            local token = item
            if item == "native" then
                token = resolve_native(check, native)
            end
            -- {"native", "avx2"} is one variant on a machine where native is avx2.
            if token and not resolved[token] then
                resolved[token] = true
                record.isa[#record.isa + 1] = token
            end
        end
    end
end

local function check_one_of(check, key, value, choices)
    if contains(choices, value) then
        return value
    end
    report(check, key, "unknown value", keys.quote_choices(choices),
        diagnostics.nearest(value, choices), value)
end

local function check_plan_field(check, field, key, value)
    if field.kind == "integer" then
        return values.integer(check, key, value, 1, field.most)
    elseif field.kind == "boolean" then
        return values.boolean(check, key, value)
    end
    return check_one_of(check, key, value, field.choices)
end

local function check_plan_stage(check, record, stage, key, value)
    local names <const> = stage.field_names
    if not values.table(check, key, value, "a table of " .. table.concat(names, ", ")) then
        return nil
    elseif stage.of and record.op == "sdpa" then
        report(check, key, 'op "sdpa" has no such stage', "scores, context", nil, value)
    elseif not keys.has_stage(stage, record) then
        report(check, key, "there is no output projection",
            "not given, or output_projection = true", nil, value)
    end
    local fields <const>, result <const> = {}, {}
    for _, field in ipairs(stage.fields) do
        fields[field.name] = field
    end
    values.fields(check, key, value, names, function(name, field_key, given)
        result[name] = check_plan_field(check, fields[name], field_key, given)
    end)
    return result
end

local function check_plan(check, record, prefix, value)
    local plan <const>, stages <const> = {}, {}
    for _, stage in ipairs(keys.plan_stages) do
        stages[stage.name] = stage
    end
    if value ~= nil and values.table(check, prefix, value, keys.by_name.plan.allowed) then
        values.fields(check, prefix, value, keys.plan_stage_names, function(name, key, stage_value)
            plan[name] = check_plan_stage(check, record, stages[name], key, stage_value)
        end)
    end
    return plan
end

-- Text that ends up in comments of the emitted files.
local function check_label(check, key, value)
    if type(value) == "string" and #value <= 200 and not value:find("[^\32-\126]") then
        return value
    end
    report(check, key, "must be a short text of printable ASCII characters", "a string", nil, value)
end

local function check_tuned_field(check, record, name, key, value)
    if name == "plan" then
        return check_plan(check, record, key, value)
    elseif name == "unroll" then
        return check_one_of(check, key, value, keys.by_name.unroll.choices)
    elseif name == "level" then
        return check_one_of(check, key, value, keys.levels)
    elseif name == "compiler" then
        return check_one_of(check, key, value, keys.compilers)
    end
    return check_label(check, key, value)
end

-- A tuned plan keeps what the config's own plan fixes.
local function check_agreement(check, plan, tuned, prefix)
    for _, stage in ipairs(keys.plan_stages) do
        local given <const>, found <const> = plan[stage.name] or {}, tuned[stage.name] or {}
        for _, field in ipairs(stage.field_names) do
            if given[field] ~= nil and given[field] ~= found[field] then
                report(check, ("%s.%s.%s"):format(prefix, stage.name, field),
                    "differs from the config's plan", diagnostics.render(given[field]), nil,
                    found[field] == nil and "nothing" or found[field])
            end
        end
    end
end

local function check_tuning(check, record, value)
    local allowed <const> = keys.by_name.tuning.allowed
    if value == nil or value == false then
        return value
    elseif not values.table(check, "tuning", value, allowed) then
        return nil
    end
    local tuning <const> = {}
    values.fields(check, "tuning", value, record.isa, function(isa_name, key, given)
        if not values.table(check, key, given, allowed) then
            return
        end
        local one <const> = { plan = {} }
        values.fields(check, key, given, keys.tuning_fields, function(name, field_key, field_value)
            one[name] = check_tuned_field(check, record, name, field_key, field_value)
        end)
        check_agreement(check, record.plan, one.plan, key .. ".plan")
        tuning[isa_name] = one
    end)
    return tuning
end

-- The `tuning` of a valid record from a raw table of unknown origin, called `file` in errors.
function M.check_tuning(record, raw, file)
    local check <const> = values.new({ tuning = raw }, file)
    return check_tuning(check, record, raw), check.errors
end

local function check_target(check, record)
    record.target = {}
    local most <const> = {}
    for _, field in ipairs(keys.target_fields) do
        most[field.name] = field.most
    end
    local value <const> = check.raw.target
    if value ~= nil and values.table(check, "target", value, keys.by_name.target.allowed) then
        values.fields(check, "target", value, keys.target_numbers, function(name, key, number)
            record.target[name] = values.integer(check, key, number, 1, most[name])
        end)
    end
end

function M.check(check, record, native)
    check_isa(check, record, native)
    record.plan = check_plan(check, record, "plan", check.raw.plan)
    record.tuning = check_tuning(check, record, check.raw.tuning)
    check_target(check, record)
end

return M
