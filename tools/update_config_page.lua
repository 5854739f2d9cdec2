#!/usr/bin/env lua5.4
-- Brings the generated part of docs/config.md up to date; run from the root of the repository.

package.path = "./?.lua;./?/init.lua;" .. package.path

local keys <const> = require("gen.keys")

local PAGE <const> = "docs/config.md"

local file = assert(io.open(PAGE, "rb"))
local page <const> = file:read("a")
file:close()
local updated <const> = assert(keys.update_page(page), PAGE .. ": markers not found")
if updated ~= page then
    file = assert(io.open(PAGE, "wb"))
    assert(file:write(updated))
    assert(file:close())
end
