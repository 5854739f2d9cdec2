-- The command line: verbs, options, exit codes, messages.
--   input:  the argument list
--   output: data on stdout, progress and messages on stderr, an exit code
-- Every error of the program ends here: a bad config or usage is 2, a failure of data, weights or
-- tools is 1, an interrupt 130. Decides nothing about kernels.

local argparse <const> = require("argparse")

local bench <const> = require("gen.bench.verb")
local config <const> = require("gen.config")
local fs <const> = require("gen.fs")
local generate <const> = require("gen.generate")
local host <const> = require("gen.host")
local isa <const> = require("gen.isa")
local keys <const> = require("gen.keys")
local manifest <const> = require("gen.manifest")
local option <const> = require("gen.options")
local process <const> = require("gen.process")
local progress <const> = require("gen.progress")
local run <const> = require("gen.run")
local toolchain <const> = require("gen.toolchain")
local tune <const> = require("gen.tune.verb")
local tuned <const> = require("gen.tuned")
local version <const> = require("gen.version")

local M = {}

local OK <const>, FAILURE <const>, BAD_USAGE <const>, INTERRUPTED <const> = 0, 1, 2, 130

-- Ends the verb with a message for the user.
local function stop(code, message)
    error({ exit_code = code, message = "attngen: " .. message }, 0)
end

-- Ends the verb with config errors, which name their file themselves.
local function stop_on_errors(errors)
    error({ exit_code = BAD_USAGE, message = config.format_errors(errors) }, 0)
end

-- Data for the user. Written at once: what a later program flushes for us is lost without a word.
local function put(...)
    local ok, message = io.stdout:write(...)
    if ok then
        ok, message = io.stdout:flush()
    end
    if not ok then
        stop(FAILURE, "cannot write to stdout: " .. message)
    end
end

local function say(options, ...)
    if not options.quiet then
        io.stderr:write("attngen: ", string.format(...), "\n")
    end
end

local function is_terminal()
    return os.getenv("TERM") ~= "dumb" and process.run({ "test", "-t", "2" }) == 0
end

-- A single step needs no bar.
local function new_progress(options, total)
    return progress.new({
        total = total,
        quiet = options.quiet or total == 1,
        is_terminal = not options.quiet and is_terminal(),
    })
end

----------------------------------------------------------------------------------------------------
-- Overrides and configs
----------------------------------------------------------------------------------------------------

-- "isa=avx2,neon" -> {"isa", {"avx2", "neon"}}; a JSON literal is one value.
local function parse_override(text)
    local key, values = text:match("^([^=]+)=(.*)$")
    if not key then
        return nil, ("--set %s: expected key=value"):format(text)
    end
    if values:match('^[%[{"]') then
        return { key, { values } }
    end
    local list <const> = {}
    for value in (values .. ","):gmatch("([^,]*),") do
        list[#list + 1] = value
    end
    return { key, list }
end

-- {record=, path=} of all variants of all config files; every error of every file together.
local function load_variants(paths, overrides)
    local variants <const>, errors <const> = {}, {}
    for _, path in ipairs(paths) do
        local records, problems = config.load(path, overrides)
        for _, record in ipairs(records or {}) do
            variants[#variants + 1] = { record = record, path = path }
        end
        table.move(problems or {}, 1, #(problems or {}), #errors + 1, errors)
    end
    if #errors > 0 then
        stop_on_errors(errors)
    end
    return variants
end

-- The directory of a config's tuning files: tuned/ beside it, or the user's.
local function tuned_directory(options, path)
    return options.tuned or fs.join((fs.split(path)), "tuned")
end

-- The variants with what was tuned for them.
local function load_tuned_variants(options, paths)
    if options.tuned and not fs.is_directory(options.tuned) then
        stop(BAD_USAGE, ("--tuned %s: %s; name a directory of tuning files, or leave it out")
            :format(options.tuned, fs.kind(options.tuned) and "is no directory"
                or "does not exist"))
    end
    local variants <const> = load_variants(paths, options.overrides)
    local all_errors <const> = {}
    for _, variant in ipairs(options.no_tuned and {} or variants) do
        local record, errors, notes = tuned.apply(tuned_directory(options, variant.path),
            variant.record)
        variant.record = record or variant.record
        table.move(errors or {}, 1, #(errors or {}), #all_errors + 1, all_errors)
        for _, note in ipairs(notes) do
            say(options, "%s", note)
        end
    end
    if #all_errors > 0 then
        stop_on_errors(all_errors)
    end
    return variants
end

-- Calls a generator function; its refusals become bad usage.
local function ask_generator(func, record, path)
    local ok, result = xpcall(func, function(problem)
        if type(problem) == "table" then
            return problem
        end
        return { traceback = debug.traceback(tostring(problem), 2) }
    end, record)
    if ok then
        return result
    elseif result.errors then
        for _, problem in ipairs(result.errors) do
            problem.file = problem.file or path
        end
        stop_on_errors(result.errors)
    end
    error(result, 0)
end

----------------------------------------------------------------------------------------------------
-- Verbs
----------------------------------------------------------------------------------------------------

-- No output may be one of the inputs: NAME.json beside a config of that name would be.
local function check_outputs(files, config_paths)
    local seen <const> = {}
    for _, file in ipairs(files) do
        if seen[file.path] then
            stop(BAD_USAGE, file.path .. ": two of the configs have the same name and would both "
                .. "be written here; give one of them another name")
        end
        seen[file.path] = true
        local path <const> = fs.find_same(file.path, config_paths)
        if path then
            stop(BAD_USAGE, ("%s: this output would overwrite the config %s; choose another "
                .. "directory with -o, or another name"):format(file.path, path))
        end
    end
end

local function write_files(files)
    local result, message, refused = fs.write_all(files)
    if not result then
        stop(refused and BAD_USAGE or FAILURE, message)
    end
    return result
end

local function emit(options)
    local variants <const> = load_tuned_variants(options, options.configs)
    local bar <const> = new_progress(options, #variants)
    local files <const> = {}
    for _, variant in ipairs(variants) do
        bar:step("emit " .. variant.record.name)
        local bundle <const> = ask_generator(generate.bundle, variant.record, variant.path)
        for _, file in ipairs(bundle.files) do
            files[#files + 1] = { path = fs.join(options.output, file.path), text = file.text }
        end
    end
    bar:finish()
    check_outputs(files, options.configs)
    local result <const> = write_files(files)
    for _, file in ipairs(files) do
        put(file.path, "\n")
    end
    say(options, "%d files written, %d already up to date", #result.written, #result.unchanged)
end

local function plan(options)
    local reports <const> = {}
    for index, variant in ipairs(load_tuned_variants(options, { options.config })) do
        reports[index] = ask_generator(generate.plan, variant.record, variant.path)
    end
    if options.json then
        put(manifest.encode(#reports == 1 and reports[1] or reports))
        return
    end
    for index, report in ipairs(reports) do
        if index > 1 then
            put("\n")
        end
        put((generate.describe(report):gsub("\n*$", "\n")))
    end
end

local function run_config(options)
    local variants <const> = load_tuned_variants(options, { options.config })
    if #variants > 1 then
        stop(BAD_USAGE, ("run takes one variant, these options make %d"):format(#variants))
    end
    local bar <const> = new_progress(options, run.STEPS)
    local job <const> = {
        record = variants[1].record,
        config = options.config,
        weights = options.weights,
        inputs = options.inputs,
        output = options.output,
        threads = options.threads,
        family = options.family,
        layer = options.layer,
        root = options.root,
        step = function(label) bar:step(label) end,
        note = function(text)
            bar:finish()
            say(options, "%s", text)
        end,
        bundle = function(record)
            return ask_generator(generate.bundle, record, options.config)
        end,
    }
    local ok, message, bad_usage = run.execute(job)
    bar:finish()
    if not ok then
        stop(bad_usage and BAD_USAGE or FAILURE, message)
    end
end

local function run_bench(options)
    local is_fine <const> = bench.run(options, {
        stop_usage = function(message) stop(BAD_USAGE, message) end,
        stop_failure = function(message) stop(FAILURE, message) end,
        load_variants = load_variants, new_progress = new_progress, write_files = write_files,
    })
    if not is_fine then
        stop(FAILURE, "not every kernel was built and right: see the lines below the table")
    end
end

local function tune_configs(options)
    local problem <const> = tune.run(options, {
        variants = load_variants(options.configs, options.overrides),
        bar = new_progress(options),
        say = function(...) say(options, ...) end, put = put,
        tuned_dir = function(path) return tuned_directory(options, path) end,
    })
    if problem then
        stop(problem.code, problem.message)
    end
end

local function list_isas(options)
    if options.markdown then
        put(M.isa_table())
        return
    end
    local native <const> = host.native_isa()
    put(("%-8s %5s %9s  %-8s  %s\n"):format("ISA", "lanes", "registers", "CPU", "here"))
    for _, name in ipairs(isa.names) do
        local data <const> = isa.get(name)
        local how, reason = toolchain.how_to_run(name)
        local here = how or "no: " .. reason
        if how == "emulated" then
            here = "emulated by " .. toolchain.find_emulator(data.arch)[1]
        end
        local _, no_compiler = toolchain.find_compiler(toolchain.arch_of(name))
        if no_compiler then
            here = here .. "; " .. no_compiler
        end
        if name == native then
            here = here .. ' (what isa = "native" means)'
        end
        put(("%-8s %5d %9d  %-8s  %s\n"):format(name, data.lanes, data.registers, data.arch,
            here))
    end
end

-- The support table of the README: only what is the same on every machine.
function M.isa_table()
    local lines <const> = {
        "| ISA | CPU | vector | registers | needs |",
        "|---|---|---|---|---|",
    }
    for _, name in ipairs(isa.names) do
        local data <const> = isa.get(name)
        local needs = "a C11 compiler"
        if #data.flags > 0 then
            needs = "`" .. table.concat(data.flags, " ") .. "`"
        elseif data.arch ~= "any" then
            needs = "a compiler for " .. data.arch
        end
        lines[#lines + 1] = ("| `%s` | %s | %s | %d | %s |"):format(name, data.arch,
            data.lanes == 1 and "1 float" or data.lanes .. " floats", data.registers,
            needs)
    end
    return table.concat(lines, "\n") .. "\n"
end

----------------------------------------------------------------------------------------------------
-- Command line
----------------------------------------------------------------------------------------------------

local function add_set_option(command)
    command:option("--set", "Override a key of the config; a list makes one variant each, a JSON "
        .. "literal is one value: --set isa=avx2,neon --set 'mask=[\"causal\",\"lengths\"]'")
        :argname("KEY=VALUE"):count("*"):convert(parse_override):target("overrides")
end

-- Where tuned plans come from, or go.
local function add_tuned_options(command, can_disable)
    local tuned_option <const> = command:option("--tuned",
        "Directory of tuning files (default: tuned/ beside the config)."):argname("DIR")
        :convert(option.path("--tuned"))
    if can_disable then
        command:mutex(tuned_option, command:flag("--no-tuned",
            "Take the planner's choice, whatever was tuned."))
    end
end

-- argparse's own would not notice that the text cannot be written.
local function answer_help(command)
    return command:add_help({ action = function()
        put(command:get_help(), "\n")
        os.exit(OK)
    end })
end

local function build_parser()
    local parser <const> = argparse("attngen",
        "Generates C attention kernels for one fixed shape each.")
        :require_command(true):command_target("verb"):help_max_width(100)
    answer_help(parser)
    parser:flag("--version", "Print the version and exit."):action(function()
        put("attngen ", version.VERSION, "\n")
        os.exit(OK)
    end)
    parser:mutex(parser:flag("-q --quiet", "Say nothing but errors."),
        parser:flag("-v --verbose", "Show the programs that are run, and where an internal error "
            .. "came from."))

    local function add_verb(name, summary)
        return answer_help(parser:command(name, summary))
    end

    local verb = add_verb("emit", "Write the C files of one or more configs.")
    verb:argument("CONFIG", "Config file (.lua or .json)."):target("configs"):args("+")
    verb:option("-o --output", "Where the files go."):argname("DIR"):default(".")
    add_tuned_options(verb, true)
    add_set_option(verb)

    verb = add_verb("plan", "Say what would be generated and what it costs.")
    verb:argument("CONFIG", "Config file (.lua or .json)."):target("config")
    verb:flag("--json", "Print the plan as JSON.")
    add_tuned_options(verb, true)
    add_set_option(verb)

    verb = add_verb("run", "Emit, compile and run a config on tensors from a file.")
    verb:argument("CONFIG", "Config file (.lua or .json)."):target("config")
    verb:option("--weights", "Weights (safetensors)."):argname("FILE")
    verb:option("--inputs", "Inputs: x, or q, k and v; context; lengths and masks (safetensors).")
        :argname("FILE"):count(1)
    verb:option("--output", "Where the results go (safetensors)."):argname("FILE"):count(1)
    verb:option("--threads", "Threads to run on."):argname("N")
        :convert(option.whole_number("--threads", 1, 1024))
    verb:option("--family", "Checkpoint family of the weight names."):argname("NAME")
    verb:option("--layer", "Layer of the checkpoint."):argname("N")
        :convert(option.whole_number("--layer", 0, keys.MAX_SIZE))
    add_tuned_options(verb, true)
    add_set_option(verb)

    verb = add_verb("tune", "Search the plans of configs for the fastest one.")
    tune.define(verb)
    add_tuned_options(verb, false)
    add_set_option(verb)

    verb = add_verb("bench", "Measure kernels beside the machine's peak and OpenBLAS.")
    bench.add_options(verb, add_set_option)

    verb = add_verb("isas", "List the instruction sets, and what this machine can run.")
    verb:flag("--markdown", "Print the table of the README.")

    -- argparse would exit with 1.
    parser.error = function(self, message)
        stop(BAD_USAGE, message .. "\n" .. self:get_usage())
    end
    return parser
end

local VERBS <const> = { emit = emit, plan = plan, run = run_config, tune = tune_configs,
    bench = run_bench, isas = list_isas }

local function report_problem(problem, verbose)
    if type(problem) == "table" and problem.exit_code then
        io.stderr:write((problem.message:gsub("\n*$", "\n")))
        return problem.exit_code
    end
    local trace <const> = type(problem) == "table" and problem.traceback or tostring(problem)
    local first <const> = trace:match("^[^\n]*")
    if first:find(process.INTERRUPTED, 1, true) then
        io.stderr:write("attngen: interrupted\n")
        return INTERRUPTED
    end
    io.stderr:write("attngen: internal error: ", verbose and trace or first, "\n")
    return FAILURE
end

-- Runs the command line; returns the exit code. `root` is where attngen's own files are.
function M.main(arguments, root)
    local options
    local ok, problem = xpcall(function()
        options = build_parser():parse(arguments)
        options.root = root
        if options.verbose then
            process.trace = function(line) io.stderr:write("+ ", line, "\n") end
        end
        VERBS[options.verb](options)
        put()
    end, function(problem)
        if type(problem) == "table" then
            return problem
        end
        return { traceback = debug.traceback(tostring(problem), 2) }
    end)
    if ok then
        return OK
    end
    return report_problem(problem, options and options.verbose)
end

return M
