-- `attngen bench` on the command line: its options, the shapes it takes, what it prints and writes.
--   input:  parsed options; from gen.cli the ways to load configs, to speak and to stop
--   output: the table on stdout, JSON and HTML files, whether all went well

local config <const> = require("gen.config")
local flops <const> = require("gen.bench.flops")
local fs <const> = require("gen.fs")
local host <const> = require("gen.host")
local html <const> = require("gen.bench.html")
local isa <const> = require("gen.isa")
local keys <const> = require("gen.keys")
local manifest <const> = require("gen.manifest")
local option <const> = require("gen.options")
local session <const> = require("gen.bench.session")
local table_text <const> = require("gen.bench.table")
local toolchain <const> = require("gen.toolchain")

local M = {}

function M.add_options(command, add_set_option)
    command:argument("CONFIG", "Config files (default: the benchmark set, bench/shapes)")
        :target("configs"):args("*")
    command:option("--isa", "Instruction sets (default: the vector ones this CPU runs).")
        :argname("LIST"):convert(option.list_of("--isa", isa.names)):target("isas")
    command:option("--cc", "Compilers (default: gcc and clang, those that are here).")
        :argname("LIST"):convert(option.list_of("--cc", keys.compilers)):target("compilers")
    command:option("--json", "Write the results as JSON; in a directory, the CPU names the file.")
        :argname("FILE")
    command:option("--html", "Write a report with charts."):argname("FILE")
    command:flag("--short", "Check that everything works; the figures mean nothing.")
    command:flag("--no-blas", "Do not compare with OpenBLAS."):target("no_blas")
    command:option("--rounds", "Turns that all take (default: 3)."):argname("N")
        :convert(option.whole_number("--rounds", 1, 1000))
    command:option("--seconds", "Time for the samples of one turn (default: 0.3).")
        :argname("S"):convert(option.number("--seconds", 0.001, 3600))
    command:option("--fill", "Share of the keys that items with a length have (default: 1).")
        :argname("SHARE"):convert(option.number("--fill", 0.001, 1))
    command:option("--logits", "Factor on the queries, and so on all logits (default: 1).")
        :argname("FACTOR"):convert(option.number("--logits", 0.001, 1e6))
    command:option("--cpu", "Core to stay on."):argname("N")
        :convert(option.whole_number("--cpu", 0, 1023))
    command:option("--work", "Directory of builds (default: build/bench, or the user's cache).")
        :argname("DIR"):convert(option.path("--work"))
    command:option("--runner", "Command in front of the measuring program: an emulator, ssh BOARD.")
        :argname("CMD"):convert(option.command("--runner"))
    command:option("--push", "Command that copies a file, {}, to where the runner runs.")
        :argname("CMD"):convert(option.command("--push"))
    add_set_option(command)
end

-- The configs of bench/shapes, the one with the least work first; what this version refuses keeps
-- its place at the end.
local function default_shapes(root)
    local dir <const> = fs.join(root, "bench/shapes")
    local shapes <const>, refused <const> = {}, {}
    for _, name in ipairs(assert(fs.list(dir))) do
        local records, errors = config.load(fs.join(dir, name), {})
        local id <const> = name:gsub("%.lua$", "")
        if records then
            local count <const> = flops.count(records[1])
            shapes[#shapes + 1] = { id = id, record = records[1], path = fs.join(dir, name),
                work = count.projections + count.core }
        else
            local first <const> = config.format_errors(errors):match("^[^\n]*")
            refused[#refused + 1] = { id = id, path = fs.join(dir, name),
                refused = first:gsub("^.-%.lua: ", ""):gsub(" %(allowed: .*$", "") }
        end
    end
    table.sort(shapes, function(a, b) return a.work < b.work end)
    return table.move(refused, 1, #refused, #shapes + 1, shapes)
end

local function given_shapes(options, load_variants)
    local shapes <const>, seen <const> = {}, {}
    for _, variant in ipairs(load_variants(options.configs, options.overrides)) do
        local _, base = fs.split(variant.path)
        local id = base:gsub("%.%a+$", "")
        if seen[id] then
            id = variant.record.name
        end
        if seen[id] then
            return nil, ("two configs are called %s; give one of them another name"):format(id)
        end
        seen[id] = true
        shapes[#shapes + 1] = { id = id, record = variant.record, path = variant.path }
    end
    return shapes
end

-- Compilers that are here, of those the user named or of both.
local function choose_compilers(options)
    if options.compilers then
        return options.compilers
    end
    local found <const> = {}
    for _, name in ipairs(keys.compilers) do
        if toolchain.named_compiler(name, toolchain.arch_of(options.isas[1])) then
            found[#found + 1] = name
        end
    end
    return found
end

-- Which ISAs are measured is asked by --isa: in a config it would give one kernel two names.
local function refuse_overrides(overrides)
    for _, override in ipairs(overrides) do
        if override[1] == "isa" then
            return ("--set isa=%s: bench takes instruction sets from --isa"):format(
                table.concat(override[2], ","))
        end
    end
end

local function check_options(options)
    options.isas = options.isas or session.default_isas()
    for _, name in ipairs(options.isas) do
        if not host.can_run(name) and not options.runner then
            local _, reason = toolchain.how_to_run(name)
            return nil, ("--isa %s: %s; --runner CMD runs it elsewhere"):format(name, reason
                or "only an emulator runs it here, whose times mean little")
        elseif toolchain.arch_of(name) ~= toolchain.arch_of(options.isas[1]) then
            return nil, ("--isa: %s and %s are for different machines"):format(options.isas[1],
                name)
        end
    end
    local problem <const> = option.refuse_place(options) or refuse_overrides(options.overrides)
    if problem then
        return nil, problem
    end
    options.compilers = choose_compilers(options)
    if #options.compilers == 0 then
        return nil, "neither gcc nor clang is here"
    end
    -- A library of this machine says nothing about another one.
    options.no_blas = options.no_blas or options.push ~= nil
        or not host.can_run(options.isas[1])
    return true
end

-- "AMD EPYC (family 25, model 1)" -> "amd-epyc-family-25-model-1"
local function file_name(cpu)
    return (cpu:lower():gsub("%(r%)", ""):gsub("%(tm%)", ""):gsub("[^%w]+", "-"):gsub("^%-", "")
        :gsub("%-$", ""))
end

-- Why the results could not be written in the end, or nil.
local function refuse_outputs(options, shapes)
    local paths <const>, inputs <const> = {}, {}
    if options.json and fs.is_directory(options.json) then
        options.json = fs.join(options.json, file_name(host.current().cpu) .. ".json")
    end
    paths[1] = options.json
    paths[#paths + 1] = options.html
    for index, shape in ipairs(shapes) do
        inputs[index] = shape.path
    end
    return fs.refuse_outputs(paths, inputs)
end

local function outputs(options, document)
    local files <const> = {}
    if options.json then
        files[#files + 1] = { path = options.json, text = manifest.encode(document) }
    end
    if options.html then
        local skeleton <const> = assert(fs.read(fs.join(options.root, "templates/bench.html.in")))
        files[#files + 1] = { path = options.html, text = html.render(document, skeleton) }
    end
    return files
end

-- Where to build, for this run alone: two in one directory would measure each other's kernels.
local function take_directory(options)
    local work, message = options.work, nil
    if not work then
        work, message = toolchain.cache_directory(options.root, "bench")
    end
    local ok
    if work then
        ok, message = fs.lock_directory(work)
    end
    if not ok then
        return nil, message
    end
    return options.work and fs.join(work, "build") or work
end

-- tools: stop_usage(message), stop_failure(message), load_variants, new_progress(options, total),
-- write_files. Returns false when a kernel was wrong or failed.
function M.run(options, tools)
    local ok, message = check_options(options)
    if not ok then
        tools.stop_usage(message)
    end
    local shapes
    if #options.configs > 0 then
        shapes, message = given_shapes(options, tools.load_variants)
    elseif #options.overrides > 0 then
        message = "--set needs a CONFIG: the benchmark set is what it is"
    else
        shapes = default_shapes(options.root)
    end
    if not shapes then
        tools.stop_usage(message)
    end
    message = refuse_outputs(options, shapes)
    if message then
        tools.stop_usage(message)
    end
    local dir
    dir, message = take_directory(options)
    if not dir then
        tools.stop_usage(message)
    end
    local bar <const> = tools.new_progress(options, session.count_steps(shapes, options))
    local document
    document, message = session.run(shapes, { root = options.root, dir = dir, isas = options.isas,
        compilers = options.compilers, short = options.short, rounds = options.rounds,
        seconds = options.seconds, cpu = options.cpu, fill = options.fill,
        logits = options.logits, runner = options.runner, push = options.push,
        no_blas = options.no_blas,
        step = function(label, is_extra)
            bar.total = bar.total + (is_extra and 1 or 0)
            bar:step(label)
        end })
    bar:finish()
    if not document then
        tools.stop_failure(message)
    end
    io.stdout:write(table_text.describe(document))
    tools.write_files(outputs(options, document))
    return session.count_failures(document) == 0
end

return M
