-- What the tests can use on this machine.
--   input:  PATH, the CPU
--   output: compilers per architecture, emulator, which ISA runs how; every gap with its reason
-- Decides nothing about which tests run.
local host <const> = require("gen.host")
local isa <const> = require("gen.isa")
local toolchain <const> = require("gen.toolchain")

local M = {}

local EMULATION <const> = { "-include", "tests/emulate/avx512.h", "-Wno-psabi" }

-- {gcc = {command=, link=, nm=, size=}, clang = …} for one architecture; absent compilers are nil.
local function native_compilers()
    local found <const> = {}
    for _, name in ipairs({ "gcc", "clang" }) do
        if toolchain.find_program(name) then
            found[name] = { command = name, link = name, nm = "nm", size = "size" }
        end
    end
    return found
end

local function cross_compilers()
    local found <const> = {}
    if not toolchain.find_program("aarch64-linux-gnu-gcc") then
        return found
    end
    local prefix <const> = "aarch64-linux-gnu-"
    found.gcc = { command = prefix .. "gcc", link = prefix .. "gcc", nm = prefix .. "nm",
        size = prefix .. "size" }
    if toolchain.find_program("clang") then
        found.clang = { command = "clang --target=aarch64-linux-gnu", link = prefix .. "gcc",
            nm = prefix .. "nm", size = prefix .. "size" }
    end
    return found
end

-- The plan of one ISA: {runs = "native"|"simde"|"qemu"|nil, reason=, compilers=, extra flags=}.
local function describe_isa(name)
    local data <const> = isa.get(name)
    local here <const> = host.current().arch
    if host.can_run(name) then
        return { runs = "native", compilers = native_compilers(), extra = {} }
    elseif name == "avx512" and here == "x86_64" then
        local missing
        for _, flag in ipairs(data.cpu_test) do
            missing = missing or (not host.current().flags[flag] and flag) or nil
        end
        local reason <const> = "CPU lacks " .. missing
        if not host.can_run("avx2") then
            return { reason = reason .. ", and avx2 to emulate it", compilers = {}, extra = {} }
        end
        return { runs = "simde", reason = reason, compilers = native_compilers(),
            extra = EMULATION }
    elseif data.arch == "aarch64" and here ~= "aarch64" then
        local emulator <const>, message = toolchain.find_emulator("aarch64")
        local compilers <const> = cross_compilers()
        if not emulator or next(compilers) == nil then
            return { reason = message or "no aarch64-linux-gnu-gcc", compilers = compilers,
                extra = {} }
        end
        return { runs = "qemu", compilers = compilers, extra = {}, emulator = emulator }
    end
    return { reason = "not for " .. here, compilers = {}, extra = {} }
end

function M.find()
    local tools <const> = { isas = {}, host = native_compilers() }
    for _, name in ipairs(isa.names) do
        tools.isas[name] = describe_isa(name)
    end
    tools.has_valgrind = toolchain.find_program("valgrind") ~= nil
    return tools
end

return M
