-- What the fuzzer draws: legal, reproducible, and reaching every plan override there is; what it
-- shrinks and prints keeps its meaning.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local case_text <const> = require("tests.harness.case_text")
local config <const> = require("gen.config")
local draw <const> = require("tests.fuzz.draw")
local keys <const> = require("gen.keys")
local process <const> = require("gen.process")
local shrink <const> = require("tests.fuzz.shrink")

local CASES <const> = 1500

local function each_draw(visit)
    for number = 1, CASES do
        visit(draw.draw(11, number), number)
    end
end

TestDraws = {}

function TestDraws:test_every_draw_is_legal()
    each_draw(function(drawn, number)
        local record <const>, errors = config.validate(drawn.config, "draw", "k")
        lu.assertNotNil(record, ("case %d: %s"):format(number,
            errors and config.format_errors(errors)))
    end)
end

function TestDraws:test_a_draw_depends_on_its_numbers_alone()
    local first <const> = case_text.lua_text(draw.draw(3, 8).config)
    draw.draw(3, 9)
    lu.assertEquals(case_text.lua_text(draw.draw(3, 8).config), first)
    lu.assertNotEquals(case_text.lua_text(draw.draw(4, 8).config), first)
end

-- Every field of the one list of overrides, and every value it has or a search tries.
function TestDraws:test_plans_reach_every_override()
    local seen <const>, plans = {}, 0
    each_draw(function(drawn)
        plans = plans + (drawn.config.plan and 1 or 0)
        for stage, chosen in pairs(drawn.config.plan or {}) do
            for field, value in pairs(chosen) do
                seen[("%s.%s=%s"):format(stage, field, value)] = true
            end
        end
    end)
    lu.assertTrue(plans > CASES // 4 and plans < CASES // 2, plans .. " plans")
    for _, stage in ipairs(keys.plan_stages) do
        for _, field in ipairs(stage.fields) do
            local wanted = field.tried or field.kind ~= "integer" and keys.plan_values(field)
            if field.tile then
                wanted = { 1, 2, 3 }
            end
            for _, value in ipairs(wanted or {}) do
                local text <const> = ("%s.%s=%s"):format(stage.name, field.name, value)
                lu.assertTrue(seen[text], text .. " is never drawn")
            end
        end
    end
end

function TestDraws:test_printed_configs_read_back()
    each_draw(function(drawn)
        local text <const> = case_text.lua_text(drawn.config)
        lu.assertEquals(load("return " .. text, "=case", "t", {})(), drawn.config)
    end)
end

TestShrink = {}

-- Everything that does not matter goes, down to single overrides.
function TestShrink:test_drops_overrides_one_by_one()
    local start <const> = { op = "mha", batch = 3, seq_len = 8, d_model = 6, heads = 2,
        mask = { "causal", "bool" }, isa = "scalar", target = { l1d = 4096, l2 = 8192 },
        plan = { scores = { rows = 3, vectors = 1 }, fold = { scale = false } } }
    local function fails(c)
        return c.plan ~= nil and c.plan.scores ~= nil and c.plan.scores.rows == 3
            and c.target ~= nil and c.target.l2 ~= nil
    end
    local smallest <const> = shrink.shrink(start, fails, 5)
    lu.assertEquals(smallest, { op = "mha", batch = 1, seq_len = 1, d_model = 1, heads = 1,
        isa = "scalar", target = { l2 = 8192 }, plan = { scores = { rows = 3 } } })
end

-- A number that is none must not draw something else.
function TestDraws:test_a_seed_or_case_that_is_no_number_is_refused()
    local function refusal(before, arguments)
        local status <const>, text = process.capture({ "env", "SEED=", "CASE=", "CASES=", before,
            "lua5.4", "tests/run.lua", table.unpack(arguments) }, { merge = true })
        lu.assertEquals(status, 2, text)
        return text
    end
    for _, name in ipairs({ "SEED", "CASE", "CASES" }) do
        for _, value in ipairs({ "12x", "1.5", "0x", "99999999999999999999" }) do
            lu.assertStrMatches(refusal(("%s=%s"):format(name, value), { "fuzz" }),
                ("tests/run.lua: %s takes a number from %%-?%%d+ to %%d+, got '%s'\n"):format(name,
                value))
        end
    end
    lu.assertStrContains(refusal("CASE=0", { "fuzz" }), "CASE takes a number from 1")
    lu.assertStrContains(refusal("CASE=1", { "fuzz", "12x" }), "SEED takes a number")
    lu.assertStrContains(refusal("CASE=1", { "fuzz", "1", "2" }), "got 'fuzz 1 2'")
    lu.assertStrContains(refusal("CASE=1", { "fuss" }), "takes quick, full or fuzz")
end

os.exit(lu.LuaUnit.run())
