-- Builds and runs the vocabulary programs: one for each (ISA, compiler, optimisation level), and
-- one for each ISA with planted faults.
--   input:  tools of tests.harness.toolset; tables of gen/isa
--   output: sources, build.ninja, programs and their output under build/tests/vocab/; the results
-- Judges nothing: the programs do, and the unit test reads what they print.
local fs <const> = require("gen.fs")
local isa <const> = require("gen.isa")
local manifest <const> = require("gen.manifest")
local process <const> = require("gen.process")
local program <const> = require("tests.vocab.program")

local M = {}
M.__index = M

local DIR <const> = "build/tests/vocab"
-- An op may leave an operand unused (a prefetch, a prefix of one lane); a kernel then has none.
local WARNINGS <const> = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
    .. " -Wno-unused-variable -Wno-unused-parameter -Wno-unused-function"
local RULES <const> = [[
rule cc
  command = $cc -MMD -MF $out.d $in -o $out $libs
  depfile = $out.d
  deps = gcc
rule run
  command = ( $program > $out 2>&1; echo exit $$? >> $out )
build always: phony

]]

-- `tools` from tests.harness.toolset.
function M.new(tools)
    return setmetatable({ tools = tools, files = {}, edges = {}, runs = {}, skipped = {},
        compiled = {} }, M)
end

local function add_file(self, path, text)
    self.files[#self.files + 1] = { path = path, text = text }
end

-- The compiler's command for programs of an ISA at `level`; `real` asks for the ISA's own flags
-- where it is emulated.
local function command_text(self, name, compiler_name, level, real)
    local plan <const> = self.tools.isas[name]
    local compiler <const> = plan.compilers[compiler_name]
    local words <const> = { compiler.command, table.concat(
        manifest.flags(isa.get(name).flags)[compiler_name], " ") }
    if plan.runs == "simde" and not real then
        -- The ISA flags would turn the real instructions on.
        words[#words + 1] = "-mno-avx512f -mavx2 -mfma"
        words[#words + 1] = table.concat(plan.extra, " ")
    end
    words[#words + 1] = ("%s -I. -D_GNU_SOURCE %s"):format(level, WARNINGS)
    return table.concat(words, " ")
end

local function add_edge(self, format, ...)
    self.edges[#self.edges + 1] = format:format(...)
end

-- Adds the program for `data` (an ISA table or a faulty copy of one) as source `stem`.
function M:add_source(stem, data, vocabulary)
    local path <const> = ("%s/%s.c"):format(DIR, stem)
    add_file(self, path, program.text(data, vocabulary))
    return path
end

-- Builds `source` for ISA `name` and runs it; `label` names the result.
function M:add_run(label, source, name, compiler_name, level)
    local plan <const> = self.tools.isas[name]
    local compiler <const> = plan.compilers[compiler_name]
    local stem <const> = ("%s/%s"):format(DIR, label)
    -- clang compiles for the foreign CPU, its gcc links
    if compiler.command == compiler.link then
        add_edge(self, "build %s: cc %s\n  cc = %s\n  libs = -lm\n", stem, source,
            command_text(self, name, compiler_name, level))
    else
        add_edge(self, "build %s.o: cc %s\n  cc = %s -c\n", stem, source,
            command_text(self, name, compiler_name, level))
        add_edge(self, "build %s: cc %s.o\n  cc = %s\n  libs = -lm\n", stem, stem, compiler.link)
    end
    local words <const> = table.concat(plan.emulator or {}, " ")
    add_edge(self, "build %s.out: run %s always\n  program = %s %s\n", stem, stem, words, stem)
    self.runs[#self.runs + 1] = { label = label, output = stem .. ".out", isa = name }
end

function M:add_compile_only(label, source, name, compiler_name, level)
    add_edge(self, "build %s/%s.o: cc %s\n  cc = %s -c\n", DIR, label, source,
        command_text(self, name, compiler_name, level, true))
    self.compiled[#self.compiled + 1] = label
end

function M:skip(label, reason)
    self.skipped[#self.skipped + 1] = label .. ": " .. reason
end

-- What a program printed: {label, isa, status, ops = {name = {ok=, checks=, message=}}, notes}.
local function read_result(run)
    local result <const> = { label = run.label, isa = run.isa, ops = {}, notes = {} }
    result.text = fs.read(run.output) or "not built"
    for line in result.text:gmatch("[^\n]+") do
        local name <const>, verdict, rest = line:match("^op ([%w_]+) (%w+):? ?(.*)$")
        if name then
            result.ops[name] = { verdict = verdict, message = rest, checks = tonumber(rest) or 0 }
        elseif line:find("^note ") then
            result.notes[#result.notes + 1] = line:sub(6)
        end
        result.status = math.tointeger(tonumber(line:match("^exit (%d+)$"))) or result.status
    end
    return result
end

-- Builds and runs everything; returns the results, or nil and ninja's log.
function M:run(jobs)
    local path <const> = DIR .. "/build.ninja"
    for _, run in ipairs(self.runs) do fs.remove(run.output) end
    add_file(self, path, "builddir = " .. DIR .. "\n" .. RULES .. table.concat(self.edges, "\n"))
    assert(fs.write_all(self.files))
    local status <const>, log <const> = process.capture(
        { "ninja", "-f", path, "-k", 0, "-j", jobs, "--quiet" }, { merge = true })
    if status ~= 0 then return nil, log end
    local results <const> = {}
    for i, run in ipairs(self.runs) do results[i] = read_result(run) end
    return results
end

return M
