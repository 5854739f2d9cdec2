-- The rules of the keys that say for which machine and how: isa, plan, target.
--   input:  the check object, the record so far, what "native" stands for
--   output: record.isa, record.plan, record.target; errors in the check object
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

local function check_plan_field(check, field, key, value)
    if field.kind == "integer" then
        return values.integer(check, key, value, 1, field.most)
    elseif field.kind == "boolean" then
        return values.boolean(check, key, value)
    end
    if contains(field.choices, value) then
        return value
    end
    local allowed <const> = keys.plan_allowed(field)
    if type(value) == "string" then
        report(check, key, "unknown value", allowed, diagnostics.nearest(value, field.choices),
            value)
    else
        refuse_type(check, key, "a string", allowed, value)
    end
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

local function check_plan(check, record)
    record.plan = {}
    local value <const> = check.raw.plan
    local stages <const> = {}
    for _, stage in ipairs(keys.plan_stages) do
        stages[stage.name] = stage
    end
    if value == nil or not values.table(check, "plan", value, keys.by_name.plan.allowed) then
        return
    end
    values.fields(check, "plan", value, keys.plan_stage_names, function(name, key, stage_value)
        record.plan[name] = check_plan_stage(check, record, stages[name], key, stage_value)
    end)
end

local function check_target(check, record)
    record.target = {}
    local value <const> = check.raw.target
    if value ~= nil and values.table(check, "target", value, keys.by_name.target.allowed) then
        values.fields(check, "target", value, keys.target_numbers, function(name, key, number)
            record.target[name] = values.integer(check, key, number, 1, keys.MAX_SIZE)
        end)
    end
end

function M.check(check, record, native)
    check_isa(check, record, native)
    check_plan(check, record)
    check_target(check, record)
end

return M
