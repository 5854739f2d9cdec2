-- Several measurements of one thing made one.
--   input:  what the probe printed in each round
--   output: best, median, deciles and counts of all good samples together, and of the slow ones

local M = {}

-- A best of fewer good samples than this is no figure.
M.MIN_GOOD = 5

-- All samples of one kind; a round that another program disturbed from end to end has none.
local function gather(rounds, key)
    local all <const> = {}
    for _, round in ipairs(rounds) do
        if not round.all_disturbed then
            table.move(round[key] or {}, 1, #(round[key] or {}), #all + 1, all)
        end
    end
    table.sort(all)
    return all
end

-- Of a sorted list; `share` from 0 to 1, between two values their mix.
function M.quantile(sorted, share)
    local at <const> = 1 + share * (#sorted - 1)
    local low <const> = math.floor(at)
    local high <const> = math.min(low + 1, #sorted)
    return sorted[low] + (at - low) * (sorted[high] - sorted[low])
end

local function deciles(sorted)
    local values <const> = {}
    for tenth = 0, 10 do
        values[tenth + 1] = M.quantile(sorted, tenth / 10)
    end
    return values
end

local function sum(rounds, key)
    local total = 0
    for _, round in ipairs(rounds) do
        total = total + (round[key] or 0)
    end
    return total
end

local function largest(rounds, key)
    local value
    for _, round in ipairs(rounds) do
        local one <const> = round[key]
        value = one and math.max(one, value or one) or value
    end
    return value
end

-- How many good samples all rounds have together.
function M.count_good(rounds)
    return #gather(rounds, "samples_us")
end

-- Fields with the meaning of docs/benchmarking.md.
function M.merge(rounds)
    local good <const>, slow <const> = gather(rounds, "samples_us"), gather(rounds,
        "slow_samples_us")
    local first <const> = rounds[1]
    local merged <const> = {
        rounds = #rounds, good_samples = #good, slow_samples = #slow,
        disturbed_samples = sum(rounds, "disturbed_samples"),
        peak_gflops = largest(rounds, "peak_gflops"),
        product_gflops = largest(rounds, "product_gflops"),
        load_gbytes_per_s = largest(rounds, "load_gbytes_per_s"),
        max_error = largest(rounds, "max_error"), max_output = first.max_output,
        tolerance_share = largest(rounds, "tolerance_share"),
        packed_bytes = first.packed_bytes, workspace_bytes = first.workspace_bytes,
        traffic_bytes = first.traffic_bytes, first_call_us = first.first_call_us,
        pack_us = first.pack_us, cold_best_us = first.cold_best_us,
        cold_median_us = first.cold_median_us, right = true,
    }
    if #good >= M.MIN_GOOD then
        merged.best_us, merged.median_us = good[1], M.quantile(good, 0.5)
        merged.deciles_us = deciles(good)
    end
    if #slow > 0 then
        merged.slow_best_us, merged.slow_median_us = slow[1], M.quantile(slow, 0.5)
    end
    return merged
end

-- What bounds the shape on this machine, and which share of it the best sample reached: the FMA
-- peak, or for shapes that read more than they compute the load bandwidth at their own size.
function M.add_limit(result, flops)
    if not (result.peak_gflops and result.load_gbytes_per_s) then
        return
    end
    local compute <const> = flops / result.peak_gflops * 1e-3
    local load <const> = result.traffic_bytes / result.load_gbytes_per_s * 1e-3
    result.limit = load > compute and "bandwidth" or "peak"
    result.bound_us = math.max(compute, load)
    if result.best_us then
        result.percent_of_peak = 100.0 * compute / result.best_us
        result.percent_of_limit = 100.0 * result.bound_us / result.best_us
    end
    if result.slow_best_us then
        result.slow_percent_of_limit = 100.0 * result.bound_us / result.slow_best_us
    end
end

-- How many times as fast `ours` is as `other`, best against best in the same state; and true when
-- that is the slow state.
function M.ratio(ours, other)
    if ours.best_us and other.best_us then
        return other.best_us / ours.best_us, false
    elseif ours.slow_best_us and other.slow_best_us then
        return other.slow_best_us / ours.slow_best_us, true
    end
end

return M
