-- `attngen bench`: builds every shape for every ISA and compiler, measures kernels and OpenBLAS in
-- turns, and returns the document of docs/benchmarking.md.
--   input:  shapes {id=, record= or refused=}, options
--   output: the document; results that failed are in it
-- Prints nothing; says what it does through options.step.

local blas <const> = require("gen.bench.blas")
local build <const> = require("gen.bench.build")
local flops <const> = require("gen.bench.flops")
local host <const> = require("gen.host")
local isa <const> = require("gen.isa")
local measure <const> = require("gen.bench.measure")
local statistics <const> = require("gen.bench.statistics")
local toolchain <const> = require("gen.toolchain")
local version <const> = require("gen.version")

local M = {}

M.FORMAT = 1

-- Work below which a call is so short that what the caches hold decides: measured cold as well.
local COLD_FLOPS <const> = 1e6

-- `patience`: for how many times the rounds to go on with what has too few good samples.
local FULL <const> = { rounds = 3, patience = 3, seconds = 0.3, cold = 31, screening = 0.05 }
local SHORT <const> = { rounds = 1, patience = 1, seconds = 0.01, samples = 5, cold = 3,
    screening = 0.001 }

-- The vector ISAs this machine runs, or all it runs when there is none.
function M.default_isas()
    local vectors <const>, all <const> = {}, {}
    for _, name in ipairs(isa.names) do
        if host.can_run(name) then
            all[#all + 1] = name
            if isa.get(name).lanes > 1 then
                vectors[#vectors + 1] = name
            end
        end
    end
    return #vectors > 0 and vectors or all
end

-- {id=, name=, config=, flops=, results=} without results yet; `subjects` are what to measure.
local function new_entry(shape)
    local entry <const> = { id = shape.id, results = {}, refused = shape.refused }
    if shape.record then
        entry.flops = flops.count(shape.record)
        entry.name = shape.record.name
    end
    return entry
end

local function total_flops(entry)
    return entry.flops.projections + entry.flops.core
end

----------------------------------------------------------------------------------------------------
-- Kernels
----------------------------------------------------------------------------------------------------

local function add_kernels(builder, entry, shape, options)
    local subjects <const> = {}
    for _, isa_name in ipairs(options.isas) do
        for _, compiler in ipairs(options.compilers) do
            local result <const> = { subject = "attngen", isa = isa_name, compiler = compiler }
            local item, message = builder:add({
                key = ("%s-%s-%s"):format(shape.id, isa_name, compiler), record = shape.record,
                isa = isa_name, compiler = compiler,
                linked = options.push ~= nil or not host.can_run(isa_name) })
            if item then
                subjects[#subjects + 1] = { item = item, result = result }
            else
                result.failure = { kind = "refused", message = message }
            end
            entry.results[#entry.results + 1] = result
        end
    end
    return subjects
end

-- What the build says about a kernel; true when there is one.
local function note_build(subject)
    local item <const>, result <const> = subject.item, subject.result
    result.compiler_version = item.compiler_version
    result.compile_seconds = item.compile_seconds
    result.code_bytes = item.code_bytes
    if not item.ok then
        result.failure = { kind = "compile", message = item.message }
    end
    return item.ok
end

----------------------------------------------------------------------------------------------------
-- OpenBLAS
----------------------------------------------------------------------------------------------------

local function new_blas_subject(entry, case, probe, setting, core)
    local result <const> = { subject = "openblas", settings = { setting } }
    entry.results[#entry.results + 1] = result
    return { result = result, case = case, probe = probe,
        blas = { file = blas.LIBRARY, core = core } }
end

-- As packaged, and the fastest of the cores this CPU runs, one where they are the same.
local function add_blas(entry, case, probe, options)
    local function try(core)
        local result, problem = measure.run_blas(probe, case, { file = blas.LIBRARY,
            core = core }, { seconds = options.screening, samples = options.samples,
                cpu = options.cpu, fill = options.fill, logits = options.logits,
                runner = options.runner })
        return { core = core, result = result, problem = problem }
    end
    local packaged <const> = try(nil)
    local first <const> = new_blas_subject(entry, case, probe, "packaged")
    local trials <const> = {}
    for index, name in ipairs(blas.candidates(host.current())) do
        trials[index] = try(name)
    end
    local best <const> = blas.choose(trials)
    entry.rejected_cores = {}
    for _, trial in ipairs(trials) do
        if trial.reason then
            entry.rejected_cores[#entry.rejected_cores + 1] = { core = trial.core,
                reason = trial.reason }
        end
    end
    if packaged.problem then
        first.result.failure = packaged.problem
    end
    if not best then
        return packaged.result and { first } or {}
    elseif packaged.result and packaged.result.core == best.result.core then
        first.result.settings = { "packaged", "fastest" }
        return { first }
    end
    local fastest <const> = new_blas_subject(entry, case, probe, "fastest", best.core)
    return packaged.result and { first, fastest } or { fastest }
end

----------------------------------------------------------------------------------------------------
-- Measuring
----------------------------------------------------------------------------------------------------

local function measure_once(subject, round, options, is_cold)
    local limits <const> = { seconds = options.seconds, samples = options.samples,
        cold = is_cold and round == 1 and options.cold or nil, cpu = options.cpu,
        fill = options.fill, logits = options.logits, runner = options.runner, push = options.push }
    if subject.item then
        return measure.run(subject.item, limits)
    end
    return measure.run_blas(subject.probe, subject.case, subject.blas, limits)
end

local function take_turn(subject, round, options, is_cold)
    local one, problem = measure_once(subject, round, options, is_cold)
    subject.rounds[#subject.rounds + 1] = one
    if not one then
        subject.result.failure = { kind = problem.kind, message = problem.message,
            max_error = problem.result and problem.result.max_error }
    end
end

-- Whether a subject takes part in a round: all do at first, later those with too few good samples.
local function wants_turn(subject, round, options)
    return not subject.result.failure and (round <= options.rounds
        or statistics.count_good(subject.rounds) < statistics.MIN_GOOD)
end

-- The short trials that chose the fastest core may have erred: the full measurement decides.
local function settle_fastest(entry)
    local packaged, fastest
    for _, result in ipairs(entry.results) do
        if result.subject == "openblas" and not result.failure then
            packaged = result.settings[1] == "packaged" and result or packaged
            fastest = result.settings[1] == "fastest" and result or fastest
        end
    end
    local times <const> = packaged and fastest and statistics.ratio(packaged, fastest)
    if times and times > 1.0 then
        packaged.settings, fastest.settings = { "packaged", "fastest" }, { "tried" }
    end
end

-- All subjects of a shape in turns, so that none has a quieter machine than the others.
local function measure_shape(entry, subjects, options)
    local is_cold <const> = total_flops(entry) < COLD_FLOPS
    for _, subject in ipairs(subjects) do
        subject.rounds = {}
    end
    for round = 1, options.patience * options.rounds do
        for _, subject in ipairs(subjects) do
            if wants_turn(subject, round, options) then
                options.step(("%s, %s, round %d"):format(entry.id,
                    subject.item and subject.item.compiler or "OpenBLAS", round),
                    round > options.rounds)
                take_turn(subject, round, options, is_cold)
            end
        end
    end
    for _, subject in ipairs(subjects) do
        local result <const> = subject.result
        if not result.failure then
            for key, value in pairs(statistics.merge(subject.rounds)) do
                result[key] = value
            end
            result.blas_library = subject.rounds[1].blas_library
            result.core = subject.rounds[1].core
            statistics.add_limit(result, total_flops(entry))
        end
    end
    settle_fastest(entry)
end

local function list_compilers(options)
    local list <const> = {}
    for index, name in ipairs(options.compilers) do
        local arch <const> = toolchain.arch_of(options.isas[1])
        local compiler, message = build.find_compiler(name, arch)
        if not compiler then
            return nil, message
        end
        list[index] = { name = name, version = compiler.version }
    end
    return list
end

-- A program that can tell what an ISA's code reaches where the kernels run: the probe, or with
-- kernels linked in any of them.
local function find_program(builder, isa_name)
    for _, item in ipairs(builder.items) do
        if item.isa == isa_name and item.ok then
            return item.program or item.probe
        end
    end
end

local function describe_machine(builder, options)
    local machine <const> = { arch = toolchain.arch_of(options.isas[1]), rates = {} }
    machine.cpu = options.push == nil and host.can_run(options.isas[1]) and host.current().cpu
        or ("%s behind %s"):format(machine.arch, table.concat(options.runner, " "))
    for _, name in ipairs(options.isas) do
        local program <const> = find_program(builder, name)
        if program then
            local rates, problem = measure.machine(program, { cpu = options.cpu,
                runner = options.runner, push = options.push })
            if not rates then
                return nil, problem.message
            end
            rates.format = nil
            rates.isa = name
            machine.rates[#machine.rates + 1] = rates
        end
    end
    return machine
end

-- How many steps run() takes at most, extra rounds aside: the builds, then every subject of every
-- shape in every round.
function M.count_steps(shapes, options)
    local rounds <const> = options.rounds or (options.short and SHORT or FULL).rounds
    local subjects <const> = #options.isas * #options.compilers + (options.no_blas and 0 or 2)
    return 1 + #shapes * rounds * subjects
end

-- options: root, dir, isas, compilers (names), short, rounds, seconds, cpu, fill, logits, runner,
-- push, no_blas, jobs, step(label, is_extra). Returns the document, or nil and a message when
-- nothing can be measured.
function M.run(shapes, given)
    local options <const> = setmetatable({}, { __index = function(_, key)
        local value <const> = given[key]
        return value == nil and (given.short and SHORT or FULL)[key] or value
    end })
    local compilers, message = list_compilers(options)
    if not compilers then
        return nil, message
    end
    local builder <const> = build.new({ root = options.root, dir = options.dir,
        jobs = options.jobs })
    options.step(("building %d shapes"):format(#shapes))
    local native <const> = host.native_isa()
    local probe
    probe, message = builder:add_probe(native)
    if not probe then
        return nil, message
    end
    local entries <const>, work <const> = {}, {}
    for index, shape in ipairs(shapes) do
        entries[index] = new_entry(shape)
        work[index] = { subjects = {} }
        if shape.record then
            work[index].case = builder:add_case(shape.record)
            work[index].subjects = add_kernels(builder, entries[index], shape, options)
        end
    end
    local ok
    ok, message = builder:run()
    if not ok then
        return nil, message
    end
    local machine
    machine, message = describe_machine(builder, options)
    if not machine then
        return nil, message
    end
    for index, shape in ipairs(shapes) do
        local entry <const>, subjects <const> = entries[index], {}
        for _, subject in ipairs(work[index].subjects) do
            if note_build(subject) then
                subjects[#subjects + 1] = subject
            end
        end
        if shape.record then
            ok, message = measure.prepare_truth(probe, work[index].case,
                { fill = options.fill, logits = options.logits })
            if not ok then
                return nil, ("%s: %s"):format(shape.id, message)
            end
            if not options.no_blas then
                local libraries <const> = add_blas(entry, work[index].case, probe, options)
                table.move(libraries, 1, #libraries, #subjects + 1, subjects)
            end
            measure_shape(entry, subjects, options)
        end
    end
    return { format = M.FORMAT, generator = version.VERSION, machine = machine,
        compilers = compilers, isas = options.isas, shapes = entries,
        settings = { rounds = options.rounds, seconds = options.seconds,
            short = options.short or false, fill = options.fill, logits = options.logits } }
end

M.settle_fastest = settle_fastest -- for tests

-- Results that are failures of ours: built or run, they did not give a right answer.
function M.count_failures(document)
    local count = 0
    for _, entry in ipairs(document.shapes) do
        for _, result in ipairs(entry.results) do
            if result.subject == "attngen" and result.failure
                and result.failure.kind ~= "refused" then
                count = count + 1
            end
        end
    end
    return count
end

return M
