-- File skeletons: fields, empty lines, messages.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local fs <const> = require("gen.fs")
local template <const> = require("gen.template")

TestTemplate = {}

function TestTemplate:test_fields_inside_a_line()
    lu.assertEquals(template.fill("t", "int $(name)[$(n)]; /* $(n) */\n", { name = "a", n = 3 }),
        "int a[3]; /* 3 */\n")
end

function TestTemplate:test_a_field_alone_takes_its_lines()
    lu.assertEquals(template.fill("t", "a\n$(body)\nb\n", { body = "x\n    y\n" }),
        "a\nx\n    y\nb\n")
end

function TestTemplate:test_an_empty_field_alone_vanishes()
    lu.assertEquals(template.fill("t", "a\n$(body)\nb\n", { body = "" }), "a\nb\n")
    lu.assertEquals(template.fill("t", "a\n    $(body)\nb\n", { body = "" }), "a\nb\n")
end

function TestTemplate:test_an_empty_field_beside_text_leaves_the_line()
    lu.assertEquals(template.fill("t", "a$(body)\n", { body = "" }), "a\n")
    lu.assertEquals(template.fill("t", "a\n\nb\n", {}), "a\n\nb\n")
end

function TestTemplate:test_values_are_not_filled_again()
    lu.assertEquals(template.fill("t", "$(a)\n<$(a)>\n", { a = "$(b) %1 %%" }),
        "$(b) %1 %%\n<$(b) %1 %%>\n")
end

function TestTemplate:test_the_text_ends_in_one_newline()
    lu.assertEquals(template.fill("t", "a", {}), "a\n")
    lu.assertEquals(template.fill("t", "a\n", {}), "a\n")
end

function TestTemplate:test_a_missing_field_names_file_and_line()
    for _, case in ipairs({
        { "a\nb\n$(oops)\n", 3 }, { "x $(oops) y\n", 1 }, { "$(known)\n\n $(known)$(oops)\n", 3 },
    }) do
        local ok <const>, message = pcall(template.fill, "kernel.c.in", case[1], { known = "k" })
        lu.assertFalse(ok)
        lu.assertEquals(message, ("kernel.c.in:%d: no field 'oops'"):format(case[2]))
    end
end

-- False is a value a generator never means; nil is the only missing one.
function TestTemplate:test_numbers_and_booleans_are_printed()
    lu.assertEquals(template.fill("t", "$(a) $(b) $(c)\n", { a = 0, b = false, c = 1 << 40 }),
        "0 false 1099511627776\n")
end

-- Dollar signs that are no field stay; the skeletons rely on none.
function TestTemplate:test_the_skeletons_hold_only_fields_and_no_numbers_of_a_kernel()
    for _, name in ipairs(assert(fs.list("templates"))) do
        local text <const> = assert(fs.read("templates/" .. name))
        local rest <const> = text:gsub("%$%([%w_]+%)", "")
        lu.assertNil(rest:find("$", 1, true), name)
        local fields <const> = {}
        for field in text:gmatch("%$%(([%w_]+)%)") do fields[field] = "F" end
        lu.assertNil(template.fill(name, text, fields):find("$(", 1, true), name)
    end
end

os.exit(lu.LuaUnit.run())
