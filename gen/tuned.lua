-- Tuning files: what `attngen tune` found, one file for each config and instruction set.
--   input:  a record, the directory of tuning files
--   output: DIR/ISA/SHAPE-KEY.json and its text; or the record with what such files say
-- A file is found by the config itself (its name apart), so that no index can go stale. It counts
-- for the generator version that wrote it. Measures nothing.
local config <const> = require("gen.config")
local diagnostics <const> = require("gen.diagnostics")
local fs <const> = require("gen.fs")
local generate <const> = require("gen.generate")
local manifest <const> = require("gen.manifest")
local strict_json <const> = require("gen.strict_json")
local version <const> = require("gen.version").VERSION

local M = {}

M.FORMAT = 1
M.GENERATOR = "attngen " .. version

local MAX_BYTES <const> = 1 << 20

-- What the kernel of one ISA follows from: the resolved config without its name.
function M.config_of(record, isa_name)
    local data <const> = generate.config_data(record)
    data.name, data.tuning, data.isa = nil, nil, isa_name
    return data
end

function M.key(record, isa_name)
    return manifest.hash(manifest.encode(M.config_of(record, isa_name)))
end

-- "avx2/mha-b1-l128-s128-h12-d32-0123456789abcdef.json"
function M.file_name(record, isa_name)
    return ("%s/%s-b%d-l%d-s%d-h%d-d%d-%s.json"):format(isa_name, record.op, record.batch,
        record.seq_len, record.kv_len, record.heads, record.head_dim, M.key(record, isa_name))
end

-- The text of a tuning file. result: {plan=, unroll=, level=, compiler=, compiler_version=, cpu=,
-- default_us=, best_us=, candidates=, right=, openblas_us=}.
function M.encode(record, isa_name, result)
    local data <const> = { format = M.FORMAT, generator = M.GENERATOR, isa = isa_name,
        config = M.config_of(record, isa_name) }
    for key, value in pairs(result) do data[key] = value end
    return manifest.encode(data)
end

-- What emit relies on in every file of this version.
local NEEDED <const> = { "plan", "level", "compiler", "cpu" }

-- Equal as JSON.
local function is_same_data(a, b)
    return manifest.encode(a) == manifest.encode(b)
end

-- Errors about a file of this version that should be of a record and an ISA, or nil.
local function check_origin(data, path, record, isa_name)
    local errors <const> = {}
    local function report(key, message, allowed, value)
        errors[#errors + 1] = { file = path, key = key, value = value, message = message,
            allowed = allowed }
    end
    if data.isa ~= isa_name then
        report("isa", "is a tuning file for another ISA than its place says", isa_name,
            data.isa)
    end
    -- Through JSON, as the file's own config came.
    local wanted <const> = strict_json.decode(manifest.encode(M.config_of(record, isa_name)))
    if type(data.config) ~= "table" or data.config == strict_json.null then
        report("config", "is missing from the tuning file", "the config that was tuned",
            data.config)
    else
        local names <const> = {}
        for key in next, wanted do names[#names + 1] = key end
        table.sort(names)
        for _, name in ipairs(names) do
            local found <const> = data.config[name]
            if not is_same_data({ found }, { wanted[name] }) then
                report("config." .. name, "the tuning file is of another config",
                    diagnostics.render(wanted[name]), found)
            end
        end
        if #errors == 0 and not is_same_data(data.config, wanted) then
            report("config", "has keys in the tuning file that the config tuned has not")
        end
    end
    for _, key in ipairs(NEEDED) do
        if data[key] == nil then
            report(key, "is missing from the tuning file")
        end
    end
    return #errors > 0 and errors or nil
end

local function decode(text, path)
    local data <const>, message = strict_json.decode(text)
    if type(data) ~= "table" or data == strict_json.null then
        return nil, { { file = path, message = "is not a tuning file: "
            .. (message or "no table in it") } }
    elseif data.format ~= M.FORMAT then
        return nil, { { file = path, key = "format", value = data.format,
            message = "not the format of tuning files this version reads",
            allowed = tostring(M.FORMAT) } }
    elseif type(data.generator) ~= "string" then
        return nil, { { file = path, key = "generator", value = data.generator,
            message = "the tuning file does not say which version wrote it",
            allowed = M.GENERATOR } }
    end
    return data
end

-- The tuned plan of a record for one ISA; nil when there is none; nil, errors; or nil, nil and a
-- note about a file that does not count.
function M.find(dir, record, isa_name)
    local name <const> = M.file_name(record, isa_name)
    local path <const> = fs.join(dir, name)
    if fs.kind(path) == nil then
        return nil
    end
    local text, message = fs.read(path, MAX_BYTES)
    if not text then
        return nil, { { file = path, message = "cannot be read: "
            .. fs.strip_path(message, path) } }
    end
    local data, errors = decode(text, path)
    if not data then
        return nil, errors
    elseif data.generator ~= M.GENERATOR then
        return nil, nil, ("%s: not used, since it was tuned with %s and this is %s; tune again")
            :format(path, data.generator, M.GENERATOR)
    end
    errors = check_origin(data, path, record, isa_name)
    if errors then
        return nil, errors
    end
    local raw <const> = { plan = data.plan, unroll = data.unroll, level = data.level,
        compiler = data.compiler, cpu = data.cpu, file = select(2, fs.split(dir)) .. "/" .. name,
        fnv1a64 = manifest.hash(text) }
    local tuning
    tuning, errors = config.validate_tuning(record, { [isa_name] = raw }, path)
    return tuning and tuning[isa_name], errors
end

-- The record with the tuned plans in `dir`: the same one when there are none, or when the config
-- decides itself. Second result: errors, or nil. Third: notes, a list.
function M.apply(dir, record)
    if record.tuning ~= nil or not fs.is_directory(dir) then
        return record, nil, {}
    end
    local tuning <const>, all_errors <const>, notes <const> = {}, {}, {}
    for _, isa_name in ipairs(record.isa) do
        local found, errors, note = M.find(dir, record, isa_name)
        tuning[isa_name] = found
        notes[#notes + 1] = note
        table.move(errors or {}, 1, #(errors or {}), #all_errors + 1, all_errors)
    end
    if #all_errors > 0 then
        return nil, all_errors, notes
    elseif not next(tuning) then
        return record, nil, notes
    end
    local copy <const> = {}
    for key, value in pairs(record) do copy[key] = value end
    copy.tuning = tuning
    return copy, nil, notes
end

return M
