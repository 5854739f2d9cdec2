-- The shape of gen/: requires point one way, each kind of knowledge stays in its module.
-- Reads the sources as text.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local fs <const> = require("gen.fs")

-- Bottom to top. A module requires only modules of earlier lines, never of its own line or a later
-- one. The pipeline config → problem → fold → plan → stages → emit → template reads downwards.
-- "isa/*" stands for every file there that has no line of its own.
local ORDER <const> = {
    { "version", "process", "progress", "keys", "sandbox", "ir", "isa/exp2",
        "isa/groups" },
    { "isa/*", "fs", "diagnostics", "strict_json" },
    { "isa/init", "safetensors", "config/names", "config/sizes", "config/check",
        "config/overrides" },
    { "host", "config/target_rules" },
    { "config/rules" },
    { "config" },
    { "problem" },
    { "fold" },
    { "plan/numbers" },
    { "plan/tiles", "plan/size", "plan/items" },
    { "plan/projection", "plan/context", "plan/dims", "plan/forms" },
    { "plan/attention", "plan/qkv" },
    { "plan/heads" },
    { "plan/orientation" },
    { "plan" },
    { "tile" },
    { "stage/mask", "stage/linear", "stage/transpose", "stage/fetch" },
    { "stage/exact_rows" },
    { "stage/softmax" },
    { "stage/project", "stage/scores", "stage/context", "stage/output", "stage/cache" },
    { "stage/dims_scores", "stage/heads_rows", "stage/weights", "stage/query_context" },
    { "stage/dims_softmax", "stage/dims_context" },
    { "stage/attention", "stage/dims", "stage/heads" },
    { "stages", "split" },
    { "emit" },
    { "template" },
    { "manifest", "report" },
    { "packing" },
    { "bundle" },
    { "generate" },
    { "toolchain" },
    { "options", "run", "tuned", "bench/build", "bench/measure", "bench/statistics", "bench/blas",
        "bench/flops", "bench/svg", "tune/space", "tune/log", "tune/t4", "tune/page" },
    { "bench/table", "tune/search", "tune/lab" },
    { "bench/html", "bench/readme", "bench/session", "tune/session" },
    { "bench/verb", "tune/sweep" },
    { "tune/verb" },
    { "cli" },
}

-- Names of the modules under gen/, "stage/softmax" for gen/stage/softmax.lua.
local function list_modules()
    local modules <const> = {}
    for _, name in ipairs(assert(fs.list("gen"))) do
        if name:find("%.lua$") then
            modules[#modules + 1] = name:gsub("%.lua$", "")
        else
            for _, inner in ipairs(assert(fs.list("gen/" .. name))) do
                modules[#modules + 1] = name .. "/" .. inner:gsub("%.lua$", "")
            end
        end
    end
    return modules
end

-- The source without comments, so that prose may name anything.
local function read_code(module)
    local text <const> = assert(fs.read("gen/" .. module .. ".lua"))
    return (text:gsub("%-%-%[%[.-%]%]", ""):gsub("%f[%-]%-%-[^\n]*", ""))
end

local function build_ranks()
    local ranks <const> = {}
    for rank, line in ipairs(ORDER) do
        for _, module in ipairs(line) do
            assert(not ranks[module], module .. " is in the order twice")
            ranks[module] = rank
        end
    end
    return ranks
end

local function rank_of(ranks, module)
    return ranks[module] or ranks[module:gsub("/.*$", "/*")]
end

local function resolve(module)
    local path <const> = module:gsub("%.", "/")
    return fs.is_file("gen/" .. path .. ".lua") and path or path .. "/init"
end

TestRequires = {}

function TestRequires:test_every_module_has_a_place()
    local ranks <const> = build_ranks()
    local seen <const> = {}
    for _, module in ipairs(list_modules()) do
        lu.assertNotNil(rank_of(ranks, module),
            ("gen/%s.lua has no place in the order at the top of this test"):format(module))
        seen[module] = true
    end
    for _, line in ipairs(ORDER) do
        for _, module in ipairs(line) do
            lu.assertTrue(seen[module] or module:find("/%*$") ~= nil,
                ("the order names gen/%s.lua, which does not exist"):format(module))
        end
    end
end

function TestRequires:test_requires_point_one_way()
    local ranks <const> = build_ranks()
    local edges = 0
    for _, module in ipairs(list_modules()) do
        for required in read_code(module):gmatch('require%(?%s*"gen%.([%w_.]+)"') do
            local target <const> = resolve(required)
            edges = edges + 1
            lu.assertTrue(rank_of(ranks, target) < rank_of(ranks, module),
                ("gen/%s.lua requires gen/%s.lua, which stands above or beside it")
                    :format(module, target))
        end
    end
    lu.assertTrue(edges > 30, "the search for requires finds too few of them: " .. edges)
end

-- Fails for every match of a pattern in the code of the modules that `applies` picks.
local function assert_absent(patterns, applies, why)
    local looked_at = 0
    for _, module in ipairs(list_modules()) do
        if applies(module) then
            looked_at = looked_at + 1
            for line in read_code(module):gmatch("[^\n]+") do
                for _, pattern in ipairs(patterns) do
                    lu.assertNil(line:find(pattern),
                        ("gen/%s.lua: %s: %s"):format(module, why, line))
                end
            end
        end
    end
    lu.assertTrue(looked_at > 0, "no module to look at")
end

local INTRINSICS <const> = { "_mm%d*_", "__m%d", "%f[%w]v%w+q_[fsu]32", "float32x4" }

function TestRequires:test_intrinsics_only_in_isa_files()
    assert_absent(INTRINSICS, function(module)
        return not module:find("^isa/")
    end, "an intrinsic outside gen/isa")
end

function TestRequires:test_stages_know_no_isa()
    assert_absent({ "avx", "neon", "sse%d", '"scalar"', "'scalar'", "gen%.isa" }, function(module)
        return module:find("^stage/") ~= nil or module == "tile"
    end, "a stage names an ISA")
end

function TestRequires:test_isa_files_are_data()
    assert_absent({ 'require%(?%s*"gen%.[^i]', "heads", "seq_len" }, function(module)
        return module:find("^isa/") ~= nil
    end, "an ISA file knows more than its ISA")
end

function TestRequires:test_only_fs_touches_the_disk()
    assert_absent({ "io%.open", "io%.lines", "io%.tmpfile", "os%.rename", "os%.remove",
        "os%.tmpname", '"lfs"', "loadfile", "dofile" }, function(module)
        return module ~= "fs"
    end, "the disk is touched outside gen/fs.lua")
end

function TestRequires:test_only_process_starts_programs()
    assert_absent({ "io%.popen", "os%.execute" }, function(module)
        return module ~= "process"
    end, "a program is started outside gen/process.lua")
end

-- Modules that meet the outside world, and so are no function of config and version.
local OUTSIDE <const> = {
    ["bench/build"] = true, ["bench/measure"] = true, ["bench/session"] = true,
    ["bench/verb"] = true, cli = true, fs = true, host = true, process = true, progress = true,
    run = true, safetensors = true, toolchain = true, ["tune/session"] = true,
}

-- A walk in Lua's own order is fine where the order cannot show: filling a table by the same key,
-- looking for a counterexample, or collecting what is sorted before use. All have a fixed form, so
-- that this test can tell.
local function is_harmless_walk(code, position)
    local loop <const> = code:sub(position):match("^[^\n]*\n?[^\n]*")
    local key <const> = loop:match("^%a+ (%w+)")
    if loop:find("%s[%w_.]+%[" .. key .. "%] = ") then
        return true
    end
    if loop:find("do%s+if .+ then return false end$") then
        return true
    end
    local list <const> = loop:match("do%s+([%w_]+)%[#[%w_]+ %+ 1%] = " .. key .. "%f[%W]")
    return list ~= nil and code:find("table.sort(" .. list, position, true) ~= nil
end

function TestRequires:test_no_table_order_in_the_output()
    local walks = 0
    for _, module in ipairs(list_modules()) do
        -- isa/init only looks for operations that are missing.
        local code <const> = (OUTSIDE[module] or module == "isa/init") and "" or read_code(module)
        for position, kind in code:gmatch("()for [%w_, ]+ in (%a+)") do
            if kind == "pairs" or kind == "next" then
                walks = walks + 1
                lu.assertTrue(is_harmless_walk(code, position),
                    ("gen/%s.lua: walks a table in no fixed order: %s"):format(module,
                        code:sub(position):match("^[^\n]*")))
            end
        end
    end
    lu.assertTrue(walks > 0, "the search for walks finds none")
end

function TestRequires:test_no_clock_chance_or_place_in_the_output()
    assert_absent({ "os%.time", "os%.date", "os%.clock", "os%.getenv", "math%.random%(",
        "os%.setlocale", "tostring%({" }, function(module)
        return not OUTSIDE[module]
    end, "the output would depend on more than config and version")
end

function TestRequires:test_files_say_what_they_are()
    for _, module in ipairs(list_modules()) do
        local text <const> = assert(fs.read("gen/" .. module .. ".lua"))
        lu.assertEquals(text:sub(1, 3), "-- ", module .. ": no opening comment")
    end
end

if arg and arg[0] and arg[0]:find("test_requires%.lua$") then
    os.exit(lu.LuaUnit.run())
end
