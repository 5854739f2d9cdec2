-- Prints how to compile an emitted bundle: one line per C file, its path and its flags.
--   input:  MANIFEST.json gcc|clang
--   output: "DIR/FILE.c FLAG FLAG …" on stdout
-- The manifest pins the flags under which a kernel needs no symbol from outside.

local dkjson <const> = require("dkjson")

local path <const>, compiler <const> = arg[1], arg[2]
local directory <const> = path:match("^(.*/)") or ""
local file <const> = assert(io.open(path))
local manifest <const> = assert(dkjson.decode(file:read("a")))
file:close()

local function print_line(name, flags)
    if name then
        print(directory .. name .. " " .. table.concat(flags[compiler], " "))
    end
end

for _, variant in ipairs(manifest.variants) do
    print_line(variant.kernel, variant.flags)
    print_line(variant.pack, manifest.plain_flags)
end
print_line(manifest.dispatcher, manifest.plain_flags)
print_line(manifest.dispatcher_pack, manifest.plain_flags)
