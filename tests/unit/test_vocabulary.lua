-- Every op of every ISA does, bit for bit, what the vocabulary says it means; and planted wrong
-- texts are caught. Builds C programs (tests/vocab) under build/tests/vocab.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local faults <const> = require("tests.vocab.faults")
local isa <const> = require("gen.isa")
local program <const> = require("tests.vocab.program")
local suite <const> = require("tests.vocab.suite")
local toolset <const> = require("tests.harness.toolset")

local JOBS <const> = 2
local LEVELS <const> = { "-O0", "-O2" }
local COMPILERS <const> = { "gcc", "clang" }

local tools <const> = toolset.find()

local function add_programs(built, name)
    local plan <const> = tools.isas[name]
    if not plan.runs then
        built:skip(name, plan.reason)
        return
    end
    local source <const> = built:add_source(name, isa.get(name), isa.vocabulary)
    for _, compiler in ipairs(COMPILERS) do
        for _, level in ipairs(LEVELS) do
            local label <const> = ("%s-%s%s"):format(name, compiler, level)
            if not plan.compilers[compiler] then
                built:skip(label, "no such compiler")
            else
                built:add_run(label, source, name, compiler, level)
                if plan.runs == "simde" then
                    built:add_compile_only(label .. "-real", source, name, compiler, level)
                    built:skip(label .. " with real instructions, compiled only", plan.reason)
                end
            end
        end
    end
end

-- A program of nothing but faults, by one compiler: gcc, or what there is.
local function add_faults(built, name, expected)
    local plan <const> = tools.isas[name]
    if not plan.runs then return end
    local compiler <const> = plan.compilers.gcc and "gcc" or "clang"
    local planted <const> = faults.plant(isa.get(name), isa.vocabulary)
    local label <const> = name .. "-faults"
    built:add_run(label, built:add_source(label, planted.isa, planted.vocabulary), name, compiler,
        "-O0")
    expected[label] = planted.names
end

local built <const>, expected <const> = suite.new(tools), {}
for _, name in ipairs(isa.names) do
    add_programs(built, name)
    add_faults(built, name, expected)
end
local results <const>, log <const> = built:run(JOBS)

-- Why op `name` of `result` is not as it should be, or nil.
local function find_problem(result, name)
    local op <const> = result.ops[name]
    if not op then return "was not judged" end
    if op.verdict == "failed" then return op.message end
    local unused <const> = faults.is_unused(isa.get(result.isa), name)
    if op.verdict == "empty" and not unused then return "nothing was compared" end
    return nil
end

local function judged_names()
    local names <const> = program.op_names(isa.vocabulary)
    for _, helper in ipairs(isa.required_helpers) do names[#names + 1] = helper end
    return names
end

TestVocabulary = {}

function TestVocabulary:test_programs_build()
    lu.assertNotNil(results, log)
end

function TestVocabulary:test_every_op_means_what_the_vocabulary_says()
    local problems <const>, comparisons, programs = {}, 0, 0
    for _, result in ipairs(results or {}) do
        if not expected[result.label] then
            programs = programs + 1
            for _, name in ipairs(judged_names()) do
                local problem <const> = find_problem(result, name)
                if problem then
                    problems[#problems + 1] = ("%s: %s: %s"):format(result.label, name, problem)
                end
                comparisons = comparisons + (result.ops[name] and result.ops[name].checks or 0)
            end
            if result.status ~= 0 then
                problems[#problems + 1] = ("%s: exit status %s\n%s"):format(result.label,
                    result.status, result.text:sub(-600))
            end
        end
    end
    print(("\nvocabulary: %d programs, %d comparisons; %d skipped"):format(programs, comparisons,
        #built.skipped))
    for _, text in ipairs(built.skipped) do print("skipped: " .. text) end
    lu.assertEquals(table.concat(problems, "\n"), "")
    lu.assertTrue(programs > 0)
end

function TestVocabulary:test_planted_faults_are_found()
    local planted, found = 0, 0
    local missed <const> = {}
    for _, result in ipairs(results or {}) do
        for _, name in ipairs(expected[result.label] or {}) do
            planted = planted + 1
            if result.ops[name] and result.ops[name].verdict == "failed" then
                found = found + 1
            else
                missed[#missed + 1] = result.label .. ": " .. name
            end
        end
    end
    print(("\nvocabulary: %d of %d planted faults found"):format(found, planted))
    lu.assertEquals(table.concat(missed, "\n"), "")
    lu.assertTrue(planted > 0)
end

-- The faults reach every op: none is judged by nothing.
function TestVocabulary:test_every_op_has_a_fault()
    for _, name in ipairs(isa.names) do
        local reached <const> = {}
        for _, fault in ipairs(faults.plant(isa.get(name), isa.vocabulary).names) do
            reached[fault:gsub("_%d$", "")] = true
        end
        for _, op in ipairs(judged_names()) do
            if not faults.is_unused(isa.get(name), op) then
                lu.assertTrue(reached[op], name .. " " .. op)
            end
        end
    end
end

function TestVocabulary:test_isas_have_no_op_beyond_the_vocabulary()
    for _, name in ipairs(isa.names) do
        for op in pairs(isa.get(name).ops) do
            lu.assertNotNil(isa.vocabulary[op], name .. " " .. op)
        end
    end
end

os.exit(lu.LuaUnit.run())
