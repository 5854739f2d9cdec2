-- `attngen run` end to end: results known by hand, on every ISA this machine runs or emulates; what
-- is said when a compiler, an emulator, a tensor or a weight is missing.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")
local lfs <const> = require("lfs")

local fs <const> = require("gen.fs")
local host <const> = require("gen.host")
local isa <const> = require("gen.isa")
local support <const> = require("tests.unit.support")
local toolchain <const> = require("gen.toolchain")
local version <const> = require("gen.version")

-- q = k = [[1,0],[0,1],[1,1]], v = [[1,10],[2,20],[4,40]], scale 1/sqrt(2): the softmax of 3 x 3
-- small numbers, worked out by hand.
local SDPA <const> = "return { op = 'sdpa', seq_len = 3, heads = 1, head_dim = 2, isa = 'scalar' }"
local QK <const> = { 1, 0, 0, 1, 1, 1 }
local V <const> = { 1, 10, 2, 20, 4, 40 }
local UNMASKED <const> = { 2.40111209, 24.0111209, 2.60444837, 26.0444837, 2.75872461, 27.5872461 }
local CAUSAL <const> = { 1, 10, 1.66976155, 16.6976155, 2.75872461, 27.5872461 }

local function assert_close(actual, expected, label)
    lu.assertEquals(#actual, #expected, label)
    for index, want in ipairs(expected) do
        local got <const> = actual[index]
        lu.assertTrue(math.abs(got - want) <= 1e-6 + 1e-5 * math.abs(want),
            ("%s: element %d is %.9g, not %.9g"):format(label, index, got, want))
    end
end

local function assert_refused(result, code, ...)
    lu.assertEquals(result.code, code, result.err)
    lu.assertEquals(result.out, "")
    for _, text in ipairs({ ... }) do
        lu.assertStrContains(result.err, text)
    end
    lu.assertNil(result.err:find("traceback", 1, true), result.err)
end

TestRun = {}

function TestRun:setUp()
    self.scratch = support.new_scratch()
    -- Temporary directories of runs go here, to see that none is left.
    lfs.mkdir(self.scratch:path("tmp"))
    self.scratch:write("core.lua", SDPA)
    self.scratch:write_safetensors("qkv.st", {
        { "q", "F32", { 1, 1, 3, 2 }, QK },
        { "k", "F32", { 1, 1, 3, 2 }, QK },
        { "v", "F32", { 1, 1, 3, 2 }, V },
    })
end

function TestRun:tearDown()
    local left <const> = self.scratch:list("tmp")
    self.scratch:remove()
    lu.assertEquals(left, {})
end

function TestRun:run(arguments, before)
    return self.scratch:attngen("run " .. arguments,
        ("TMPDIR='%s' %s"):format(self.scratch:path("tmp"), before or ""))
end

-- Runs and returns the tensors of the output.
function TestRun:results(arguments, before)
    local result <const> = self:run(arguments .. " --output out.st", before)
    lu.assertEquals(result.code, 0, result.err)
    lu.assertEquals(result.out, "")
    return self.scratch:read_safetensors("out.st")
end

-- Every ISA that can run here, by name; the others are said to be skipped, and why.
local function runnable_isas()
    local names <const> = {}
    for _, name in ipairs(isa.names) do
        local how, reason = toolchain.how_to_run(name)
        local compiler, message = toolchain.find_compiler(toolchain.arch_of(name))
        if how and compiler then
            names[#names + 1] = name
        else
            print(("skipped: run with isa %s: %s"):format(name, reason or message))
        end
    end
    return names
end

function TestRun:test_known_answers_on_every_isa()
    local names <const> = runnable_isas()
    lu.assertTrue(#names >= 1)
    for _, name in ipairs(names) do
        local y = self:results("core.lua --inputs qkv.st --set isa=" .. name).y
        lu.assertEquals(y.shape, { 1, 1, 3, 2 })
        assert_close(y.values, UNMASKED, name)
        y = self:results("core.lua --inputs qkv.st --set mask=causal --set isa=" .. name).y
        assert_close(y.values, CAUSAL, name .. " causal")
    end
end

-- With Wq = 0 every allowed key weighs the same; with Wv = Wo = I and x[j] = 2^j the output says
-- which keys were used.
function TestRun:test_a_layer_with_weights()
    local identity <const>, zero <const> = { 1, 0, 0, 1 }, { 0, 0, 0, 0 }
    self.scratch:write("layer.lua", [[return { batch = 2, seq_len = 3, d_model = 2, heads = 1,
        mask = "lengths", bias = { q = false, k = false, v = false, o = true }, isa = "scalar",
        return_weights = "per_head" }]])
    self.scratch:write_safetensors("w.st", {
        { "q.weight", "F32", { 2, 2 }, zero }, { "k.weight", "F32", { 2, 2 }, identity },
        { "v.weight", "F32", { 2, 2 }, identity }, { "o.weight", "F32", { 2, 2 }, identity },
        { "o.bias", "F32", { 2 }, { 100, 200 } },
    })
    self.scratch:write_safetensors("in.st", {
        { "x", "F32", { 2, 3, 2 }, { 1, 10, 2, 20, 4, 40, 1, 10, 2, 20, 4, 40 } },
        { "kv_lengths", "I64", { 2 }, { 2, 3 } },
    })
    for _, name in ipairs(runnable_isas()) do
        local out <const> = self:results(
            "layer.lua --weights w.st --inputs in.st --threads 2 --set isa=" .. name)
        local a <const>, b <const> = 7 / 3, 70 / 3
        assert_close(out.y.values, { 101.5, 215, 101.5, 215, 101.5, 215, 100 + a, 200 + b, 100 + a,
            200 + b, 100 + a, 200 + b }, name)
        lu.assertEquals(out.weights.shape, { 2, 1, 3, 3 })
        local third <const> = 1 / 3
        assert_close(out.weights.values, { .5, .5, 0, .5, .5, 0, .5, .5, 0, third, third, third,
            third, third, third, third, third, third }, name .. " weights")
    end
end

-- With Wq = 0 the output is the mean of the values so far: three old tokens or two, and the new.
function TestRun:test_a_cache()
    local identity <const>, zero <const> = { 1, 0, 0, 1 }, { 0, 0, 0, 0 }
    local nan <const> = 0 / 0
    self.scratch:write("append.lua", [[return { batch = 2, seq_len = 1, kv_len = 5, d_model = 2,
        heads = 1, bias = false, kv_cache = "append" }]])
    self.scratch:write("given.lua", [[return { batch = 2, seq_len = 1, kv_len = 5, d_model = 2,
        heads = 1, bias = false, kv_cache = "static", mask = "lengths" }]])
    self.scratch:write_safetensors("w.st", {
        { "q.weight", "F32", { 2, 2 }, zero }, { "k.weight", "F32", { 2, 2 }, identity },
        { "v.weight", "F32", { 2, 2 }, identity }, { "o.weight", "F32", { 2, 2 }, identity },
    })
    local old <const> = { 1, 10, 2, 20, 4, 40, nan, nan, 5, 5, 1, 10, 2, 20, nan, nan, 6, 6, 7, 7 }
    local function write_inputs(name, past, lengths)
        self.scratch:write_safetensors(name, {
            { "x", "F32", { 2, 1, 2 }, { 8, 80, 9, 90 } },
            { "past_k", "F32", { 2, 1, 5, 2 }, past }, { "past_v", "F32", { 2, 1, 5, 2 }, past },
            { "kv_lengths", "I64", { 2 }, lengths },
        })
    end
    write_inputs("in.st", old, { 4, 3 })
    for _, name in ipairs(runnable_isas()) do
        local out <const> = self:results(
            "append.lua --weights w.st --inputs in.st --set isa=" .. name)
        local y <const> = { 15 / 4, 150 / 4, 4, 40 }
        assert_close(out.y.values, y, name)
        lu.assertEquals(out.present_k.shape, { 2, 1, 5, 2 })
        local present <const> = { 1, 10, 2, 20, 4, 40, 8, 80, 5, 5, 1, 10, 2, 20, 9, 90, 6, 6, 7,
            7 }
        assert_close(out.present_k.values, present, name .. " present_k")
        assert_close(out.present_v.values, present, name .. " present_v")
        -- what it left behind, given to a kernel that only reads
        write_inputs("given.st", out.present_v.values, { 4, 3 })
        local given <const> = self:results(
            "given.lua --weights w.st --inputs given.st --set isa=" .. name)
        assert_close(given.y.values, y, name .. " static")
        lu.assertNil(given.present_k)
    end
    write_inputs("short.st", old, { 4, 0 })
    local result <const> = self:run(
        "append.lua --weights w.st --inputs short.st --output out.st --set isa=scalar")
    lu.assertEquals(result.code, 1)
    lu.assertStrContains(result.err, '"kv_lengths": element 1 is 0, allowed is 1 to 5')
end

-- The shape of a mask comes from its tensor: one row for all queries, or one each.
function TestRun:test_mask_shape_from_the_tensor()
    local masks <const> = {
        { shape = { 3 }, values = { 1, 1, 0 } },
        { shape = { 1, 3 }, values = { 1, 1, 0 } },
        { shape = { 3, 3 }, values = { 1, 1, 0, 1, 1, 0, 1, 1, 0 } },
        { shape = { 1, 1, 3, 3 }, values = { 1, 1, 0, 1, 1, 0, 1, 1, 0 } },
    }
    for _, mask in ipairs(masks) do
        self.scratch:write_safetensors("masked.st", {
            { "q", "F32", { 1, 1, 3, 2 }, { 0, 0, 0, 0, 0, 0 } },
            { "k", "F32", { 1, 1, 3, 2 }, QK },
            { "v", "F32", { 1, 1, 3, 2 }, V },
            { "mask_keep", "U8", mask.shape, mask.values },
        })
        local y <const> = self:results("core.lua --inputs masked.st --set mask=bool").y
        assert_close(y.values, { 1.5, 15, 1.5, 15, 1.5, 15 }, "mask of rank " .. #mask.shape)
    end
    assert_refused(self:run("core.lua --inputs qkv.st --output out.st --set mask=bool"), 1,
        "no tensor mask_keep")
    self.scratch:write_safetensors("wrong.st", { { "mask_keep", "U8", { 2 }, { 1, 1 } } })
    assert_refused(self:run("core.lua --inputs wrong.st --output out2.st --set mask=bool"), 1,
        "mask_keep is [2]", "[1,1,3,3]")
end

function TestRun:test_other_compilers()
    local tried = 0
    for _, name in ipairs({ "gcc", "clang" }) do
        if toolchain.find_program(name) then
            tried = tried + 1
            assert_close(self:results("core.lua --inputs qkv.st", "CC=" .. name).y.values, UNMASKED,
                name)
        else
            print(("skipped: run with CC=%s: not installed"):format(name))
        end
    end
    lu.assertTrue(tried > 0)
end

function TestRun:test_verbose_shows_the_programs()
    local result <const> = self:run("core.lua --inputs qkv.st --output out.st --verbose", "CC=gcc")
    lu.assertEquals(result.code, 0, result.err)
    lu.assertStrMatches(result.err, ".*\n%+ 'gcc' [^\n]*'%-ffreestanding'[^\n]*core%.c'.*")
end

function TestRun:test_the_list_of_isas_picks_one_that_runs()
    local y <const> = self:results([[core.lua --inputs qkv.st --set 'isa=["avx512","scalar"]']]).y
    assert_close(y.values, UNMASKED, "list")
end

-- Empty is /tmp; others may be the directory that the run is in.
function TestRun:test_places_of_the_temporary_directory()
    for _, place in ipairs({ "", ".", "./.", "tmp", self.scratch:path("tmp") .. "/" }) do
        local result <const> = self.scratch:attngen("run core.lua --inputs qkv.st --output out.st",
            ("TMPDIR='%s'"):format(place))
        lu.assertEquals(result.code, 0, place .. ": " .. result.err)
        lu.assertEquals(self.scratch:list(), { "core.lua", "out.st", "qkv.st", "tmp" })
        os.remove(self.scratch:path("out.st"))
    end
end

-- Ends a run by signals once one of its programs, which hangs, has made the file "ready".
function TestRun:assert_signals_leave_nothing(arguments, before, signals)
    self.scratch:shell(("rm -f ready; TMPDIR=tmp %s '%s/attngen' run core.lua --inputs qkv.st "
        .. "--output out.st %s & for i in $(seq 500); do [ -e ready ] && break; sleep 0.02; done; "
        .. "ls tmp >made; kill %s; wait $!; for i in $(seq 20); do ls tmp | grep -q . || break; "
        .. "sleep 0.1; done"):format(before, support.root, arguments, signals))
    lu.assertNotNil(self.scratch:read("ready"))
    lu.assertStrMatches(self.scratch:read("made"), "attngen.*")
    lu.assertEquals(self.scratch:list("tmp"), {}, signals)
    lu.assertNil(self.scratch:read("out.st"))
end

local HANG <const> = ": >ready\nexec sleep 20 >/dev/null 2>&1\n"

function TestRun:test_signals_while_compiling_leave_nothing()
    self.scratch:write("cc", '#!/bin/sh\ncase "$*" in *-dM*) exec gcc "$@" ;; esac\n' .. HANG)
    self.scratch:shell("chmod +x cc")
    for _, signals in ipairs({ "-TERM $!", "-HUP $!", "-INT $!; kill -INT $!; kill -TERM $!" }) do
        self:assert_signals_leave_nothing("", "CC=./cc", signals)
    end
end

function TestRun:test_signals_under_an_emulator_leave_nothing()
    if host.current().arch ~= "x86_64" or not toolchain.find_compiler("aarch64") then
        lu.skip("no cross compiler for aarch64")
    end
    self.scratch:write("bin/qemu-aarch64", "#!/bin/sh\n" .. HANG)
    self.scratch:shell("chmod +x bin/qemu-aarch64")
    self:assert_signals_leave_nothing("--set isa=neon", "PATH=$PWD/bin:$PATH", "-TERM $!")
end

-- After make install: found through its link, its programs built in the user's cache.
function TestRun:test_installed_copy()
    lu.assertEquals(self.scratch:shell(("sh '%s/tools/install.sh' '%s' /usr"):format(support.root,
        self.scratch:path("root"))).code, 0)
    local result <const> = self.scratch:shell(("PATH=root/usr/bin:$PATH HOME='%s' "
        .. "XDG_CACHE_HOME= attngen run core.lua --inputs qkv.st --output out.st"):format(
        self.scratch:path("home")))
    lu.assertEquals(result.code, 0, result.err)
    assert_close(self.scratch:read_safetensors("out.st").y.values, UNMASKED, "installed")
    lu.assertEquals(#self.scratch:list("home/.cache/attngen/" .. version.VERSION), 1)
    lu.assertTrue(fs.is_file(self.scratch:path("root/usr/include/attngen/kernel.h")))
end

function TestRun:test_bad_usage()
    self.scratch:write("layer.lua",
        "return { seq_len = 2, d_model = 4, heads = 1, isa = 'scalar' }")
    assert_refused(self:run("layer.lua --inputs qkv.st --output out.st"), 2, "run needs --weights")
    assert_refused(self:run("core.lua --weights qkv.st --inputs qkv.st --output out.st"), 2,
        "has no weights")
    for _, option in ipairs({ "--family bert", "--layer 0" }) do
        assert_refused(self:run("core.lua --inputs qkv.st --output out.st " .. option), 2,
            "has no weights: leave " .. option:match("%S+") .. " out")
    end
    for _, name in ipairs({ "nope", "list", "", "plain\nbert" }) do
        local refused <const> = self:run(("layer.lua --weights qkv.st --inputs qkv.st "
            .. "--output out.st --family '%s'"):format(name))
        assert_refused(refused, 2, ('attngen: --family: there is no family "%s" (allowed: plain, ')
            :format(name))
        lu.assertNotStrContains(refused.err, "emit")
    end
    assert_refused(self:run("core.lua --inputs qkv.st --output out.st --set batch=1,2"), 2,
        "run takes one variant, these options make 2")
    assert_refused(self:run("core.lua --inputs qkv.st --output qkv.st"), 2, "would overwrite")
    assert_refused(self:run("core.lua --inputs qkv.st --output ./core.lua"), 2, "would overwrite")
    lfs.link("elsewhere", self.scratch:path("link.st"), true)
    assert_refused(self:run("core.lua --inputs qkv.st --output link.st"), 2,
        "link.st: is a symbolic link")
    assert_refused(self:run("core.lua --inputs qkv.st --output ."), 2, "is a directory")
end

function TestRun:test_bad_data()
    assert_refused(self:run("core.lua --inputs missing.st --output out.st"), 1, "missing.st")
    self.scratch:write("junk.st", "this is no safetensors file at all")
    assert_refused(self:run("core.lua --inputs junk.st --output out.st"), 1, "junk.st")
    assert_refused(self:run("core.lua --inputs junk.st --output out.st --set mask=bool"), 1,
        "junk.st: the header's length does not fit the file")
    self.scratch:write("short.st", "1234")
    assert_refused(self:run("core.lua --inputs short.st --output out.st --set mask=additive"), 1,
        "short.st: too short")
    self.scratch:write_safetensors("partial.st", { { "q", "F32", { 1, 1, 3, 2 }, QK } })
    assert_refused(self:run("core.lua --inputs partial.st --output out.st"), 1, "partial.st", "k")
    lu.assertNotTableContains(self.scratch:list(), "out.st")
end

-- An ISA nothing here can run: on x86 without AVX-512 that is avx512, elsewhere avx2 without its
-- emulator. Nothing is compiled for it.
function TestRun:test_isa_that_cannot_run_here()
    for _, name in ipairs(isa.names) do
        if not toolchain.how_to_run(name) then
            assert_refused(self:run("core.lua --inputs qkv.st --output out.st --set isa=" .. name),
                1, "this machine cannot run the kernel: " .. name)
            return
        end
    end
    lu.skip("every ISA runs here")
end

-- A PATH with what attngen itself needs, and the programs named.
function TestRun:path_with(...)
    local bin <const> = self.scratch:path("bin")
    lfs.mkdir(bin)
    for _, name in ipairs({ "lua5.4", "env", "sh", "uname", "mktemp", "test", ... }) do
        local path <const> = assert(toolchain.find_program(name) or "/usr/bin/" .. name)
        lfs.link(path, bin .. "/" .. name, true)
    end
    return ("PATH='%s' CC= "):format(bin)
end

function TestRun:test_no_compiler()
    assert_refused(self:run("core.lua --inputs qkv.st --output out.st", self:path_with()), 1,
        "attngen: no C compiler (cc, gcc or clang); install it with: apt-get install gcc libc6-dev")
    assert_refused(self:run("core.lua --inputs qkv.st --output out.st", "CC=no-such-cc"), 1,
        "attngen: CC is no-such-cc, but there is no such program")
    assert_refused(self:run("core.lua --inputs qkv.st --output out.st", "CC=/bin/true"), 1,
        "the compiler /bin/true is neither gcc nor clang")
end

function TestRun:test_no_cross_tools()
    if host.current().arch ~= "x86_64" then
        lu.skip("this machine runs neon itself")
    end
    local arguments <const> = "core.lua --inputs qkv.st --output out.st --set isa=neon"
    assert_refused(self:run(arguments, self:path_with("gcc")), 1,
        "no emulator for aarch64 (qemu-aarch64); install it with: apt-get install qemu-user")
    if not toolchain.find_program("qemu-aarch64") then
        lu.skip("qemu-aarch64 is not installed")
    end
    assert_refused(self:run(arguments, self:path_with("gcc", "qemu-aarch64")), 1,
        "no compiler for aarch64 (aarch64-linux-gnu-gcc); install it with: apt-get install "
        .. "gcc-aarch64-linux-gnu libc6-dev-arm64-cross")
end

-- A header that is not there: hidden by a compiler wrapper that fails the way gcc does.
function TestRun:test_missing_header()
    self.scratch:write("cc", ([[#!/bin/sh
case "$*" in
*-dM*) exec gcc "$@" ;;
*-shared*) exec gcc "$@" ;;
esac
echo "kernel.c:3:10: fatal error: immintrin.h: No such file or directory" >&2
exit 1
]]))
    self.scratch:shell("chmod +x cc")
    assert_refused(self:run("core.lua --inputs qkv.st --output out.st", "CC=./cc"), 1,
        "./cc does not find <immintrin.h>; install it with: apt-get install gcc")
end

if arg and arg[0] and arg[0]:find("test_run%.lua$") then
    os.exit(lu.LuaUnit.run())
end
