-- Names, types and shapes of the tensors in a safetensors file: the header only.
--   input:  a path
--   output: {name = {dtype=, shape={…}}} or nil, message
-- Reads no tensor data; the C runtime does, and checks much more before it believes a file.

local dkjson <const> = require("dkjson")

local fs <const> = require("gen.fs")

local M = {}

local MAX_HEADER_BYTES <const> = 100000000

local function check_shape(shape)
    if type(shape) ~= "table" then
        return nil
    end
    for index = 1, #shape do
        local size <const> = shape[index]
        if math.type(size) ~= "integer" or size < 0 then
            return nil
        end
    end
    return shape
end

-- text: the file from its start to the end of the header, or the whole file.
function M.parse_header(text, file_bytes)
    if #text < 8 then
        return nil, "too short to be a safetensors file"
    end
    local size <const> = ("<i8"):unpack(text)
    if size < 2 or size > MAX_HEADER_BYTES or size > file_bytes - 8 then
        return nil, "the header's length does not fit the file"
    end
    local ok, header = pcall(dkjson.decode, text:sub(9, 8 + size), 1, nil, nil)
    if not ok or type(header) ~= "table" then
        return nil, "the header is not a JSON object"
    end
    local tensors <const> = {}
    for name, entry in pairs(header) do
        if name ~= "__metadata__" then
            local shape <const> = type(entry) == "table" and check_shape(entry.shape)
            if type(name) ~= "string" or not shape then
                return nil, "the header has an entry without a shape: " .. tostring(name)
            end
            tensors[name] = { dtype = entry.dtype, shape = shape }
        end
    end
    return tensors
end

function M.read_header(path)
    local start, message = fs.read(path, 8)
    if not start then
        return nil, message
    end
    local bytes <const> = fs.size(path)
    local size <const> = #start == 8 and ("<i8"):unpack(start) or 0
    local text = start
    if size > 0 and size <= MAX_HEADER_BYTES and size <= bytes - 8 then
        text, message = fs.read(path, 8 + size)
        if not text then
            return nil, message
        end
    end
    local tensors
    tensors, message = M.parse_header(text, bytes)
    if not tensors then
        return nil, path .. ": " .. message
    end
    return tensors
end

return M
