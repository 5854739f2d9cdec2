-- The bundle's manifest as data: config, variants, sizes, flags, file hashes. Key order and number
-- format are fixed, so equal bundles give equal bytes.
local dkjson <const> = require("dkjson")

local manifest <const> = {}

manifest.FORMAT = 1

local PRIME <const> = 0x100000001b3

-- FNV-1a, 64 bits, as 16 hex digits. Eight bytes a turn: every emitted byte passes here.
function manifest.hash(text)
    local hash = 0xcbf29ce484222325
    local whole <const> = #text // 8 * 8
    for at = 1, whole, 8 do
        local a <const>, b <const>, c <const>, d <const>, e <const>, f <const>, g <const>,
            h <const> = text:byte(at, at + 7)
        hash = (((hash ~ a) * PRIME ~ b) * PRIME ~ c) * PRIME
        hash = (((hash ~ d) * PRIME ~ e) * PRIME ~ f) * PRIME
        hash = ((hash ~ g) * PRIME ~ h) * PRIME
    end
    for at = whole + 1, #text do hash = (hash ~ text:byte(at)) * PRIME end
    return ("%016x"):format(hash)
end

-- Compiler flags that generated files are checked under, by compiler family. `plain` is for packing
-- and dispatch. Without them compilers may call memcpy, memset or the stack protector, or fuse
-- separate operations; gcc also spends most of its time looking for vectors in code that already is
-- made of them. `level` is what a tuned kernel was measured with.
function manifest.flags(isa_flags, level)
    local function with(...)
        local list <const> = { "-std=c11", level or "-O3", "-ffreestanding", "-fno-stack-protector",
            "-ffp-contract=off", ... }
        for _, flag in ipairs(isa_flags) do list[#list + 1] = flag end
        return list
    end
    return { gcc = with("-fno-tree-loop-distribute-patterns", "-fno-tree-slp-vectorize"),
        clang = with() }
end

local function sorted_keys(value, seen)
    if type(value) ~= "table" then return end
    for key, inner in pairs(value) do
        if type(key) == "string" then seen[key] = true end
        sorted_keys(inner, seen)
    end
end

-- The shortest text that reads back as the same float.
local function float_text(value)
    for digits = 15, 16 do
        local text <const> = ("%." .. digits .. "g"):format(value)
        if tonumber(text) == value then return text end
    end
    return ("%.17g"):format(value)
end

-- Floats with all the digits they need (dkjson prints 14).
local function exact_floats(value)
    if math.type(value) == "float" and value == value and math.abs(value) < math.huge then
        return setmetatable({}, { __tojson = function() return float_text(value) end })
    end
    if type(value) ~= "table" then return value end
    local copy <const> = setmetatable({}, getmetatable(value))
    for key, inner in pairs(value) do copy[key] = exact_floats(inner) end
    return copy
end

-- One `"key": value` line for every key of `value`, sorted.
function manifest.lines(value)
    local keys <const>, lines <const>, nested <const> = {}, {}, {}
    for key in pairs(value) do keys[#keys + 1] = key end
    table.sort(keys)
    sorted_keys(value, nested)
    local order <const> = {}
    for key in pairs(nested) do order[#order + 1] = key end
    table.sort(order)
    for i, key in ipairs(keys) do
        lines[i] = ("%q: %s%s"):format(key, dkjson.encode(exact_floats(value[key]),
            { keyorder = order }),
            i < #keys and "," or "")
    end
    return lines
end

local function encode(value, indent)
    local seen <const>, order <const> = {}, {}
    sorted_keys(value, seen)
    for key in pairs(seen) do order[#order + 1] = key end
    table.sort(order)
    return dkjson.encode(exact_floats(value), { indent = indent, keyorder = order })
end

-- Key-sorted JSON text of plain data, ending in a newline.
function manifest.encode(value) return encode(value, true) .. "\n" end

-- The same on one line, without the newline.
function manifest.encode_line(value) return encode(value, false) end

return manifest
