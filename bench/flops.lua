-- Reads `attngen plan --json` and prints the matmul flops of the first kernel in it.
local dkjson <const> = require("dkjson")

local reports = assert(dkjson.decode(io.read("a")))
reports = reports[1] or reports
local flops <const> = reports.variants[1].flops
print(flops.projections + flops.core)
