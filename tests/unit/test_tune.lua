-- `attngen tune` for real, on a kernel that compiles in no time: what a run leaves behind,
-- candidates that fail in every way, SIGINT and SIGKILL in the middle, and going on afterwards.

package.path = "./?.lua;./?/init.lua;" .. package.path
local dkjson <const> = require("dkjson")
local lu <const> = require("luaunit")

local fs <const> = require("gen.fs")
local keys <const> = require("gen.keys")
local process <const> = require("gen.process")
local support <const> = require("tests.unit.support")
local toolchain <const> = require("gen.toolchain")

-- The plan leaves compilers and levels open: four candidates with both compilers.
local CONFIG <const> = [[return { name = "four", op = "sdpa", seq_len = 4, head_dim = 4, heads = 1,
    isa = "scalar", unroll = "tiles", plan = { scores = { rows = 4, vectors = 2 },
    context = { rows = 4, vectors = 2, unroll = 2 } } }]]

-- The measuring program is built once for all tests.
local WORK <const> = support.root .. "/build/tests/tune"
local RUN_DIR <const> = WORK .. "/four-scalar"

local compilers <const> = {}
for _, name in ipairs(keys.compilers) do
    if toolchain.find_program(name) then
        compilers[#compilers + 1] = name
    end
end
local CANDIDATES <const> = #compilers * #keys.levels

local function read_log()
    local entries <const> = {}
    for line in (fs.read(RUN_DIR .. "/log.jsonl") or ""):gmatch("([^\n]*)\n") do
        entries[#entries + 1] = assert(dkjson.decode(line), line)
    end
    return entries
end

local function results_of(entries)
    local results <const> = {}
    for _, entry in ipairs(entries) do
        if entry.type == "result" then
            results[#results + 1] = entry
        end
    end
    return results
end

TestTune = {}

function TestTune:setUp()
    self.scratch = support.new_scratch()
    self.scratch:write("four.lua", CONFIG)
    process.run({ "rm", "-rf", RUN_DIR, WORK .. "/build/kernels" })
end

function TestTune:tearDown()
    self.scratch:remove()
end

function TestTune:tune(options, before)
    return self.scratch:attngen(("tune four.lua --work '%s' --strategy exhaustive --budget 29 %s")
        :format(WORK, options or ""), before)
end

function TestTune:test_a_run_and_what_it_leaves()
    local run <const> = self:tune()
    lu.assertEquals(run.code, 0, run.err)
    lu.assertStrContains(run.err, "everything was tried")
    lu.assertStrMatches(run.out, "config .-\nfour +scalar +[%d.]+ +[%d.]+ +[%d.]+ +" .. CANDIDATES
        .. " +0  .*\n")
    local entries <const> = read_log()
    lu.assertEquals(entries[1].type, "header")
    lu.assertEquals(entries[#entries].type, "end")
    for _, result in ipairs(results_of(entries)) do
        lu.assertEquals(result.status, "ok")
        lu.assertTrue(#result.samples >= 1)
        lu.assertTrue(result.best_us > 0 and result.best_us <= result.median_us)
    end
    local files <const> = self.scratch:list("tuned/scalar")
    lu.assertEquals(#files, 1)
    local found <const> = dkjson.decode(self.scratch:read("tuned/scalar/" .. files[1]))
    -- Never slower than the planner's default.
    lu.assertTrue(found.best_us <= found.default_us)
    lu.assertEquals(found.plan.scores.rows, 4)
    lu.assertEquals(#dkjson.decode(fs.read(RUN_DIR .. "/t4.json")).results, CANDIDATES)
    lu.assertStrContains(fs.read(RUN_DIR .. "/report.html"), "Landscape")

    local plan <const> = self.scratch:attngen("plan four.lua").out
    lu.assertStrContains(plan, "plan: tuned on ")
    lu.assertStrContains(plan, files[1])
    lu.assertStrContains(self.scratch:attngen("plan four.lua --no-tuned").out,
        "plan: the config's")
    local emitted <const> = self.scratch:attngen("emit four.lua -o out")
    lu.assertEquals(emitted.code, 0, emitted.err)
    local variant <const> = dkjson.decode(self.scratch:read("out/four.json")).variants[1]
    lu.assertEquals(variant.tuned.file, "tuned/scalar/" .. files[1])
    lu.assertEquals(variant.flags[found.compiler][2], found.level)
    process.run({ "mv", self.scratch:path("tuned"), self.scratch:path("elsewhere") })
    lu.assertStrContains(self.scratch:attngen("plan four.lua --tuned elsewhere").out,
        "elsewhere/scalar/" .. files[1])
end

function TestTune:test_dry_run_measures_nothing()
    local run <const> = self:tune("--dry-run")
    lu.assertEquals(run.code, 0, run.err)
    lu.assertStrContains(run.out, ("four on scalar: %d candidates"):format(CANDIDATES))
    lu.assertStrContains(run.out, "first plans (exhaustive):\n  compiler=" .. compilers[1])
    lu.assertEquals(self.scratch:list(), { "four.lua" })
    lu.assertFalse(fs.is_directory(RUN_DIR))
end

function TestTune:test_several_configs_make_one_table()
    local run <const> = self.scratch:attngen(("tune four.lua --set seq_len=3,4 --work '%s' "
        .. "--budget 2"):format(WORK))
    lu.assertEquals(run.code, 0, run.err)
    lu.assertStrMatches(run.out, "config [^\n]*\nfour_seq_len3 [^\n]*\nfour_seq_len4 [^\n]*\n")
    lu.assertEquals(#self.scratch:list("tuned/scalar"), 2)
end

function TestTune:test_bad_usage()
    for options, message in pairs({ ["--budget 0"] = "--budget", ["--budget 1.5"] = "--budget",
        ["--strategy best"] = "strategy", ["--cc tcc"] = "--cc", ["--runner ' '"] = "command",
        ["--runner no-such-program"] = "'no-such-program'", ["--push 'cp {} x'"] = "--runner",
        ["--work ''"] = "--work takes a path", ["--tuned ''"] = "--tuned takes a path",
        ["--push ''"] = "--push takes a command", ["--cc gcc,gcc"] = "twice", ["--cc ''"] = "--cc",
        ["--seed -1"] = "--seed", ["--cpu ''"] = "--cpu" }) do
        local run <const> = self:tune(options)
        lu.assertEquals(run.code, 2, options)
        lu.assertStrContains(run.err, message)
    end
    local run <const> = self.scratch:attngen("tune four.lua four.lua")
    lu.assertEquals(run.code, 2)
    lu.assertStrContains(run.err, "two of the configs")
end

-- Where nothing can be written nothing is measured; and what fails later loses no report.
function TestTune:test_a_tuning_file_that_cannot_be_written()
    self.scratch:write("file", "")
    self.scratch:write("tuned/scalar", "no directory")
    for options, message in pairs({ ["--tuned /proc/x"] = "/proc/x", ["--tuned /dev/null"] =
        "/dev/null", ["--tuned file"] = "file: ", [""] = "tuned/scalar" }) do
        local run <const> = self:tune(options)
        lu.assertEquals(run.code, 2, options)
        lu.assertStrContains(run.err, message)
        lu.assertFalse(fs.is_directory(RUN_DIR))
    end
    self.scratch:write("bad.sh", 'mkdir -p late; touch late/scalar; exec "$@"')
    local run <const> = self:tune("--tuned late --runner 'sh bad.sh'")
    lu.assertEquals(run.code, 1)
    lu.assertStrContains(run.err, "late/scalar")
    lu.assertStrContains(run.err, "--resume")
    lu.assertStrContains(fs.read(RUN_DIR .. "/report.html"), "Landscape")
    lu.assertNotNil(fs.read(RUN_DIR .. "/t4.json"))
end

-- A board that cannot be reached: nothing else would run either, and --resume can try it again.
function TestTune:test_a_runner_that_cannot_start_the_default_ends_the_sweep()
    self.scratch:write("runner.sh", "echo 'no route to host' >&2; exit 255")
    local run = self:tune("--runner 'sh runner.sh'")
    lu.assertEquals(run.code, 1)
    lu.assertStrContains(run.out, "does not run behind the runner sh runner.sh: no route to host")
    lu.assertEquals(#results_of(read_log()), 0)
    self.scratch:write("runner.sh", 'exec "$@"')
    run = self:tune("--runner 'sh runner.sh' --resume")
    lu.assertEquals(run.code, 0, run.err)
    lu.assertEquals(#results_of(read_log()), CANDIDATES)
end

-- The runner fails by the number of the build: crash, hang, wrong, not at all.
local RUNNER <const> = [[
case $1 in
*/0-2/*) kill -SEGV $$ ;;
*/0-3/*) sleep 60 ;;
*/0-4/*) echo '{'; echo '"right": false, "max_error": 1, "tolerance_share": 3 }'; exit 3 ;;
esac
exec "$@"
]]

function TestTune:test_what_fails_is_a_result_and_the_sweep_goes_on()
    self.scratch:write("runner.sh", RUNNER)
    local run <const> = self:tune("--runner 'sh runner.sh' --cpu 'A board'")
    lu.assertEquals(run.code, 0, run.err)
    local WORDS <const> = { "ok", "crash", "hang", "wrong" }
    local results <const> = results_of(read_log())
    lu.assertEquals(#results, CANDIDATES)
    for index, result in ipairs(results) do
        lu.assertEquals(result.status, WORDS[index])
    end
    lu.assertStrContains(run.err, ("1 of %d candidates: crash: SIGSEGV"):format(CANDIDATES))
    lu.assertStrContains(run.out, "planner's default")
    lu.assertStrContains(self.scratch:attngen("plan four.lua").out, "tuned on A board")
end

function TestTune:test_a_compiler_that_fails_is_a_result()
    if #compilers < 2 then
        lu.skip("needs gcc and clang")
    end
    self.scratch:write("bin/clang", ([[#!/bin/sh
case "$*" in *kernel.o*) echo 'four.c:1: error: no' >&2; exit 1 ;; esac
exec %s "$@"
]]):format(toolchain.find_program("clang")))
    process.run({ "chmod", "+x", self.scratch:path("bin/clang") })
    local run <const> = self:tune("", ("PATH='%s':\"$PATH\""):format(self.scratch:path("bin")))
    lu.assertEquals(run.code, 0, run.err)
    lu.assertStrContains(run.err, "2 of 4 candidates: compile: four.c:1: error: no")
    for _, result in ipairs(results_of(read_log())) do
        lu.assertEquals(result.status, result.compiler == "gcc" and "ok" or "compile")
    end
end

----------------------------------------------------------------------------------------------------
-- Signals
----------------------------------------------------------------------------------------------------

-- Seconds that no other run of this test sleeps for: processes left behind are known by it.
local function unique_seconds(scratch)
    local number = 0
    for byte in scratch.dir:gmatch("%w") do
        number = (number * 36 + byte:byte()) % 1000000007
    end
    return ("61.%010d"):format(number)
end

-- Starts a run whose third candidate takes long, waits until two are in the log, and kills it. The
-- script says the exit code, the milliseconds to the end, and how many processes are left after
-- attn_watch has had the time to notice. It waits no longer than the run lasts.
local KILL <const> = [[
'%s/attngen' tune four.lua --work '%s' --strategy exhaustive --budget 29 \
    --runner "sh slow.sh" >out 2>err &
pid=$!
until [ "$(grep -c '"type":"result"' '%s/log.jsonl' 2>/dev/null)" = 2 ] &&
    ps -eo args | grep -q "^sleep %s"; do
    kill -0 $pid || exit
    sleep 0.02
done
start=$(date +%%s%%N)
kill -%s $pid
wait $pid
echo "code $?"
end=$(date +%%s%%N)
echo "took $(((end - start) / 1000000))"
sleep 0.7
ps -eo args | grep -c "^sleep %s"
]]

local SLOW <const> = [[
case $1 in */0-3/*) sleep %s ;; esac
exec "$@"
]]

function TestTune:kill(signal)
    if CANDIDATES < 3 then
        lu.skip("needs gcc and clang")
    end
    local seconds <const> = unique_seconds(self.scratch)
    self.scratch:write("slow.sh", SLOW:format(seconds))
    self.scratch:write("kill.sh", KILL:format(support.root, WORK, RUN_DIR, seconds, signal,
        seconds))
    local run <const> = self.scratch:shell("sh kill.sh")
    local code <const>, took <const>, left <const> = run.out:match(
        "code (%d+)\ntook (%d+)\n(%d+)")
    lu.assertNotNil(code, "the third candidate was not waited for: " .. run.err)
    lu.assertEquals(left, "0", "processes are left")
    return math.tointeger(tonumber(code)), tonumber(took), run
end

-- What had been measured is not measured again.
function TestTune:assert_resumes(before)
    self.scratch:write("slow.sh", 'exec "$@"\n')
    local run <const> = self:tune("--resume --runner 'sh slow.sh'")
    lu.assertEquals(run.code, 0, run.err)
    local after <const> = read_log()
    for index, entry in ipairs(before) do
        lu.assertEquals(after[index], entry)
    end
    lu.assertEquals(#results_of(after), CANDIDATES)
    lu.assertStrMatches(run.out, ".* " .. CANDIDATES .. " +0  .*")
end

function TestTune:test_interrupt_keeps_the_best_within_a_second()
    local code <const>, took = self:kill("INT")
    lu.assertEquals(code, 130)
    lu.assertTrue(took < 1000, took .. " ms")
    lu.assertStrContains(self.scratch:read("err"), "interrupted; --resume goes on")
    lu.assertStrMatches(self.scratch:read("out"), "config .*\nfour .* 2 +0  .*\n")
    lu.assertEquals(#self.scratch:list("tuned/scalar"), 1)
    local entries <const> = read_log()
    lu.assertEquals(#results_of(entries), 2)
    self:assert_resumes(entries)
end

function TestTune:test_a_kill_loses_nothing()
    lu.assertEquals((self:kill("KILL")), 137)
    local entries <const> = read_log()
    lu.assertEquals(#results_of(entries), 2)
    -- as if it had hit the middle of a write
    fs.append(RUN_DIR .. "/log.jsonl", '{"type":"result","ke')
    self:assert_resumes(entries)
end

function TestTune:test_resume_refuses_the_log_of_another_machine()
    lu.assertEquals(self:tune().code, 0)
    local path <const> = RUN_DIR .. "/log.jsonl"
    local text <const> = fs.read(path)
    for _, change in ipairs({ { '"cpu":"', '"cpu":"Another ', "its CPU is Another" },
        { '"generator":"attngen ', '"generator":"attngen 9', "its generator is attngen 9" } }) do
        fs.write_all({ { path = path, text = (text:gsub(change[1], change[2], 1)) } })
        local run <const> = self:tune("--resume")
        lu.assertEquals(run.code, 2)
        lu.assertStrContains(run.err, "cannot be resumed: " .. change[3])
        lu.assertStrContains(run.err, ", this one is ")
    end
end

----------------------------------------------------------------------------------------------------
-- attn_watch
----------------------------------------------------------------------------------------------------

TestWatch = {}

function TestWatch:setUp()
    self.scratch = support.new_scratch()
    self.watcher = assert(toolchain.find_watcher(support.root))
end

function TestWatch:tearDown()
    self.scratch:remove()
end

function TestWatch:watch(script, options)
    return process.watch(self.watcher, { "sh", "-c", script }, options or {})
end

function TestWatch:test_every_kind_of_end()
    local ended = self:watch("exit 3")
    lu.assertEquals({ ended.kind, ended.code }, { "exit", 3 })
    ended = self:watch("kill -SEGV $$")
    lu.assertEquals({ ended.kind, ended.code }, { "signal", 11 })
    ended = self:watch("sleep 30", { seconds = 0.2 })
    lu.assertEquals(ended.kind, "timeout")
    lu.assertTrue(ended.seconds >= 0.2 and ended.seconds < 5)
    ended = process.watch(self.watcher, { "no-such-program" }, {
        output = self.scratch:path("out") })
    lu.assertEquals({ ended.kind, ended.code }, { "exit", 127 })
end

function TestWatch:test_output_and_beats()
    local beats = 0
    self:watch("echo one; echo two >&2; sleep 0.5", { output = self.scratch:path("out"),
        beat = function() beats = beats + 1 end })
    lu.assertEquals(self.scratch:read("out"), "one\ntwo\n")
    lu.assertTrue(beats >= 2)
end

-- Programs that do not want to end, and what they have started.
function TestWatch:test_nothing_survives_a_timeout()
    local seconds <const> = unique_seconds(self.scratch)
    self.scratch:write("stubborn.sh", ([[
trap "" TERM
sleep %s &
sleep %s
sleep %s
]]):format(seconds, seconds, seconds))
    local ended <const> = process.watch(self.watcher, { "sh",
        self.scratch:path("stubborn.sh") }, { seconds = 0.2 })
    lu.assertEquals(ended.kind, "timeout")
    local run <const> = self.scratch:shell("ps -eo args | grep -c '^sleep " .. seconds .. "'")
    lu.assertEquals(run.out, "0\n")
end

function TestWatch:test_bad_usage()
    for _, words in ipairs({ "", "-t 0 -- true", "-t x -- true", "-z -- true", "--", "-o" }) do
        lu.assertEquals(self.scratch:shell(self.watcher .. " " .. words).code, 2, words)
    end
end

if arg and arg[0] and arg[0]:find("test_tune%.lua$") then
    os.exit(lu.LuaUnit.run())
end
