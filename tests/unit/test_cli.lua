-- The command line as a user meets it: exit codes, streams, messages, files left behind.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")
local dkjson <const> = require("dkjson")
local lfs <const> = require("lfs")

local host <const> = require("gen.host")
local isa <const> = require("gen.isa")
local support <const> = require("tests.unit.support")
local toolchain <const> = require("gen.toolchain")
local version <const> = require("gen.version")

local SMALL <const> = "return { seq_len = 4, d_model = 16, heads = 2, isa = 'scalar' }\n"

local function assert_no_traceback(result)
    lu.assertNil(result.err:find("stack traceback", 1, true), result.err)
    lu.assertNil(result.err:find("%.lua:%d+:"), result.err)
end

-- One user error: exit code, text on stderr, nothing on stdout, no trace of Lua.
local function assert_refused(result, code, ...)
    lu.assertEquals(result.code, code, result.err)
    lu.assertEquals(result.out, "")
    for _, text in ipairs({ ... }) do
        lu.assertStrContains(result.err, text)
    end
    assert_no_traceback(result)
end

TestCli = {}

function TestCli:setUp()
    self.scratch = support.new_scratch()
    self.scratch:write("small.lua", SMALL)
end

function TestCli:tearDown()
    self.scratch:remove()
end

----------------------------------------------------------------------------------------------------
-- Usage
----------------------------------------------------------------------------------------------------

function TestCli:test_version()
    local result <const> = self.scratch:attngen("--version")
    lu.assertEquals(result, { code = 0, out = "attngen " .. version.VERSION .. "\n", err = "" })
end

function TestCli:test_help_names_what_exists_and_nothing_else()
    local result <const> = self.scratch:attngen("--help")
    lu.assertEquals(result.code, 0)
    lu.assertEquals(result.err, "")
    for _, word in ipairs({ "emit", "plan", "run", "tune", "bench", "isas", "--version", "--quiet",
        "--verbose" }) do
        lu.assertStrContains(result.out, word)
    end
    for _, word in ipairs({ "bake" }) do
        lu.assertNotStrContains(result.out, word)
    end
end

function TestCli:test_help_of_every_verb()
    for _, verb in ipairs({ "emit", "plan", "run", "tune", "bench", "isas" }) do
        local result <const> = self.scratch:attngen(verb .. " --help")
        lu.assertEquals(result.code, 0)
        lu.assertStrContains(result.out, "Usage: attngen " .. verb)
        lu.assertEquals(result.err, "")
    end
end

function TestCli:test_bad_usage_exits_2()
    local cases <const> = {
        { "", "a command is required" },
        { "emti small.lua", "unknown command 'emti'", "Did you mean 'emit'?" },
        { "emit", "missing argument 'CONFIG'" },
        { "emit small.lua --frobnicate", "unknown option '--frobnicate'" },
        { "emit small.lua --set heads", "--set heads: expected key=value" },
        { "emit small.lua --set =4", "expected key=value" },
        { "emit small.lua -o", "requires an argument" },
        { "plan small.lua small.lua", "too many arguments" },
        { "run small.lua --inputs x", "missing option '--output'" },
        { "run small.lua --inputs x --output y --threads 0", "1 to 1024" },
        { "run small.lua --inputs x --output y --threads two", "1 to 1024" },
        { "run small.lua --inputs x --output y --layer 99999999999999999999",
            "--layer takes a whole number from 0 to 2147483647, got '99999999999999999999'" },
        { "run small.lua --inputs x --output y --layer=-1", "0 to 2147483647" },
        { "--quiet --verbose isas", "can not be used together" },
        { "isas extra", "too many arguments" },
    }
    for _, case in ipairs(cases) do
        assert_refused(self.scratch:attngen(case[1]), 2, table.unpack(case, 2))
    end
    lu.assertEquals(self.scratch:list(), { "small.lua" })
end

function TestCli:test_runs_from_anywhere_and_through_links()
    lfs.link(support.root .. "/attngen", self.scratch:path("link"), true)
    lfs.link("link", self.scratch:path("second"), true)
    lu.assertEquals(self.scratch:shell("./second --version").code, 0)
    lu.assertEquals(self.scratch:shell("PATH=.:$PATH; link --version").code, 0)
    lu.assertEquals(self.scratch:shell("cd / && lua5.4 '" .. support.root
        .. "/attngen' --version").code, 0)
end

function TestCli:test_missing_lua_library_is_one_line()
    self.scratch:write("lib/argparse.lua", "error('broken')")
    self.scratch:write("lib/dkjson.lua", "error('broken')")
    assert_refused(self.scratch:attngen("--version", "LUA_PATH='./lib/?.lua;;'"), 1,
        "attngen: needs lua-argparse lua-dkjson; install with: apt-get install")
end

----------------------------------------------------------------------------------------------------
-- emit
----------------------------------------------------------------------------------------------------

function TestCli:test_emit_writes_the_bundle_and_lists_it()
    local result <const> = self.scratch:attngen("emit small.lua -o out")
    lu.assertEquals(result.code, 0, result.err)
    lu.assertEquals(result.out, "out/small.c\nout/small_pack.c\nout/small.h\nout/small.json\n")
    lu.assertEquals(self.scratch:list("out"),
        { "small.c", "small.h", "small.json", "small_pack.c" })
    lu.assertStrContains(result.err, "4 files written")
end

function TestCli:test_emit_twice_touches_nothing()
    self.scratch:attngen("emit small.lua -o out")
    lfs.touch(self.scratch:path("out/small.c"), 1000000000)
    local result <const> = self.scratch:attngen("emit small.lua -o out")
    lu.assertEquals(result.code, 0)
    lu.assertStrContains(result.err, "0 files written, 4 already up to date")
    lu.assertEquals(lfs.attributes(self.scratch:path("out/small.c"), "modification"), 1000000000)
end

function TestCli:test_quiet_says_nothing_on_stderr()
    local result <const> = self.scratch:attngen("-q emit small.lua -o out")
    lu.assertEquals(result.code, 0)
    lu.assertEquals(result.err, "")
    lu.assertStrContains(result.out, "out/small.c\n")
end

function TestCli:test_set_multiplies_out()
    local result <const> = self.scratch:attngen("emit small.lua -o out "
        .. "--set isa=scalar,avx2 --set batch=1,2")
    lu.assertEquals(result.code, 0, result.err)
    local names <const> = {}
    for name in result.out:gmatch("out/(small_[%w_]*)%.h\n") do
        names[#names + 1] = name
    end
    lu.assertEquals(#names, 4, result.out)
    lu.assertEquals(#self.scratch:list("out"), 16)
    lu.assertStrContains(result.err, "[4/4] emit")
end

function TestCli:test_set_takes_a_json_literal_as_one_value()
    local result <const> = self.scratch:attngen("emit small.lua -o out "
        .. [[--set 'mask=["causal","lengths"]' --set 'isa="scalar"']])
    lu.assertEquals(result.code, 0, result.err)
    lu.assertEquals(#self.scratch:list("out"), 4)
    local manifest <const> = dkjson.decode(self.scratch:read("out/small.json"))
    lu.assertEquals(manifest.variants[1].isa, "scalar")
end

function TestCli:test_several_configs_at_once()
    self.scratch:write("other.json", '{"seq_len": 2, "d_model": 4, "heads": 1, "isa": "scalar"}')
    local result <const> = self.scratch:attngen("emit small.lua other.json -o out")
    lu.assertEquals(result.code, 0, result.err)
    lu.assertEquals(#self.scratch:list("out"), 8)
end

function TestCli:test_every_error_of_every_config_and_no_file()
    self.scratch:write("bad.lua", "return { seq_len = 0, d_model = 16, haeds = 2, mask = 'causl' }")
    self.scratch:write("worse.json", '{"seq_len": "four"}')
    self.scratch:write("out/keep", "x")
    local result <const> = self.scratch:attngen("emit small.lua bad.lua worse.json -o out")
    assert_refused(result, 2, "bad.lua: seq_len = 0", "haeds", '"heads"', '"causal"',
        'worse.json: seq_len = "four"')
    lu.assertEquals(self.scratch:list("out"), { "keep" })
end

function TestCli:test_unreadable_configs()
    self.scratch:write("empty.lua", "")
    self.scratch:write("broken.lua", "return {")
    assert_refused(self.scratch:attngen("emit nowhere.lua"), 2, "nowhere.lua")
    assert_refused(self.scratch:attngen("emit empty.lua"), 2, "empty.lua")
    assert_refused(self.scratch:attngen("plan ."), 2, ".")
    local broken <const> = self.scratch:attngen("emit broken.lua")
    lu.assertEquals(broken.code, 2)
    lu.assertStrContains(broken.err, "broken.lua")
end

function TestCli:test_over_budget_is_2_and_names_the_config()
    local result <const> = self.scratch:attngen("emit small.lua -o out "
        .. "--set seq_len=64 --set d_model=64 --set unroll=full --set code_budget=4096")
    assert_refused(result, 2, "small.lua: ", "unroll", "full", "4096")
    lu.assertEquals(self.scratch:list(), { "small.lua" })
end

-- The third of four outputs is a link: nothing is written, the first two keep their content.
function TestCli:test_symbolic_link_as_output()
    self.scratch:write("mine", "precious")
    self.scratch:write("out/small.c", "old")
    lfs.link("../mine", self.scratch:path("out/small.h"), true)
    assert_refused(self.scratch:attngen("emit small.lua -o out"), 2,
        "attngen: out/small.h: is a symbolic link")
    lu.assertEquals(self.scratch:list("out"), { "small.c", "small.h" })
    lu.assertEquals(self.scratch:read("out/small.c"), "old")
    lu.assertEquals(self.scratch:read("mine"), "precious")
end

function TestCli:test_read_only_output()
    self.scratch:write("out/small.h", "old")
    self.scratch:shell("chmod 444 out/small.h")
    assert_refused(self.scratch:attngen("emit small.lua -o out"), 2, "out/small.h: is read-only")
    self.scratch:shell("rm -f out/small.h; chmod 555 out")
    assert_refused(self.scratch:attngen("emit small.lua -o out"), 2,
        "out: the directory is read-only")
    lu.assertEquals(self.scratch:list("out"), {})
end

function TestCli:test_output_directory_that_is_a_file()
    self.scratch:write("out", "a file")
    assert_refused(self.scratch:attngen("emit small.lua -o out"), 2, "out")
    lu.assertEquals(self.scratch:read("out"), "a file")
end

function TestCli:test_config_is_never_overwritten()
    local text <const> = '{"seq_len": 4, "d_model": 16, "heads": 2, "isa": "scalar"}'
    self.scratch:write("same.json", text)
    assert_refused(self.scratch:attngen("emit same.json"), 2, "would overwrite the config")
    lu.assertEquals(self.scratch:read("same.json"), text)
    lu.assertEquals(self.scratch:list(), { "same.json", "small.lua" })
end

function TestCli:test_two_configs_of_one_name()
    self.scratch:write("other/small.lua", SMALL)
    assert_refused(self.scratch:attngen("emit small.lua other/small.lua -o out"), 2,
        "out/small.c", "same name")
    lu.assertEquals(self.scratch:list(), { "other", "small.lua" })
end

function TestCli:test_full_stdout_is_an_error()
    local result <const> = self.scratch:shell(("'%s/attngen' plan small.lua >/dev/full"):format(
        support.root))
    lu.assertEquals(result.code, 1)
    lu.assertStrContains(result.err, "attngen: cannot write to stdout: No space left on device")
    assert_no_traceback(result)
end

-- Also where another program is started behind the text: that flushes it, and tells nobody.
function TestCli:test_full_stdout_is_an_error_of_everything_that_prints()
    self.scratch:write("other.lua", SMALL)
    for _, arguments in ipairs({ "isas", "isas --markdown", "--help", "emit --help", "--version",
        "emit small.lua", "plan small.lua --json",
        "tune small.lua other.lua --dry-run" }) do
        local result <const> = self.scratch:shell(("'%s/attngen' %s >/dev/full"):format(
            support.root, arguments))
        lu.assertEquals(result.code, 1, arguments)
        lu.assertStrContains(result.err, "attngen: cannot write to stdout: No space left on device")
        assert_no_traceback(result)
    end
end

-- A directory named in vain would silently give the planner's choice.
function TestCli:test_tuning_files_are_where_the_user_says()
    for _, arguments in ipairs({ "plan small.lua", "emit small.lua -o out",
        "run small.lua --inputs x --output y --weights x" }) do
        assert_refused(self.scratch:attngen(arguments .. " --tuned none"), 2,
            "--tuned none: does not exist")
        assert_refused(self.scratch:attngen(arguments .. " --tuned small.lua"), 2,
            "--tuned small.lua: is no directory")
        assert_refused(self.scratch:attngen(arguments .. " --tuned ''"), 2, "--tuned")
    end
    lu.assertEquals(self.scratch:list(), { "small.lua" })
    lfs.mkdir(self.scratch:path("empty"))
    lu.assertEquals(self.scratch:attngen("plan small.lua --tuned empty").code, 0)
end

-- A generator that fails in a way nobody foresaw: one line, the traceback only when asked for.
function TestCli:test_internal_error()
    self.scratch:write("break.lua", [[
        package.preload["gen.generate"] = function()
            return { bundle = function() local none; return none.field end }
        end]])
    local preload <const> = "LUA_INIT=@break.lua"
    local result <const> = self.scratch:attngen("emit small.lua -o out", preload)
    lu.assertEquals(result.code, 1)
    lu.assertStrMatches(result.err, "attngen: internal error: [^\n]*attempt to index[^\n]*\n")
    result.err = self.scratch:attngen("-v emit small.lua -o out", preload).err
    lu.assertStrContains(result.err, "stack traceback")
    lu.assertEquals(self.scratch:list(), { "break.lua", "small.lua" })
end

function TestCli:test_interrupt_is_130_and_leaves_nothing()
    self.scratch:write("slow.lua", [[
        package.preload["gen.generate"] = function()
            return { bundle = function()
                io.open("ready", "w"):close()
                while true do end
            end }
        end]])
    local result <const> = self.scratch:shell(("LUA_INIT=@slow.lua '%s/attngen' emit small.lua "
        .. "-o out & while [ ! -e ready ]; do sleep 0.02; done; kill -INT $!; wait $!"):format(
        support.root))
    lu.assertEquals(result.code, 130)
    lu.assertStrContains(result.err, "attngen: interrupted")
    assert_no_traceback(result)
    lu.assertEquals(self.scratch:list(), { "ready", "slow.lua", "small.lua" })
end

----------------------------------------------------------------------------------------------------
-- plan, isas
----------------------------------------------------------------------------------------------------

function TestCli:test_plan_as_text_and_json()
    local text <const> = self.scratch:attngen("plan small.lua")
    lu.assertEquals(text.code, 0, text.err)
    lu.assertEquals(text.err, "")
    lu.assertStrContains(text.out, "small")
    local json <const> = self.scratch:attngen("plan small.lua --json")
    lu.assertEquals(json.code, 0, json.err)
    local report <const> = dkjson.decode(json.out)
    lu.assertEquals(report.name, "small")
    lu.assertEquals(self.scratch:attngen("plan small.lua --json").out, json.out)
    local several <const> = dkjson.decode(
        self.scratch:attngen("plan small.lua --json --set batch=1,2").out)
    lu.assertEquals(#several, 2)
    lu.assertEquals(self.scratch:list(), { "small.lua" })
end

function TestCli:test_isas_lists_every_one()
    local result <const> = self.scratch:attngen("isas")
    lu.assertEquals(result.code, 0, result.err)
    for _, name in ipairs(isa.names) do
        lu.assertStrContains("\n" .. result.out, "\n" .. name .. " ")
        local how <const> = toolchain.how_to_run(name)
        local line <const> = ("\n" .. result.out):match("\n(" .. name .. " [^\n]*)")
        lu.assertStrContains(line, how == nil and "no: " or how)
    end
    lu.assertStrContains(result.out, 'what isa = "native" means')
end

function TestCli:test_support_table_of_the_readme_is_current()
    local table_text <const> = self.scratch:attngen("isas --markdown").out
    local readme <const> = require("gen.fs").read("README.md")
    lu.assertStrContains(readme, table_text)
end

----------------------------------------------------------------------------------------------------
-- Machines
----------------------------------------------------------------------------------------------------

function TestCli:test_native_isa_of_described_machines()
    local function native(machine, cpuinfo)
        return host.native_isa(host.describe(machine, cpuinfo))
    end
    lu.assertEquals(native("x86_64\n", "model\t: x\nflags\t\t: avx2 fma\nflags : sse\n"), "avx2")
    lu.assertEquals(native("x86_64", "flags : sse avx2\n"), "scalar")
    lu.assertEquals(native("x86_64", "flags : avx2 fma avx512f\n"), "avx2")
    lu.assertEquals(native("amd64",
        "flags : avx2 fma avx512f avx512bw avx512dq avx512vl\n"), "avx512")
    lu.assertEquals(native("aarch64", "Features\t: fp asimd crc32\n"), "neon")
    lu.assertEquals(native("arm64", "Features : fp\n"), "scalar")
    lu.assertEquals(native("riscv64", ""), "scalar")
    lu.assertEquals(native("", ""), "scalar")
end

if arg and arg[0] and arg[0]:find("test_cli%.lua$") then
    os.exit(lu.LuaUnit.run())
end
