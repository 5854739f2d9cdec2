-- unroll = "full": the kernel's text holds no loop, and compilers make none. Compiles AVX2 kernels
-- into build/tests/unroll and reads their disassembly; ninja keeps objects that are up to date.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local config <const> = require("gen.config")
local fs <const> = require("gen.fs")
local generate <const> = require("gen.generate")
local host <const> = require("gen.host")
local process <const> = require("gen.process")
local toolchain <const> = require("gen.toolchain")

local DIR <const> = "build/tests/unroll"
local ISAS <const> = { "avx2", "avx512", "neon" }
local COMPILERS <const> = { "gcc", "clang" }
-- {d_model, heads}
local SIZES <const> = { { 16, 2 }, { 64, 1 }, { 64, 8 } }

local function make_bundle(size, isa_name, more)
    local raw <const> = { name = ("straight_%d_%d"):format(size[1], size[2]), op = "mha",
        batch = 2, seq_len = 4, d_model = size[1], heads = size[2], isa = isa_name,
        unroll = "full", code_budget = 1 << 30 }
    for key, value in pairs(more or {}) do raw[key] = value end
    local record <const>, errors = config.validate(raw, "test", "test")
    lu.assertNotNil(record, errors and config.format_errors(errors))
    return generate.bundle(record)
end

local plain_bundles <const> = {}

-- The bundle without anything more, made once.
local function get_bundle(size, isa_name)
    local key <const> = ("%d %d %s"):format(size[1], size[2], isa_name)
    plain_bundles[key] = plain_bundles[key] or make_bundle(size, isa_name)
    return plain_bundles[key]
end

local function kernel_text(bundle)
    for _, file in ipairs(bundle.files) do
        if file.path == bundle.manifest.variants[1].kernel then return file.text end
    end
    error("the bundle has no kernel")
end

-- Loop keywords outside comments and strings, with their line's text.
local function find_loops(text)
    local code <const> = text:gsub("/%*.-%*/", ""):gsub('"[^"\n]*"', '""')
    local found <const> = {}
    for line in code:gmatch("[^\n]+") do
        for word in line:gmatch("[%a_][%w_]*") do
            if word == "for" or word == "while" or word == "do" or word == "goto" then
                found[#found + 1] = line
            end
        end
    end
    return found
end

TestText = {}

function TestText:test_full_has_no_loop()
    for _, size in ipairs(SIZES) do
        for _, name in ipairs(ISAS) do
            local loops <const> = find_loops(kernel_text(get_bundle(size, name)))
            lu.assertEquals(table.concat(loops, "\n"), "", ("%d, %d heads, %s"):format(size[1],
                size[2], name))
        end
    end
end

function TestText:test_full_has_no_loop_under_masks_and_without_weights()
    local cases <const> = {
        { mask = "causal" }, { mask = "padding" }, { mask = "lengths" }, { mask = "bool" },
        { mask = { "causal", "additive" } }, { mask = "lengths", padded_queries = "zero" },
        { return_weights = "mean" }, { mask = "causal", return_weights = "per_head" },
        { output_projection = false }, { seq_len = 5, heads = 2, head_dim = 3, v_head_dim = 5 },
        { cross = true, kv_len = 6, kv_heads = 1 },
    }
    for i, case in ipairs(cases) do
        for _, name in ipairs(ISAS) do
            local loops <const> = find_loops(kernel_text(make_bundle({ 16, 2 }, name, case)))
            lu.assertEquals(table.concat(loops, "\n"), "", ("case %d, %s"):format(i, name))
        end
    end
end

-- What the search is worth: kernels of the other modes have loops.
function TestText:test_other_modes_have_loops()
    for _, mode in ipairs({ "auto", "tiles" }) do
        local bundle <const> = make_bundle({ 64, 8 }, "avx2",
            { unroll = mode, code_budget = 24576 })
        lu.assertTrue(#find_loops(kernel_text(bundle)) > 0, mode)
    end
    -- auto leaves none where everything fits the budget
    local fits <const> = make_bundle({ 16, 2 }, "avx2", { unroll = "auto", code_budget = 24576 })
    lu.assertEquals(#find_loops(kernel_text(fits)), 0)
    lu.assertEquals(#find_loops("/* for */ x = \"do\"; forward(); undo();"), 0)
    lu.assertEquals(#find_loops("  while (x)\n"), 1)
end

-- ---- Objects -------------------------------------------------------------------------------

-- Compiles a bundle's kernel with each compiler at -O2: {compiler = object}.
local function add_objects(edges, files, bundle)
    local variant <const> = bundle.manifest.variants[1]
    local objects <const> = {}
    for _, file in ipairs(bundle.files) do
        files[#files + 1] = { path = DIR .. "/" .. file.path, text = file.text }
    end
    local source <const> = DIR .. "/" .. variant.kernel
    for _, compiler in ipairs(COMPILERS) do
        if toolchain.find_program(compiler) then
            local object <const> = ("%s-%s.o"):format(source, compiler)
            edges[#edges + 1] = ("build %s: run %s\n  command = %s %s -O2 -c %s -o %s\n"):format(
                object, source, compiler, table.concat(variant.flags[compiler], " "), source,
                object)
            objects[compiler] = object
        end
    end
    return objects
end

-- The jumps of an object: lists of {at, target, text} by function, and the number of instructions.
-- A jump back to a shared exit is no loop: what counts is whether the way leads round.
local function read_jumps(object)
    local status <const>, text <const> = process.capture({ "objdump", "-d", "--no-show-raw-insn",
        object })
    lu.assertEquals(status, 0)
    local functions <const>, instructions = {}, 0
    local current
    for line in text:gmatch("[^\n]+") do
        local name <const> = line:match("^%x+ <(.-)>:$")
        if name then
            current = { name = name, code = {} }
            functions[#functions + 1] = current
        else
            local at <const>, mnemonic <const>, operand = line:match("^%s*(%x+):%s+(%S+)%s*(%S*)")
            if at then
                instructions = instructions + 1
                current.code[#current.code + 1] = { at = tonumber(at, 16), mnemonic = mnemonic,
                    target = mnemonic:find("^j") and tonumber(operand, 16) or nil, text = line }
            end
        end
    end
    return functions, instructions
end

-- The backward jump that closes a cycle of a function's control flow, or nil. Any cycle holds a
-- backward jump; from its target the jump must be in reach.
local function find_cycle(code)
    local position <const> = {}
    for i, one in ipairs(code) do position[one.at] = i end
    local function reaches(from, wanted)
        local seen <const>, pending <const> = {}, { from }
        while #pending > 0 do
            local i = table.remove(pending)
            while code[i] and not seen[i] do
                if i == wanted then return true end
                seen[i] = true
                local one <const> = code[i]
                if one.target and position[one.target] then
                    pending[#pending + 1] = position[one.target]
                end
                if one.mnemonic == "jmp" or one.mnemonic:find("^ret") then break end
                i = i + 1
            end
        end
        return false
    end
    for i, one in ipairs(code) do
        local to <const> = one.target and position[one.target]
        if to and to <= i and reaches(to, i) then return one.text end
    end
    return nil
end

local function find_cycles(object)
    local functions <const>, instructions <const> = read_jumps(object)
    local found <const> = {}
    for _, fn in ipairs(functions) do
        local jump <const> = find_cycle(fn.code)
        if jump then found[#found + 1] = fn.name .. ":" .. jump end
    end
    return found, #functions, instructions
end

local objects_of <const> = {}
local build_log

-- Objects of every size and of one kernel with loops, built on first use: {label = {compiler = …}}.
local function build_objects()
    if next(objects_of) then return end
    local edges <const>, files <const> = { "builddir = " .. DIR .. "\n",
        "rule run\n  command = $command\n" }, {}
    for _, size in ipairs(SIZES) do
        local bundle <const> = get_bundle(size, "avx2")
        objects_of[bundle.manifest.name] = add_objects(edges, files, bundle)
    end
    objects_of.looped = add_objects(edges, files, make_bundle({ 64, 8 }, "avx2",
        { name = "looped", unroll = "tiles" }))
    files[#files + 1] = { path = DIR .. "/build.ninja", text = table.concat(edges, "\n") }
    assert(fs.write_all(files))
    local status <const>, log <const> = process.capture(
        { "ninja", "-f", DIR .. "/build.ninja", "-j", 2, "--quiet" }, { merge = true })
    build_log = status ~= 0 and log or nil
end

TestObjects = {}

function TestObjects:setUp()
    lu.skipIf(host.current().arch ~= "x86_64", "objects are for x86_64")
    lu.skipIf(not toolchain.find_program("objdump"), "no objdump")
    build_objects()
    lu.assertNil(build_log)
end

function TestObjects:test_full_has_no_loop()
    local examined = 0
    for label, objects in pairs(objects_of) do
        for compiler, object in pairs(label ~= "looped" and objects or {}) do
            local cycles <const>, functions <const>, instructions <const> =
                find_cycles(object)
            lu.assertEquals(table.concat(cycles, "\n"), "", label .. " " .. compiler)
            lu.assertTrue(functions >= 4 and instructions > 1000, label .. " " .. compiler)
            examined = examined + 1
        end
    end
    print(("\nunroll: %d objects without a loop"):format(examined))
    lu.assertTrue(examined >= #SIZES)
end

function TestObjects:test_loops_are_seen_where_there_are_some()
    for compiler, object in pairs(objects_of.looped) do
        lu.assertTrue(#find_cycles(object) > 0, compiler)
    end
end

os.exit(lu.LuaUnit.run())
