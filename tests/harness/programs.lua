-- Builds the C programs of the tests: the Criterion suites and the check program.
--   input:  sources found in tests/c, tests/reference, tests/fuzz and runtime/src
--   output: build/tests/bin/*, by ninja with header dependencies
-- Does not run anything.
local fs <const> = require("gen.fs")
local process <const> = require("gen.process")

local M = {}

local DIR <const> = "build/tests/bin"
local CFLAGS <const> = "-std=c11 -O2 -g -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
    .. " -D_GNU_SOURCE -Itests -Iruntime/include"
local SANITIZE <const> = " -fsanitize=address,undefined -fno-sanitize-recover=all"
local CHECK_SOURCES <const> = { "tests/fuzz/arena.c", "tests/fuzz/check.c", "tests/fuzz/guard.c",
    "tests/fuzz/inputs.c", "tests/fuzz/trap.c", "tests/reference/ref_case.c",
    "tests/reference/reference.c" }
local BLAS_SOURCE <const> = "tests/reference/blas_path.c"

local RULES <const> = "builddir = " .. DIR .. "\n" .. [[
rule cc
  command = $cc $flags -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = $out
rule link
  command = $cc $flags -o $out $in $libs
  description = $out

]]

local function pkg_config(what, package, otherwise)
    local status <const>, text <const> = process.capture({ "pkg-config", what, package },
        { quiet = true })
    return status == 0 and text:gsub("%s+$", "") or otherwise
end

-- All .c files below a directory, sorted.
local function find_sources(dir)
    local found <const> = {}
    for _, name in ipairs(fs.list(dir) or {}) do
        local path <const> = dir .. "/" .. name
        if fs.is_directory(path) then
            table.move(find_sources(path), 1, 1 << 20, #found + 1, found)
        elseif name:find("%.c$") then
            found[#found + 1] = path
        end
    end
    table.sort(found)
    return found
end

-- One set of objects, compiled alike.
local function add_objects(lines, kind, cc, flags, sources)
    local objects <const> = {}
    for index, source in ipairs(sources) do
        local object <const> = ("%s/%s/%s.o"):format(DIR, kind, source:gsub("[/.]", "_"))
        lines[#lines + 1] = ("build %s: cc %s\n  cc = %s\n  flags = %s\n"):format(object, source,
            cc, flags)
        objects[index] = object
    end
    return objects
end

local function add_link(lines, name, cc, flags, objects, libs)
    lines[#lines + 1] = ("build %s/%s: link %s\n  cc = %s\n  flags = %s\n  libs = %s\n"):format(DIR,
        name, table.concat(objects, " "), cc, flags, libs)
end

local function concat(...)
    local all <const> = {}
    for _, list in ipairs({ ... }) do
        table.move(list, 1, #list, #all + 1, all)
    end
    return all
end

-- Builds everything this machine can; returns {suites = {paths}, check =, check_asan =,
-- check_aarch64 = path or nil}, or nil and ninja's log.
function M.build(tools)
    local lines <const> = { RULES }
    local blas_flags <const> = pkg_config("--cflags", "openblas", "")
    local blas_libs <const> = pkg_config("--libs", "openblas", "-lopenblas")
    local host_flags <const> = CFLAGS .. " -DREF_WITH_BLAS " .. blas_flags
    local libs <const> = blas_libs .. " -lpthread -ldl -lm"
    local judge <const> = concat(CHECK_SOURCES, { BLAS_SOURCE })
    local judge_objects <const> = add_objects(lines, "host", "gcc", host_flags, judge)
    local main <const> = { "tests/fuzz/check_main.c" }
    local built <const> = { suites = {}, check = DIR .. "/check" }
    add_link(lines, "check", "gcc", "", concat(judge_objects,
        add_objects(lines, "host", "gcc", host_flags, main)), libs)
    built.check_asan = DIR .. "/check_asan"
    add_link(lines, "check_asan", "gcc", SANITIZE, add_objects(lines, "asan", "gcc",
        host_flags .. SANITIZE, concat(judge, main)), libs)
    if tools.isas.neon.runs == "qemu" then
        built.check_aarch64 = DIR .. "/check_aarch64"
        add_link(lines, "check_aarch64", "aarch64-linux-gnu-gcc", "", add_objects(lines, "aarch64",
            "aarch64-linux-gnu-gcc", CFLAGS, concat(CHECK_SOURCES, main)), "-lpthread -ldl -lm")
    end
    local runtime <const> = add_objects(lines, "host", "gcc", CFLAGS, find_sources("runtime/src"))
    local helpers <const> = {}
    for _, source in ipairs(find_sources("tests/c")) do
        if not source:find("test_[%w_]+%.c$") then
            helpers[#helpers + 1] = source
        end
    end
    local helper_objects <const> = add_objects(lines, "host", "gcc", host_flags, helpers)
    for _, source in ipairs(find_sources("tests/c")) do
        local name <const> = source:match("(test_[%w_]+)%.c$")
        if name then
            local object <const> = add_objects(lines, "host", "gcc", host_flags, { source })
            add_link(lines, name, "gcc", "-rdynamic", concat(object, helper_objects,
                judge_objects, runtime),
                "-lcriterion -ljansson " .. libs)
            built.suites[#built.suites + 1] = { name = name, path = DIR .. "/" .. name }
        end
    end
    local path <const> = DIR .. "/build.ninja"
    assert(fs.write_all({ { path = path, text = table.concat(lines, "\n") } }))
    local status <const>, log <const> = process.capture({ "ninja", "-f", path, "-k", 0, "-j", 2 },
        { merge = true })
    if status ~= 0 then
        return nil, log
    end
    return built
end

return M
