-- What tests of the planner share: a record and a plan from a few fields of a config.

local config <const> = require("gen.config")
local fold <const> = require("gen.fold")
local isa <const> = require("gen.isa")
local plan <const> = require("gen.plan")
local problem <const> = require("gen.problem")

local M = {}

-- The valid record of `fields` for one ISA (default avx2).
function M.record(fields, isa_name)
    local raw <const> = { name = "planned", isa = isa_name or "avx2" }
    for key, value in pairs(fields) do raw[key] = value end
    local made <const>, errors = config.validate(raw, "plan.lua", "planned")
    if not made then error(config.format_errors(errors)) end
    return made
end

-- Its plan.
function M.build_plan(fields, isa_name)
    return plan.build(fold.apply(problem.build(M.record(fields, isa_name))),
        isa.get(isa_name or "avx2"))
end

return M
