-- Coefficients of 2^r = 1 + c1 r + ... + cn r^n, minimax in relative error with the constant term
-- fixed at 1 (tools/fit_exp2.py), and the Horner chain that ISA files build from them.
local exp2 <const> = {}

exp2.coefficients = {
    -- r in [0, 1): 8.3e-8 (exact), 2.9e-6 (fast)
    floor = {
        exact = { 0x1.62e4bap-1, 0x1.ebdb6ap-3, 0x1.c91c1p-5, 0x1.277c1cp-7, 0x1.e96912p-10 },
        fast = { 0x1.62d6c6p-1, 0x1.ee2454p-3, 0x1.abf856p-5, 0x1.b7f752p-7 },
    },
    -- r in [-1/2, 1/2]: 9.4e-8 (exact), 2.9e-6 (fast)
    nearest = {
        exact = { 0x1.62e42ap-1, 0x1.ebf9c2p-3, 0x1.c6b6d8p-5, 0x1.3ce8acp-7, 0x1.5bda4p-10 },
        fast = { 0x1.62e12cp-1, 0x1.ec036ep-3, 0x1.c9fc68p-5, 0x1.3a051ap-7 },
    },
}

-- The ops return 2^(x + 16): weights then have room on both sides of their reference (softmax.lua).
--
-- C statements of the Horner chain on variable `r`, result in `p`, times `factor` (a power of two).
-- splat and fma are ISA texts; indentation is four spaces.
function exp2.horner(range, accuracy, vec_type, splat, fma, factor)
    local c <const> = exp2.coefficients[range][accuracy]
    local function constant(value)
        return (splat:gsub("%$1", ("%af"):format(value * (factor or 1.0))))
    end
    local lines <const> = { ("    %s p = %s;"):format(vec_type, constant(c[#c])) }
    for i = #c - 1, 0, -1 do
        local text <const> = fma:gsub("%$(%d)", { ["1"] = "p", ["2"] = "r",
            ["3"] = constant(c[i] or 1.0) })
        lines[#lines + 1] = "    p = " .. text .. ";"
    end
    return table.concat(lines, "\n")
end

return exp2
