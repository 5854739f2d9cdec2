-- The OpenBLAS to compare with: as packaged, and at its fastest core for this CPU.
--   input:  the CPU's flags; measurements of the candidates
--   output: which cores may be tried, which is the fastest
-- A packaged OpenBLAS may take a CPU for a much older one, so every core that the CPU can run is
-- tried, each in its own process that judges its results first.

local M = {}

-- Names of OPENBLAS_CORETYPE and the CPU flags their code needs, by architecture.
local CORES <const> = {
    x86_64 = {
        { name = "Nehalem", flags = { "sse4_2" }, superseded_by = "avx" },
        { name = "Sandybridge", flags = { "avx" }, superseded_by = "avx2" },
        { name = "Haswell", flags = { "avx2", "fma" } },
        { name = "Zen", flags = { "avx2", "fma" } },
        { name = "SkylakeX", flags = { "avx512f", "avx512bw", "avx512dq", "avx512vl" } },
        { name = "Cooperlake", flags = { "avx512f", "avx512bw", "avx512dq", "avx512vl",
            "avx512_bf16" } },
        { name = "SapphireRapids", flags = { "avx512f", "avx512bw", "avx512dq", "avx512vl",
            "avx512_bf16" } },
    },
    aarch64 = {
        { name = "ARMV8", flags = { "asimd" } },
        { name = "CORTEXA57", flags = { "asimd" } },
        { name = "NEOVERSEN1", flags = { "asimd" } },
        { name = "NEOVERSEV1", flags = { "sve" } },
        { name = "NEOVERSEN2", flags = { "sve2" } },
    },
}

M.LIBRARY = "libopenblas.so.0"

-- Names of the cores this machine can run.
function M.candidates(machine)
    local names <const> = {}
    for _, core in ipairs(CORES[machine.arch] or {}) do
        local runs = not (core.superseded_by and machine.flags[core.superseded_by])
        for _, flag in ipairs(core.flags) do
            runs = runs and machine.flags[flag]
        end
        if runs then
            names[#names + 1] = core.name
        end
    end
    return names
end

-- "OpenBLAS 0.3.21 NO_LAPACKE …" -> "OpenBLAS 0.3.21"
function M.short_name(text)
    local mkl <const> = text:match("Math Kernel Library Version ([%d.]+)")
    return text:match("^OpenBLAS [%d.]+") or mkl and "MKL " .. mkl or text:match("^[^,]+") or text
end

-- Best time of a result, whatever state the machine was in.
local function any_best(result)
    local good <const>, slow <const> = result.best_us, result.slow_best_us
    return good and slow and math.min(good, slow) or good or slow
end

-- The fastest of {core=, result=, problem=}: its core as the library itself calls it. Each loser
-- gets a reason. A library that does not know a core silently takes another: that is no candidate.
function M.choose(trials)
    local best, best_time
    for _, trial in ipairs(trials) do
        local time <const> = trial.result and any_best(trial.result)
        if trial.problem then
            trial.reason = trial.problem.message
        elseif trial.result.core:lower() ~= trial.core:lower() then
            trial.reason = ("not in this library, which takes %s"):format(trial.result.core)
        elseif time and (not best or time < best_time) then
            best, best_time = trial, time
        end
    end
    return best
end

return M
