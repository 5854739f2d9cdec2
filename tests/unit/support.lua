-- What the command-line tests share: a scratch directory, runs of ./attngen with both streams and
-- the exit code, safetensors files in and out.

local dkjson <const> = require("dkjson")

local fs <const> = require("gen.fs")
local process <const> = require("gen.process")

local M = {}

-- The checkout, absolute, so that commands may run anywhere.
local _, here <const> = process.capture({ "pwd" })
M.root = here:gsub("\n$", "")

local Scratch <const> = {}
Scratch.__index = Scratch

function M.new_scratch()
    return setmetatable({ dir = assert(fs.make_temp_directory()) }, Scratch)
end

function Scratch:remove()
    process.run({ "chmod", "-R", "u+w", self.dir })
    process.run({ "rm", "-rf", self.dir })
    fs.remove_temp_directory(self.dir)
end

function Scratch:path(name)
    return fs.join(self.dir, name)
end

function Scratch:write(name, text)
    assert(fs.write_all({ { path = self:path(name), text = text } }))
    return self:path(name)
end

function Scratch:read(name)
    return fs.read(self:path(name))
end

-- What this module keeps in the scratch directory.
local OWN <const> = { [".stdout"] = true, [".stderr"] = true, [".code"] = true }

-- Sorted names of what a directory holds, without this module's own files.
function Scratch:list(name)
    local names <const> = {}
    for _, entry in ipairs(fs.list(self:path(name or ".")) or {}) do
        if not OWN[entry] then
            names[#names + 1] = entry
        end
    end
    return names
end

-- Runs a shell command line in the scratch directory: {code=, out=, err=}.
function Scratch:shell(command)
    -- The code goes through a file: 130 would be taken for our own interrupt. What is left running
    -- must not hold the pipe at whose end a shell waits to remove the directory: no process.run.
    process.capture({ "/bin/sh", "-c", ("cd '%s' && { %s\n} >.stdout 2>.stderr </dev/null\n"
        .. "echo $? >'%s/.code'"):format(self.dir, command, self.dir) })
    local code <const> = math.tointeger(tonumber(self:read(".code")))
    return { code = code, out = self:read(".stdout"), err = self:read(".stderr") }
end

-- Runs attngen in the scratch directory. `before` is put in front, e.g. "CC=clang".
function Scratch:attngen(arguments, before)
    return self:shell(("%s '%s/attngen' %s"):format(before or "", M.root, arguments))
end

local FORMATS <const> = { F32 = "<f", I32 = "<i4", I64 = "<i8", U8 = "B" }

-- tensors: list of {name, dtype, shape, values}.
function Scratch:write_safetensors(name, tensors)
    local parts <const>, data <const>, offset = {}, {}, 0
    for _, tensor in ipairs(tensors) do
        local bytes <const> = {}
        for index, value in ipairs(tensor[4]) do
            bytes[index] = FORMATS[tensor[2]]:pack(value)
        end
        local text <const> = table.concat(bytes)
        parts[#parts + 1] = ('"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}'):format(
            tensor[1], tensor[2], table.concat(tensor[3], ","), offset, offset + #text)
        data[#data + 1] = text
        offset = offset + #text
    end
    local header <const> = "{" .. table.concat(parts, ",") .. "}"
    return self:write(name, ("<i8"):pack(#header) .. header .. table.concat(data))
end

-- {name = {shape=, values=}} of the F32 tensors of a file.
function Scratch:read_safetensors(name)
    local text <const> = assert(self:read(name))
    local size <const> = ("<i8"):unpack(text)
    local tensors <const> = {}
    for key, entry in pairs(dkjson.decode(text:sub(9, 8 + size))) do
        if key ~= "__metadata__" then
            local values <const> = {}
            for offset = entry.data_offsets[1], entry.data_offsets[2] - 4, 4 do
                values[#values + 1] = ("<f"):unpack(text, 9 + size + offset)
            end
            tensors[key] = { shape = entry.shape, values = values }
        end
    end
    return tensors
end

return M
