-- A fuzzing campaign: draws cases, builds every (config, ISA, compiler), has them judged, reports.
--   input:  a seed, how many cases, how many input sets a kernel
--   output: a table of counts, skips and failures; failing cases are shrunk
-- Leaves the drawing to draw.lua, the building to harness/build.lua, the judging to check.c.
local build <const> = require("tests.harness.build")
local case_text <const> = require("tests.harness.case_text")
local config <const> = require("gen.config")
local draw <const> = require("tests.fuzz.draw")
local fs <const> = require("gen.fs")
local isa_data <const> = require("gen.isa")
local list <const> = require("tests.cases.list")
local generate_version <const> = require("gen.version").VERSION
local process <const> = require("gen.process")
local random <const> = require("tests.fuzz.random")

local M = {}

local COMPILERS <const> = { "gcc", "clang" }

local function add_skip(report, name, reason, count)
    local key <const> = name .. ": " .. reason
    if not report.skips[key] then
        report.skips[key] = 0
        report.skip_order[#report.skip_order + 1] = key
    end
    report.skips[key] = report.skips[key] + (count or 1)
end

local function add_failure(report, case, what, message)
    report.failures[#report.failures + 1] = { case = case, what = what, message = message }
end

-- One line of a check list.
local function job_line(job)
    return ("%s %s %s %s %s %d %d | %s"):format(job.label, job.group, job.object, job.prefix,
        job.isa, job.sets, job.seed, case_text.line(job.record, job.form))
end

M.job_line = job_line

-- The input seed of a case; positive, so that it survives text.
local function input_seed(seed, case)
    return random.new(seed, case, 77):next() >> 2
end

-- Validates and emits a drawn case; nil when the plan refuses it or something is wrong.
local function accept(report, builder, drawn)
    local name <const> = ("k%d"):format(drawn.number)
    local record <const>, errors = config.validate(drawn.config, "draw", name)
    if not record then
        add_failure(report, drawn, "config refused", config.format_errors(errors))
        return nil
    end
    local bundle <const>, problem = builder:emit(record, ("c%d"):format(drawn.number))
    if bundle then
        return record, bundle
    elseif problem.refused then
        report.refused = report.refused + 1
        report.refusals[#report.refusals + 1] = problem.refused
    else
        add_failure(report, drawn, "generator crash", problem.crash)
    end
    return nil
end

-- Builds beyond the pinned flags, spread over the cases so that each kind is met often.
local function add_extras(report, builder, jobs, drawn, bundle, base)
    local isa <const>, n <const> = drawn.isa, drawn.number
    local plan <const> = builder.tools.isas[isa]
    if n % 6 == 0 and plan.runs ~= "qemu" then
        for _, level in ipairs({ "-O0", "-O2" }) do -- pinned is -O3
            local compiler <const> = COMPILERS[(n // 6 + #level) % 2 + 1]
            if plan.compilers[compiler] then
                local job <const> = base(compiler, level)
                job.object = builder:add_kernel(bundle, isa, compiler, { level = level })
                job.group = "levels"
                jobs.host[#jobs.host + 1] = job
                report.level_builds = report.level_builds + 1
            end
        end
    end
    if n % 5 == 1 then
        builder:add_header_cpp(bundle, build.variant(bundle, isa).header)
        report.headers = report.headers + 1
    end
    if n % 5 == 2 and plan.runs == "native" and plan.compilers.gcc then
        local job <const> = base("gcc", "-asan")
        job.object = builder:add_kernel(bundle, isa, "gcc", { sanitize = true })
        jobs.asan[#jobs.asan + 1] = job
    end
    if isa == "scalar" and n % 4 == 3 and builder.tools.has_valgrind and #jobs.valgrind < 6 then
        local job <const> = base("gcc", "-valgrind")
        job.object = ("%s/%s-gcc.so"):format(bundle.dir, isa)
        job.sets = 14
        jobs.valgrind[#jobs.valgrind + 1] = job
    end
    if plan.runs == "simde" then
        for _, compiler in ipairs(COMPILERS) do
            if builder.tools.host[compiler] then
                builder:add_compile_only(bundle, isa, compiler, n % 6 == 0 and "-O0" or "-O2")
                report.compile_only = report.compile_only + 1
            end
        end
        add_skip(report, "avx512 native", plan.reason .. "; run emulated instead", 2)
    end
end

-- Adds all builds of one case to the builder and the job lists.
local function add_case(report, builder, jobs, drawn, options)
    local plan <const> = builder.tools.isas[drawn.isa]
    if not plan.runs then
        add_skip(report, drawn.isa, plan.reason, #COMPILERS)
        return
    end
    local record <const>, bundle <const> = accept(report, builder, drawn)
    if not record then
        return
    end
    report.cases = report.cases + 1
    report.drawn[drawn.number] = drawn
    local emulated <const> = plan.runs ~= "native"
    local function base(compiler, suffix)
        return { label = ("c%d-%s-%s%s"):format(drawn.number, drawn.isa, compiler, suffix or ""),
            group = drawn.isa .. "-" .. compiler, isa = drawn.isa, record = record, case = drawn,
            prefix = build.variant(bundle, drawn.isa).prefix,
            form = build.variant(bundle, drawn.isa).form, compiler = compiler,
            sets = emulated and options.emulated_sets or options.sets,
            seed = input_seed(options.seed, drawn.alike or drawn.number) }
    end
    for _, compiler in ipairs(COMPILERS) do
        if plan.compilers[compiler] then
            local job <const> = base(compiler)
            job.object = builder:add_kernel(bundle, drawn.isa, compiler)
            local group <const> = plan.runs == "qemu" and jobs.qemu or jobs.host
            group[#group + 1] = job
            report.builds = report.builds + 1
        else
            add_skip(report, drawn.isa .. " " .. compiler, "compiler not installed")
        end
    end
    add_extras(report, builder, jobs, drawn, bundle, base)
end

-- Reports the failed builds and takes them out of the lists.
local function drop_missing(report, lists, missing)
    local gone <const> = {}
    for _, output in ipairs(missing) do
        gone[output.path] = true
        add_failure(report, report.drawn[tonumber(output.path:match("/c(%d+)/"))],
            "build of " .. output.path, output.message)
    end
    for _, jobs in pairs(lists) do
        for index = #jobs, 1, -1 do
            if gone[jobs[index].object] then
                table.remove(jobs, index)
            end
        end
    end
end

local function write_list(path, jobs, first, step)
    local lines <const> = {}
    for index = first or 1, #jobs, step or 1 do
        lines[#lines + 1] = job_line(jobs[index]) .. "\n"
    end
    assert(fs.write_all({ { path = path, text = table.concat(lines) } }))
    return path
end

-- Reads "ok LABEL ..." and "FAIL LABEL ..." lines into the jobs.
local function read_results(report, text, by_label)
    for line in text:gmatch("[^\n]+") do
        local verdict <const>, label <const> = line:match("^(%u?%l?%u*%l*) (%S+) sets=")
        local job <const> = label and by_label[label]
        if job then
            job.seen = true
            report.sets = report.sets + tonumber(line:match("sets=(%d+)"))
            report.cross = report.cross + (tonumber(line:match("cross=(%d+)")) or 0)
            report.worst = math.max(report.worst, tonumber(line:match("worst=([%d.]+)")) or 0)
            job.hash = line:match("hash=(%x+)")
            if verdict ~= "ok" then
                add_failure(report, job.case, job, line:match("sets=%d+ (.*)"))
            end
        end
    end
end

-- Runs one list through a check program, in as many processes as asked for.
local function run_list(report, name, jobs, words, dir, processes)
    if #jobs == 0 then
        return
    end
    local commands <const> = {}
    for index = 1, processes do
        local path <const> = write_list(("%s/%s-%d.list"):format(dir, name, index), jobs, index,
            processes)
        commands[index] = ("%s %s > %s.out 2>&1 &"):format(words, path, path)
    end
    process.capture({ "sh", "-c", table.concat(commands, " ") .. " wait" })
    local by_label <const> = {}
    for _, job in ipairs(jobs) do
        by_label[job.label] = job
    end
    local tail = ""
    for index = 1, processes do
        local text <const> = fs.read(("%s/%s-%d.list.out"):format(dir, name, index)) or ""
        read_results(report, text, by_label)
        tail = tail .. text:sub(-1500)
    end
    for _, job in ipairs(jobs) do
        if not job.seen then
            add_failure(report, job.case, job, name .. " ended before this kernel: " .. tail)
        end
        if name == "valgrind" and tail:find("ERROR SUMMARY: [1-9]") then
            add_failure(report, job.case, job, "valgrind: " .. tail)
            break
        end
    end
end

-- The Criterion suite over the host list.
local function run_criterion(report, suite, jobs, dir)
    local results <const> = dir .. "/results"
    process.capture({ "sh", "-c", ("rm -rf %s; mkdir -p %s"):format(results, results) })
    write_list(dir .. "/host.list", jobs)
    local status <const> = process.run({ "env", "ATTNGEN_LIST=" .. dir .. "/host.list",
        "ATTNGEN_RESULTS=" .. results, suite, "--jobs", 2 })
    local by_label <const> = {}
    for _, job in ipairs(jobs) do
        by_label[job.label] = job
    end
    for _, name in ipairs(fs.list(results) or {}) do
        read_results(report, fs.read(results .. "/" .. name), by_label)
    end
    for _, job in ipairs(jobs) do
        if not job.seen then
            add_failure(report, job.case, job, "the suite ended before this kernel")
        end
    end
    if status ~= 0 and #report.failures == 0 then
        add_failure(report, nil, "test_kernels", "exit status " .. status)
    end
end

-- Both compilers and all levels compute the same bits: the pinned flags forbid contraction. Both
-- plans of a twin do.
local function compare_hashes(report, jobs)
    local by_case <const> = {}
    for _, group in ipairs({ jobs.host, jobs.qemu, jobs.asan }) do
        for _, job in ipairs(group) do
            local number <const> = job.case.alike or job.case.number
            local first <const> = by_case[number]
            if job.hash and not first then
                by_case[number] = job
            elseif job.hash and first.sets == job.sets and first.hash ~= job.hash then
                add_failure(report, job.case, job, ("outputs differ in their bits from those of %s")
                    :format(first.label))
            end
        end
    end
end

-- The written-down shapes count as cases from here on: 1 000 001, … on their ISA or each in turn.
local FIXED <const> = 1000000
-- Twins, two by two, from here on.
local TWINS <const> = 2000000

local function case_of(number, raw, isa)
    local config_copy <const> = {}
    for key, value in pairs(raw) do
        config_copy[key] = value
    end
    config_copy.isa = isa
    return { config = config_copy, isa = isa, number = number }
end

local function fixed_case(number)
    local index <const> = number - FIXED - 1
    local raw <const> = list.judged[index % #list.judged + 1]
    return case_of(number, raw, raw.isa
        or isa_data.names[(index + index // #list.judged) % #isa_data.names + 1])
end

-- One of two cases with the same inputs (`alike` is the first one's number) and other plans.
local function twin_case(number)
    local index <const> = number - TWINS - 1
    local twin <const> = list.twins[index // 2 + 1]
    local case <const> = case_of(number, twin.config, twin.isa)
    case.config.plan = twin.plans[index % 2 + 1]
    case.alike = number - index % 2
    return case
end

local function find_case(seed, number)
    if number > TWINS then
        return twin_case(number)
    end
    return number > FIXED and fixed_case(number) or draw.draw(seed, number)
end

-- options: seed, cases (how many), fixed (how many of these written down), twins (how many pairs),
-- only (one case number), sets, emulated_sets, name, tools, programs. Returns the report.
function M.run(options)
    local report <const> = { cases = 0, builds = 0, level_builds = 0, compile_only = 0, headers = 0,
        asan = 0, valgrind = 0, sets = 0, cross = 0, worst = 0, refused = 0, refusals = {},
        skips = {}, skip_order = {}, failures = {}, drawn = {}, laps = {}, seed = options.seed,
        version = generate_version }
    local builder <const> = build.new(options.name, options.tools)
    local jobs <const> = { host = {}, qemu = {}, asan = {}, valgrind = {} }
    local clock = os.time()
    local function lap(what)
        report.laps[#report.laps + 1] = ("%s %d s"):format(what, os.time() - clock)
        clock = os.time()
    end
    if options.only then
        add_case(report, builder, jobs, find_case(options.seed, options.only), options)
    else
        for index = 1, options.fixed or 0 do
            add_case(report, builder, jobs, fixed_case(FIXED + index), options)
        end
        for index = 1, 2 * (options.twins or 0) do
            add_case(report, builder, jobs, twin_case(TWINS + index), options)
        end
        local number = 0
        while report.cases < options.cases and number < 3 * options.cases do
            number = number + 1
            add_case(report, builder, jobs, draw.draw(options.seed, number), options)
        end
    end
    lap("emit")
    drop_missing(report, jobs, builder:run(2))
    lap("compile")
    local programs <const> = options.programs
    if #jobs.host > 0 then
        run_criterion(report, programs.kernels, jobs.host, builder.dir)
        lap("judge here")
    end
    if #jobs.qemu > 0 then
        local emulator <const> = table.concat(options.tools.isas.neon.emulator, " ")
        run_list(report, "neon", jobs.qemu, emulator .. " " .. programs.check_aarch64, builder.dir,
            2)
        lap("judge under qemu")
    end
    run_list(report, "asan", jobs.asan,
        "env ASAN_OPTIONS=handle_segv=0:handle_sigbus=0:handle_sigill=0:handle_sigfpe=0"
        .. ":detect_leaks=0:use_sigaltstack=0 " .. programs.check_asan, builder.dir, 2)
    run_list(report, "valgrind", jobs.valgrind,
        "valgrind --error-exitcode=3 --track-origins=no " .. programs.check, builder.dir, 2)
    lap("sanitizers and valgrind")
    report.asan, report.valgrind = #jobs.asan, #jobs.valgrind
    compare_hashes(report, jobs)
    return report
end

return M
