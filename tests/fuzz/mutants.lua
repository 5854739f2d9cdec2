-- The self-test of the harness: a naive kernel with planted faults, every one of which must be
-- caught (bug case BC-92 and the contract's promises).
--   input:  the check program
--   output: builds naive kernels, runs every mutant on every config; a survivor is a failure
local case_text <const> = require("tests.harness.case_text")
local config <const> = require("gen.config")
local process <const> = require("gen.process")

local M = {}

-- Between them these configs reach every line of the naive kernel.
M.configs = {
    { batch = 2, seq_len = 5, d_model = 12, heads = 4, kv_heads = 2, head_dim = 3,
        return_weights = "mean" },
    { batch = 3, seq_len = 4, d_model = 6, heads = 2, head_dim = 3, cross = true, kv_len = 6,
        kv_dim = 6, mask = { "causal", "lengths" }, causal_align = "bottom_right" },
    { batch = 2, seq_len = 4, d_model = 8, heads = 2, mask = { "padding", "additive" },
        return_weights = "per_head", mask_shape = { 2, 1, 4, 4 } },
    { op = "sdpa", batch = 2, seq_len = 3, kv_len = 7, heads = 4, kv_heads = 2, head_dim = 5,
        v_head_dim = 3, mask = { "bool", "causal" }, causal_align = "top_left",
        empty_row = "uniform" },
    { batch = 2, seq_len = 6, d_model = 8, heads = 1, mask = "lengths", padded_queries = "zero",
        output_projection = false, empty_row = "nan" },
    { op = "sdpa", batch = 2, seq_len = 4, heads = 2, head_dim = 4, mask = "additive",
        mask_shape = { 1, 2, 4, 4 } },
    { batch = 2, seq_len = 2, kv_len = 5, d_model = 6, heads = 2, queries = "last",
        mask = "causal" },
    { batch = 2, seq_len = 3, kv_len = 9, d_model = 8, heads = 4, kv_heads = 2, head_dim = 3,
        kv_cache = "append" },
    { batch = 2, seq_len = 2, kv_len = 7, d_model = 8, heads = 2, head_dim = 3, v_head_dim = 2,
        kv_cache = "static" },
}

local function build(index, raw, dir, compiler)
    raw.isa = "scalar"
    local record = assert(config.validate(raw, "mutants", "naive"))
    local object <const> = ("%s/naive_%d.so"):format(dir, index)
    local command <const> = { compiler, "-std=c11", "-O2", "-ffp-contract=off", "-fPIC", "-shared",
        "-Iruntime/include" }
    table.move(case_text.naive_flags(record), 1, 64, #command + 1, command)
    table.move({ "-o", object, "tests/fuzz/naive_kernel.c", "-lm" }, 1, 5, #command + 1, command)
    local status <const>, text <const> = process.capture(command, { merge = true })
    assert(status == 0, text)
    return ("naive_%d naive %s naive scalar 48 7 | %s"):format(index, object,
        case_text.line(record))
end

-- The names in the enum of naive_kernel.c, in order; index 1 is the correct kernel.
local function names()
    local file <const> = assert(io.open("tests/fuzz/naive_kernel.c"))
    local text <const> = file:read("a")
    file:close()
    local list <const> = {}
    for name in text:match("enum mutant {(.-)};"):gsub("/%*.-%*/", ""):gmatch("[A-Z_]+") do
        list[#list + 1] = name
    end
    list[#list] = nil -- MUTANTS, the count
    return list
end

-- Runs them all with `check` (path of check_main); returns kills and the list of survivors.
function M.run(check, dir, compiler)
    local lines <const> = {}
    for index, raw in ipairs(M.configs) do
        lines[index] = build(index, raw, dir, compiler or "cc")
    end
    local list <const> = dir .. "/mutants.txt"
    local file <const> = assert(io.open(list, "w"))
    file:write(table.concat(lines, "\n"), "\n")
    file:close()
    local survivors <const>, killers <const> = {}, {}
    local kills = 0
    for index, name in ipairs(names()) do
        local status <const>, text <const> = process.capture(
            { check, list, "--mutant", index - 1, "--timeout", 10 }, { merge = true })
        killers[#killers + 1] = ("%-20s %s"):format(name, text:match("FAIL[^\n]*") or "")
        if index == 1 then
            if status ~= 0 then
                return 0, { "the correct kernel does not pass: " .. text }, killers
            end
        elseif status == 1 then
            kills = kills + 1
        else
            survivors[#survivors + 1] = name
        end
    end
    return kills, survivors, killers
end

return M
