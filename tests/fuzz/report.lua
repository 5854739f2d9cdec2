-- Tells what failed in a campaign, how to repeat it, and the smallest config that still fails.
--   input:  the report of campaign.lua
--   output: text on stdout
-- Shrinks the first few failures only: one fault usually fails many cases.
local build <const> = require("tests.harness.build")
local campaign <const> = require("tests.fuzz.campaign")
local case_text <const> = require("tests.harness.case_text")
local config <const> = require("gen.config")
local fs <const> = require("gen.fs")
local process <const> = require("gen.process")
local shrink <const> = require("tests.fuzz.shrink")

local M = {}

local SHRUNK <const> = 3     -- failures to shrink
local SECONDS <const> = 40   -- to shrink each
local SHOWN <const> = 12     -- failures to print

-- Whether a raw config fails like the original did: same kind of fault, any message.
local function judge(raw, failure, tools, programs, seed)
    local record <const> = config.validate(raw, "shrink", "shrunk")
    if not record then
        return false
    end
    local builder <const> = build.new("shrink", tools)
    local bundle <const>, problem = builder:emit(record, "s")
    if not bundle then
        return failure.what == "generator crash" and problem.crash ~= nil, problem.crash
    elseif failure.what == "generator crash" then
        return false
    end
    local isa <const> = failure.case.isa
    local job <const> = type(failure.what) == "table" and failure.what or nil
    local compiler <const> = job and job.compiler
        or failure.what:match(isa .. "%-(%l+)") or "gcc"
    local object <const> = builder:add_kernel(bundle, isa, compiler)
    local missing <const> = builder:run(1)
    if #missing > 0 then
        return job == nil, missing[1].message
    elseif not job then
        return false
    end
    local list <const> = builder.dir .. "/job.list"
    assert(fs.write_all({ { path = list, text = campaign.job_line({ label = "shrunk",
        group = "shrunk", object = object, prefix = build.variant(bundle, isa).prefix, isa = isa,
        sets = job.sets, seed = seed, record = record }) .. "\n" } }))
    local words <const> = { programs.check, list, "--timeout", 20 }
    if tools.isas[isa].runs == "qemu" then
        words[1] = programs.check_aarch64
        table.move(words, 1, #words, 4)
        table.move(tools.isas[isa].emulator, 1, 3, 1, words)
    end
    local status <const>, text <const> = process.capture(words, { merge = true })
    return status ~= 0, text
end

local function describe(failure)
    return type(failure.what) == "table" and failure.what.label or failure.what
end

local function shrink_failure(failure, tools, programs)
    local job <const> = type(failure.what) == "table" and failure.what or nil
    local seed <const> = job and job.seed or 1
    local message
    local function fails(raw)
        local bad <const>, text = judge(raw, failure, tools, programs, seed)
        message = bad and text or message
        return bad
    end
    if not fails(failure.case.config) then
        print("  (fails only in this kind of build: not shrunk)")
        return
    end
    local smallest <const>, used <const> = shrink.shrink(failure.case.config, fails, SECONDS)
    print(("  smallest failing config found (%d attempts):"):format(used))
    print("  return " .. case_text.lua_text(smallest))
    print("  " .. (message or ""):sub(1, 1200):gsub("\n", "\n  "))
end

function M.print(report, tools, programs)
    local shrunk <const> = {} -- cases: the builds of one case mostly fail alike
    local count = 0
    for index, failure in ipairs(report.failures) do
        if index > SHOWN then
            print(("... and %d more failures"):format(#report.failures - SHOWN))
            break
        end
        print(("\nFAILED %s"):format(describe(failure)))
        print("  " .. failure.message:sub(1, 1500):gsub("\n", "\n  "))
        if failure.case then
            print(("  repeat: make fuzz SEED=%d CASE=%d"):format(report.seed, failure.case.number))
            print("  config: return " .. case_text.lua_text(failure.case.config))
            if count < SHRUNK and not shrunk[failure.case] and failure.what ~= "config refused" then
                shrunk[failure.case] = true
                count = count + 1
                shrink_failure(failure, tools, programs)
            end
        end
    end
end

return M
