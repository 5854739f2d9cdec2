-- Checks on emitted text and compiled objects that need no input: BC-54, 77, 78, 79 and 49.
--   input:  the folder that tests/harness/cases.lua built
--   output: a list of problems; prints one line per check
-- Runs no kernel but the linked programs.
local config <const> = require("gen.config")
local fs <const> = require("gen.fs")
local generate <const> = require("gen.generate")
local list <const> = require("tests.cases.list")
local process <const> = require("gen.process")

local M = {}

-- BC-54: the linked programs judge themselves.
local function run_linked(dir, problems)
    for _, kind in ipairs({ "c", "cpp" }) do
        local path <const> = dir .. "/linked_" .. kind
        if not fs.is_file(path) then
            print("skipped: linked program " .. kind .. " (this machine does not run avx2)")
        else
            local status <const>, text = process.capture({ path }, { merge = true })
            if status ~= 0 then
                problems[#problems + 1] = ("BC-54, %s: %s"):format(path, text)
            end
        end
    end
end

-- The first VEX or EVEX instruction of an object, nil when there is none or no object.
local function wide_instruction(object)
    local _, text = process.capture({ "objdump", "-d", "--no-show-raw-insn", object },
        { quiet = true })
    return text:match("\t(v[a-z]+%d*[a-z]* [^\n]*%%[xyz]mm[^\n]*)")
end

-- BC-77: scalar kernels, and packing code of every ISA, hold no VEX or EVEX instruction.
local function check_instructions(dir, problems)
    local count = 0
    local function check(object)
        if fs.is_file(object) then
            local found <const> = wide_instruction(object)
            count = count + 1
            if found then
                problems[#problems + 1] = ("BC-77, %s: %s"):format(object, found)
            end
        end
    end
    for _, entry in ipairs(list.programs) do
        for _, stem in ipairs({ "scalar/scalar-gcc", "scalar/scalar-clang", "avx2/avx2-gcc",
            "avx2/avx2-clang", "avx512/avx512-gcc", "avx512/avx512-clang" }) do
            local path <const> = ("%s/%s-%s"):format(dir, entry[1], stem)
            check(path .. "_pack.o")
            if stem:find("scalar", 1, true) then
                check(path .. ".o")
            end
        end
    end
    print(("BC-77: %d objects disassembled"):format(count))
end

local function bundle_of(raw, name)
    return generate.bundle(assert(config.validate(raw, "objects", name)))
end

-- BC-78: nothing of this machine in any emitted text. BC-79: fast-math is refused at compile time.
local function check_texts(dir, problems)
    local compiled = 0
    for _, isa in ipairs({ "scalar", "avx2", "avx512", "neon" }) do
        local bundle <const> = bundle_of({ seq_len = 4, d_model = 8, heads = 2, isa = isa,
            mask = { "causal", "bool" } }, "plain")
        for _, file in ipairs(bundle.files) do
            if file.text:find("native", 1, true) then
                problems[#problems + 1] = ("BC-78: \"native\" in %s for %s"):format(file.path, isa)
            end
        end
        local folder <const> = ("%s/fast-math-%s"):format(dir, isa)
        local files <const> = {}
        for _, file in ipairs(bundle.files) do
            files[#files + 1] = { path = folder .. "/" .. file.path, text = file.text }
        end
        assert(fs.write_all(files))
        local compilers <const> = isa == "neon" and { "aarch64-linux-gnu-gcc" }
            or { "gcc", "clang" }
        local isa_flags <const> = bundle.manifest.variants[1].isa_flags
        for _, compiler in ipairs(compilers) do
            for _, flag in ipairs({ "-ffast-math", "-Ofast", "-ffinite-math-only" }) do
                local words <const> = { compiler, "-O3", flag, "-fsyntax-only",
                    folder .. "/plain.c" }
                table.move(isa_flags, 1, #isa_flags, #words + 1, words)
                local status <const>, text = process.capture(words, { merge = true })
                if status ~= 127 then
                    compiled = compiled + 1
                    if status == 0 or not text:find("#error", 1, true)
                        and not text:find("error: ", 1, true) then
                        problems[#problems + 1] = ("BC-79: %s %s accepts the %s kernel"):format(
                            compiler, flag, isa)
                    end
                end
            end
        end
    end
    print(("BC-78, BC-79: 4 ISAs, %d compilations with fast-math flags refused"):format(compiled))
end

-- BC-49: a kernel that keeps its scale as a constant prints exactly the float nearest 1/sqrt(D).
local function check_scale(problems)
    local wanted <const> = { [3] = "0x1.279a74p-1", [7] = "0x1.83091ep-2", [40] = "0x1.43d136p-3",
        [72] = "0x1.e2b7dep-4", [80] = "0x1.c9f25cp-4", [96] = "0x1.a20bd8p-4" }
    for _, d in ipairs({ 3, 7, 40, 72, 80, 96 }) do
        -- With an additive mask the scale is not joined with log2(e).
        local bundle <const> = bundle_of({ op = "sdpa", seq_len = 2, heads = 1, head_dim = d,
            isa = "scalar", mask = "additive" }, "scale")
        local value <const> = tonumber(wanted[d])
        local found = false
        for number in bundle.files[1].text:gmatch("%-?0x%x[%x.]*p[+-]?%d+") do
            local text <const> = string.pack("<f", tonumber(number))
            found = found or text == string.pack("<f", value)
        end
        if not found then
            problems[#problems + 1] = ("BC-49: no constant equal to %s for head_dim %d"):format(
                wanted[d], d)
        end
    end
end

function M.check(dir)
    local problems <const> = {}
    run_linked(dir, problems)
    check_instructions(dir, problems)
    check_texts(dir, problems)
    check_scale(problems)
    return problems
end

return M
