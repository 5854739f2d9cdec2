#!/usr/bin/env lua5.4
-- Runs the tests, from the root of the repository.
--   lua5.4 tests/run.lua quick      what `make test` runs
--   lua5.4 tests/run.lua full       what `make check-all` runs
--   lua5.4 tests/run.lua fuzz       kernel fuzzing alone; SEED=N repeats, CASE=N one case, CASES=N
--                                   draws as many
--   output: a summary of builds, input sets and skips; exit status 1 on any failure
-- Compiles into build/tests/; installs nothing (tools/setup.sh does).
package.path = "./?.lua;./?/init.lua;" .. package.path

local campaign <const> = require("tests.fuzz.campaign")
local cases <const> = require("tests.harness.cases")
local fs <const> = require("gen.fs")
local mutants <const> = require("tests.fuzz.mutants")
local objects <const> = require("tests.harness.objects")
local process <const> = require("gen.process")
local programs <const> = require("tests.harness.programs")
local report_failures <const> = require("tests.fuzz.report")
local toolchain <const> = require("gen.toolchain")
local toolset <const> = require("tests.harness.toolset")

local MODES <const> = {
    quick = { seed = 1, cases = 83, fixed = 15, twins = 3, sets = 96, emulated_sets = 36,
        all_isas = false, min_builds = 150, min_sets = 10000 },
    full = { seed = 2, cases = 386, fixed = 50, twins = 13, sets = 420, emulated_sets = 150,
        all_isas = true, min_builds = 600, min_sets = 200000 },
    fuzz = { cases = 60, sets = 300, emulated_sets = 100 },
}

local failures <const> = {}

local function fail(text)
    failures[#failures + 1] = text
    io.stdout:write("FAILED: ", text, "\n")
end

local begun <const> = os.time()

local function section(title)
    io.stdout:write(("\n== %s (after %d s)\n"):format(title, os.time() - begun))
    io.stdout:flush()
end

-- The longest first, so that none runs alone in the end; `full`: real sweeps of the tuner, minutes
-- of measuring, in the full run only.
local LONG_TESTS <const> = { { name = "test_tune.lua", full = true }, { name = "test_run.lua" },
    { name = "test_plan.lua" }, { name = "test_vocabulary.lua" } }

-- Names of the unit tests to run, and of those left to the full run.
local function choose_unit_tests(mode_name)
    local names <const>, left <const>, placed <const> = {}, {}, {}
    for _, long in ipairs(LONG_TESTS) do
        placed[long.name] = true
        local list <const> = long.full and mode_name ~= "full" and left or names
        list[#list + 1] = long.name
    end
    for _, name in ipairs(fs.list("tests/unit") or {}) do
        if name:find("^test_.*%.lua$") and not placed[name] then names[#names + 1] = name end
    end
    return names, left
end

-- All unit tests, as many at a time as there are cores; ninja keeps each one's output together.
local function run_unit_tests(mode_name)
    section("generator unit tests (Lua)")
    local dir <const> = "build/tests/units"
    local lines <const> = { ("builddir = %s\nrule test\n  command = lua5.4 $in -v > $out.log 2>&1 "
        .. "&& touch $out\n  description = $in\n"):format(dir) }
    local names <const>, left <const> = choose_unit_tests(mode_name)
    for _, name in ipairs(names) do
        lines[#lines + 1] = ("build %s/%s: test tests/unit/%s\n"):format(dir, name, name)
    end
    for _, name in ipairs(left) do print("skipped: " .. name .. " (in the full run only)") end
    process.run({ "rm", "-rf", dir })
    assert(fs.write_all({ { path = dir .. "/build.ninja", text = table.concat(lines, "\n") } }))
    process.capture({ "ninja", "-f", dir .. "/build.ninja", "-k", 0, "-j", 2 }, { merge = true })
    for _, name in ipairs(names) do
        local log <const> = fs.read(("%s/%s.log"):format(dir, name)) or "not run\n"
        print(name .. ": " .. (log:match("[^\n]*seconds[^\n]*") or ""))
        for test, reason in log:gmatch("([%w_.]+) %.%.%. SKIP\n([^\n]*)") do
            print(("skipped: 1 x %s: %s"):format(test, reason))
        end
        if not fs.is_file(("%s/%s"):format(dir, name)) then
            io.stdout:write(log)
            fail("tests/unit/" .. name)
        end
    end
end

-- tests/peers: the driver of bench-peers, with workers that need no library; in the full run also
-- on a real kernel. Nothing is installed for it.
local function run_peers_tests(name)
    section("bench-peers (Python)")
    if not toolchain.find_program("python3") then
        print("skipped: 1 x tests/peers: no python3")
        return
    end
    local words <const> = { "python3", "-m", "unittest", "discover", "-v", "-s", "tests/peers" }
    if name == "quick" then
        table.move({ "-k", "test_problem", "-k", "test_judge", "-k", "test_session" }, 1, 6,
            #words + 1, words)
    end
    local status <const>, log = process.capture(words, { merge = true })
    if status ~= 0 then
        io.stdout:write(log)
        fail("tests/peers")
        return
    end
    for test, reason in log:gmatch("([%w_]+) [^\n]-skipped ['\"]([^\n]*)['\"]") do
        print(("skipped: 1 x %s: %s"):format(test, reason))
    end
    print(log:match("Ran [^\n]*"))
end

local function run_suites(built, environment)
    for _, suite in ipairs(built.suites) do
        if suite.name ~= "test_kernels" then
            io.stdout:write(suite.name, ": ")
            io.stdout:flush()
            local words <const> = { "env", environment[1], environment[2], suite.path,
                "--jobs", 2 }
            if process.run(words) ~= 0 then
                fail(suite.name)
            end
        end
    end
end

local function run_mutants(built)
    section("self-test: planted faults must be caught")
    local dir <const> = "build/tests/mutants"
    assert(fs.make_directories(dir))
    local kills <const>, survivors <const> = mutants.run(built.check, dir)
    print(("%d planted faults caught, %d missed"):format(kills, #survivors))
    for _, name in ipairs(survivors) do
        fail("planted fault not caught: " .. name)
    end
end

local function print_report(report)
    print(("seed %d: %d configs, %d (config, ISA, compiler) builds, %d input sets judged"
        .. " (%d confirmed by OpenBLAS)"):format(report.seed, report.cases, report.builds,
        report.sets, report.cross))
    print(("also built: %d at -O0/-O2, %d for the real ISA without running, %d headers as C++; run"
        .. " under ASan+UBSan: %d, under valgrind: %d"):format(report.level_builds,
        report.compile_only, report.headers, report.asan, report.valgrind))
    print(("largest error: %.2f of its bound; %d draws refused by the plan"):format(report.worst,
        report.refused))
    print("time: " .. table.concat(report.laps, ", "))
    for _, key in ipairs(report.skip_order) do
        print(("skipped: %d x %s"):format(report.skips[key], key))
    end
end

local function check_budget(report, mode)
    if mode.min_builds and report.builds < mode.min_builds then
        fail(("%d builds, at least %d wanted"):format(report.builds, mode.min_builds))
    end
    if mode.min_sets and report.sets < mode.min_sets then
        fail(("%d input sets, at least %d wanted"):format(report.sets, mode.min_sets))
    end
end

local function usage_error(message)
    io.stderr:write("tests/run.lua: ", message, "\n")
    os.exit(2)
end

-- A number from the command line or the environment; nil where it is not given.
local function whole_number(name, text, low, high)
    if not text or text == "" then return nil end
    local number <const> = text:find("^%-?%d+$") and math.tointeger(tonumber(text))
    if not number or number < low or number > high then
        usage_error(("%s takes a number from %d to %d, got '%s'"):format(name, low, high, text))
    end
    return number
end

-- Which draws: {seed=, case=, cases=}. A seed is whatever the generator of random numbers takes.
local function read_draws()
    return {
        seed = whole_number("SEED", arg[2] or os.getenv("SEED"), math.mininteger, math.maxinteger),
        case = whole_number("CASE", os.getenv("CASE"), 1, 1000000),
        cases = whole_number("CASES", os.getenv("CASES"), 1, 1000000),
    }
end

local function run_campaign(mode, name, draws, tools, built)
    section("kernel fuzzing")
    local seed <const> = draws.seed or mode.seed or os.time()
    local only <const> = draws.case
    print(("seed %d%s"):format(seed, only and ", case " .. only or ""))
    built.kernels = "build/tests/bin/test_kernels"
    local report <const> = campaign.run({ seed = seed, only = only, name = name, tools = tools,
        programs = built, cases = draws.cases or mode.cases,
        sets = mode.sets, fixed = mode.fixed, twins = mode.twins,
        emulated_sets = mode.emulated_sets })
    print_report(report)
    if #report.failures > 0 then
        report_failures.print(report, tools, built)
        fail(("%d fuzz failures, seed %d"):format(#report.failures, seed))
    else
        check_budget(report, mode)
    end
end

local function main()
    local name <const> = arg[1] or "quick"
    local mode <const> = MODES[name]
    if not mode or arg[3] then
        usage_error("takes quick, full or fuzz, and a seed, got '"
            .. table.concat(arg, " ") .. "'")
    end
    local draws <const> = read_draws()
    local tools <const> = toolset.find()
    section("building the test programs")
    local built <const>, log <const> = programs.build(tools)
    if not built then
        io.stdout:write(log)
        os.exit(1)
    end
    if name ~= "fuzz" then
        run_unit_tests(name)
        run_peers_tests(name)
        run_mutants(built)
        section("kernels of the written-down cases, and the Criterion suites")
        local environment <const>, problems = cases.build(tools, mode.all_isas)
        for _, problem in ipairs(problems) do
            fail(problem)
        end
        for _, problem in ipairs(objects.check("build/tests/cases")) do
            fail(problem)
        end
        run_suites(built, environment)
    end
    run_campaign(mode, name, draws, tools, built)
    section("summary")
    print(("%s, %d s"):format(#failures == 0 and "all passed" or #failures .. " failed",
        os.time() - begun))
    for _, text in ipairs(failures) do
        print("FAILED: " .. text)
    end
    os.exit(#failures == 0 and 0 or 1)
end

main()
