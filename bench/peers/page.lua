-- The HTML report of a document that `python3 -m bench.peers` has made.
--   lua5.4 bench/peers/page.lua DOCUMENT.json PAGE.html     from the root
package.path = "./?.lua;./?/init.lua;" .. package.path

local dkjson <const> = require("dkjson")

local fs <const> = require("gen.fs")
local html <const> = require("gen.bench.html")

local document <const> = assert(dkjson.decode(assert(fs.read(arg[1]))))
local skeleton <const> = assert(fs.read("templates/bench.html.in"))
assert(fs.write_all({ { path = arg[2], text = html.render(document, skeleton) } }))
