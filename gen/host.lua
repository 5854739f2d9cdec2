-- What this machine is.
--   input:  `uname -m` and /proc/cpuinfo, or the same two texts given by a test
--   output: architecture, CPU flags, which ISAs run natively, what "native" stands for
-- Does not look for compilers or emulators (gen.toolchain does).

local fs <const> = require("gen.fs")
local isa <const> = require("gen.isa")
local process <const> = require("gen.process")

local M = {}

local ARCH_NAMES <const> = { amd64 = "x86_64", arm64 = "aarch64" }

-- "AMD EPYC (family 25, model 1)": hypervisors give one name to many kinds of CPU.
local function cpu_name(cpuinfo, arch)
    local text <const> = "\n" .. cpuinfo
    local function field(name)
        return text:match("\n" .. name .. "%s*:%s*([^\n]*)")
    end
    local model <const> = field("model name") or field("Model")
    if field("cpu family") then
        return ("%s (family %s, model %s)"):format(model or arch, field("cpu family"),
            field("model") or "?")
    elseif field("CPU part") then
        return ("%s (implementer %s, part %s)"):format(model or arch, field("CPU implementer")
            or "?", field("CPU part"))
    end
    return model or arch
end

-- The machine described by two texts: {arch=, cpu=, flags={name=true}, cores={0, 1, …}}.
function M.describe(machine, cpuinfo)
    local name <const> = machine:match("%S+") or "unknown"
    local flags <const> = {}
    -- x86 says "flags", Arm "Features"; every core has its own line, the first is enough.
    local line <const> = ("\n" .. cpuinfo):match("\n[Ff][le][%a]+%s*:%s*([^\n]*)") or ""
    for flag in line:gmatch("%S+") do
        flags[flag] = true
    end
    local arch <const> = ARCH_NAMES[name] or name
    local cores <const> = {}
    for number in ("\n" .. cpuinfo):gmatch("\nprocessor%s*:%s*(%d+)") do
        cores[#cores + 1] = math.tointeger(tonumber(number))
    end
    return { arch = arch, cpu = cpu_name(cpuinfo, arch), flags = flags, cores = cores }
end

local this_machine

-- The machine we run on (looked at once).
function M.current()
    if not this_machine then
        local _, machine = process.capture({ "uname", "-m" }, { quiet = true })
        this_machine = M.describe(machine, fs.read("/proc/cpuinfo") or "")
    end
    return this_machine
end

-- How many processes to run at a time.
function M.processors()
    local _, text = process.capture({ "getconf", "_NPROCESSORS_ONLN" }, { quiet = true })
    return math.tointeger(tonumber(text)) or 1
end

-- True when `machine` executes the ISA's instructions itself.
function M.can_run(isa_name, machine)
    machine = machine or M.current()
    local data <const> = isa.get(isa_name)
    if data.arch ~= "any" and data.arch ~= machine.arch then
        return false
    end
    for _, flag in ipairs(data.cpu_test or {}) do
        if not machine.flags[flag] then
            return false
        end
    end
    return true
end

-- The ISA "native" stands for: the widest one that runs here.
function M.native_isa(machine)
    local best, best_lanes
    for _, name in ipairs(isa.names) do
        local lanes <const> = isa.get(name).lanes
        if M.can_run(name, machine) and (not best or lanes > best_lanes) then
            best, best_lanes = name, lanes
        end
    end
    return best
end

return M
