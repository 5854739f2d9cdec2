-- Prints the ISAs this machine runs natively, the best last, for bench/measure.sh.
package.path = "./?.lua;./?/init.lua;" .. package.path

local host <const> = require("gen.host")
local isa <const> = require("gen.isa")

local flags <const> = host.current().flags
local names <const> = {}
for _, name in ipairs(isa.names) do
    local data <const> = isa.get(name)
    local runs = data.arch == "any" or data.arch == host.current().arch
    for _, flag in ipairs(data.cpu_test) do runs = runs and flags[flag] end
    if runs and name ~= "scalar" then names[#names + 1] = name end
end
print(table.concat(names, " "))
