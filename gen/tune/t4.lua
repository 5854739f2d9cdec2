-- Tuning results in the open auto-tuning results format T4, version 1.0.0 (results-schema.json of
-- github.com/odgaard/TuningSchema): what plotting and comparison tools of the field read.
--   input:  entries of a tuning log, the names of the space's parameters
--   output: JSON text
local manifest <const> = require("gen.manifest")

local M = {}

M.SCHEMA_VERSION = "1.0.0"

-- Our statuses in the schema's words.
local INVALIDITY <const> = {
    ok = "correct", wrong = "correctness", crash = "runtime", hang = "timeout",
    compile = "compile", refused = "constraints",
}

-- What was tried, every parameter of the space; the planner's own choice is "default".
local function configuration(entry, parameters)
    local values <const> = { compiler = entry.compiler, level = entry.level }
    for _, name in ipairs(parameters) do
        local value <const> = entry.set and entry.set[name]
        values[name] = value == nil and (values[name] or "default") or value
    end
    return values
end

local function measurements(entry)
    local list <const> = {}
    local function put(name, value, unit)
        if value ~= nil then
            list[#list + 1] = { name = name, value = value, unit = unit }
        end
    end
    put("time", entry.best_us, "us")
    put("median_time", entry.median_us, "us")
    put("max_error", entry.max_error, "")
    put("code_bytes", entry.code_bytes, "B")
    return list
end

-- T4 wants times in one unit: milliseconds, as its other producers have it.
local function times(entry)
    local runtimes <const> = {}
    for index, microseconds in ipairs(entry.samples or {}) do
        runtimes[index] = microseconds / 1000
    end
    return {
        compilation_time = (entry.build_seconds or 0.0) * 1000,
        validation = (entry.run_seconds or 0.0) * 1000,
        framework = 0.0, search_algorithm = 0.0,
        runtimes = runtimes,
    }
end

-- parameters: sorted names, "compiler" and "level" among them.
function M.encode(entries, parameters)
    local results <const> = {}
    for _, entry in ipairs(entries) do
        local invalidity <const> = entry.type == "result" and INVALIDITY[entry.status]
        if invalidity then
            results[#results + 1] = {
                timestamp = entry.time,
                configuration = configuration(entry, parameters),
                objectives = { "time" },
                times = times(entry),
                invalidity = invalidity,
                correctness = entry.status == "ok" and 1 or 0,
                measurements = measurements(entry),
            }
        end
    end
    return manifest.encode({ schema_version = M.SCHEMA_VERSION,
        results = results })
end

return M
