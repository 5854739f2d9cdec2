-- Deterministic random numbers for the fuzzer: splitmix64.
--   input:  any integers that name a stream (seed, case number, ...)
--   output: a generator whose draws depend on nothing else (not on Lua's math.random, not on what
--           other cases drew)
local M = {}
M.__index = M

local function mix(z)
    z = (z ~ (z >> 30)) * 0xbf58476d1ce4e5b9
    z = (z ~ (z >> 27)) * 0x94d049bb133111eb
    return z ~ (z >> 31)
end

-- A stream named by integers: new(seed, case).
function M.new(...)
    local state = 0x2545f4914f6cdd1d
    for _, part in ipairs({ ... }) do
        state = mix(state ~ part) + 0x9e3779b97f4a7c15
    end
    return setmetatable({ state = state }, M)
end

function M:next()
    self.state = self.state + 0x9e3779b97f4a7c15
    return mix(self.state)
end

-- An integer in 1..n.
function M:below(n)
    return (self:next() >> 11) % n + 1
end

-- An integer in low..high.
function M:range(low, high)
    return low + self:below(high - low + 1) - 1
end

-- True in `percent` of a hundred draws.
function M:chance(percent)
    return self:below(100) <= percent
end

function M:pick(list)
    return list[self:below(#list)]
end

return M
