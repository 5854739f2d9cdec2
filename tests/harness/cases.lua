-- Builds the kernels of tests/cases/list.lua for the Criterion suites.
--   input:  the tools; whether every ISA is wanted or only the quick ones
--   output: build/tests/cases/NAME/ISA.so, the environment that tells the suites, problems
-- Judges nothing.
local build <const> = require("tests.harness.build")
local config <const> = require("gen.config")
local list <const> = require("tests.cases.list")
local process <const> = require("gen.process")

local M = {}

-- Which compiler builds which ISA here: both get their share.
local COMPILER <const> = { scalar = "gcc", avx2 = "gcc", avx512 = "clang" }

local function emit(builder, problems, name, raw, isa)
    raw.isa = isa
    local record <const>, errors = config.validate(raw, "tests/cases", name)
    if not record then
        problems[#problems + 1] = config.format_errors(errors)
        return nil
    end
    local bundle <const>, problem = builder:emit(record, name .. "-" .. isa)
    if not bundle then
        problems[#problems + 1] = ("%s %s: %s"):format(name, isa, problem.refused or problem.crash)
    end
    return bundle
end

-- Links kernel objects of several bundles and a main program, as C and as C++.
local function add_linked(builder, problems)
    local dirs <const>, objects <const> = {}, {}
    local inputs <const> = { "tests/cases/linked.c" }
    for _, entry in ipairs(list.linked) do
        local isa <const> = entry[2].isa
        if builder.tools.isas[isa].runs ~= "native" then
            return
        end
        local bundle <const> = emit(builder, problems, entry[1], entry[2], isa)
        if not bundle then
            return
        end
        local shared <const> = builder:add_kernel(bundle, isa, "gcc")
        dirs[#dirs + 1] = "-I" .. bundle.dir
        objects[#objects + 1] = shared:gsub("%.so$", ".o")
        objects[#objects + 1] = shared:gsub("%.so$", "_pack.o")
        inputs[#inputs + 1] = shared -- its edge leaves both objects behind
    end
    local includes <const> = table.concat(dirs, " ")
    for _, way in ipairs({ { "gcc -std=c11", "c" }, { "g++ -std=c++14 -x c++", "cpp" } }) do
        local output <const> = ("%s/linked_%s"):format(builder.dir, way[2])
        builder:add_command(output, inputs, ("%s -O2 -Wall -Wextra -Wpedantic -Wconversion -Wshadow"
            .. " -Werror %s tests/cases/linked.c -x none %s -o %s -lm"):format(way[1], includes,
            table.concat(objects, " "), output), output)
    end
end

-- Returns "NAME=value" words for env, and a list of problems.
function M.build(tools, all_isas)
    local builder <const> = build.new("cases", tools)
    local problems <const>, isas <const> = {}, {}
    for _, isa in ipairs({ "scalar", "avx2", "avx512" }) do
        local plan <const> = tools.isas[isa]
        -- clang compiles emulated kernels at -O0, whose frames are no kernel's
        local compiler = plan.runs == "simde" and "gcc" or COMPILER[isa]
        if not plan.compilers[compiler] then
            compiler = next(plan.compilers)
        end
        if not plan.runs or (isa == "avx512" and plan.runs ~= "native" and not all_isas) then
            print(("skipped: written-down cases on %s (%s)"):format(isa, plan.runs
                and "emulated: in the full run only" or plan.reason))
        elseif compiler then
            isas[#isas + 1] = isa
            for _, entry in ipairs(list.programs) do
                local bundle <const> = emit(builder, problems, entry[1], entry[2], isa)
                if bundle then
                    builder:add_kernel(bundle, isa, compiler)
                end
            end
        end
    end
    add_linked(builder, problems)
    for _, output in ipairs(builder:run(2)) do
        problems[#problems + 1] = output.path .. " was not built: " .. output.message
    end
    local _, root = process.capture({ "pwd" })
    return { "ATTNGEN_CASES=" .. root:match("[^\n]*") .. "/" .. builder.dir,
        "ATTNGEN_CASE_ISAS=" .. table.concat(isas, ",") }, problems
end

return M
