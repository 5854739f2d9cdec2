-- Refuses shapes whose numbers the generator and the emitted C could not hold.
--   input:  a record whose sizes are resolved
--   output: list of {key=, value=, message=, allowed=}, empty when everything fits
-- Three limits: derived dimensions below 2^31, bytes of every tensor and of their sums below 2^63,
-- multiply-adds of the whole call below 2^63. Every product here is overflow-checked.

local keys <const> = require("gen.keys")

local M = {}

-- Product of positive integers, or nil when it is 2^63 or more.
local function multiply(...)
    local product = 1
    for _, factor in ipairs({ ... }) do
        if product > math.maxinteger // factor then
            return nil
        end
        product = product * factor
    end
    return product
end
M.multiply = multiply

local function add(a, b)
    return a and b and a <= math.maxinteger - b and a + b or nil
end

-- Every tensor of the call and the intermediates a kernel may keep: {name, keys of its dimensions,
-- extra factor}. A key may stand for a product (H·D): then it is a list.
local function list_tensors(record)
    local heads_d <const> = { "heads", "head_dim" }
    local heads_v <const> = { "heads", "v_head_dim" }
    local groups_d <const> = { "kv_heads", "head_dim" }
    local groups_v <const> = { "kv_heads", "v_head_dim" }
    local list <const> = {
        { "q", "batch", "seq_len", heads_d },
        { "k", "batch", "kv_len", groups_d },
        { "v", "batch", "kv_len", groups_v },
        { "the heads' output", "batch", "seq_len", heads_v },
        { "one head's score matrix", "seq_len", "kv_len" },
    }
    local function insert(wanted, ...)
        if wanted then
            list[#list + 1] = { ... }
        end
    end
    local is_mha <const> = record.op == "mha"
    insert(is_mha, "x", "batch", record.queries == "all" and "seq_len" or "kv_len", "d_model")
    insert(record.cross, "context", "batch", "kv_len", "kv_dim")
    insert(is_mha, "q.weight", heads_d, "d_model")
    insert(is_mha, "k.weight", groups_d, "kv_dim")
    insert(is_mha, "v.weight", groups_v, "kv_dim")
    insert(record.output_projection, "o.weight", "d_model", heads_v)
    insert(record.output_projection, "y", "batch", "seq_len", "d_model")
    insert(record.mask.padding, "key_keep", "batch", "kv_len")
    insert(record.mask.bool or record.mask.additive, "the mask", "mask_shape")
    insert(record.return_weights == "per_head", "weights", "batch", "heads", "seq_len", "kv_len")
    insert(record.return_weights == "mean", "weights", "batch", "seq_len", "kv_len")
    return list
end

-- All keys and sizes a tensor's dimensions come from, flat.
local function flatten(record, tensor)
    local names <const>, sizes <const> = {}, {}
    for index = 2, #tensor do
        local dimension <const> = tensor[index]
        for _, key in ipairs(type(dimension) == "table" and dimension or { dimension }) do
            local value <const> = record[key]
            for _, size in ipairs(type(value) == "table" and value or { value }) do
                names[#names + 1] = key
                sizes[#sizes + 1] = size
            end
        end
    end
    return names, sizes
end

local function largest_key(names, sizes)
    local best = 1
    for index = 2, #sizes do
        if sizes[index] > sizes[best] then
            best = index
        end
    end
    return names[best]
end

-- "8 x 64 (batch x d_model)"
local function describe(names, sizes)
    local labels <const> = {}
    for index, name in ipairs(names) do
        if name ~= names[index - 1] then
            labels[#labels + 1] = name
        end
    end
    return ("%s (%s)"):format(table.concat(sizes, " x "), table.concat(labels, " x "))
end

-- H·D, H·Dv, G·D, G·Dv are dimensions of tensors and loop counts of the kernel.
local function check_widths(record, report)
    for _, pair in ipairs({ { "heads", "head_dim" }, { "heads", "v_head_dim" } }) do
        local width <const> = multiply(record[pair[1]], record[pair[2]])
        if not width or width > keys.MAX_SIZE then
            report(largest_key(pair, { record[pair[1]], record[pair[2]] }),
                ("%s times %s is too wide"):format(pair[1], pair[2]),
                ("a product of at most %d"):format(keys.MAX_SIZE))
            return
        end
    end
end

-- Bytes of each tensor, and of all of them together (packed weights and workspace are such sums).
local function check_bytes(record, report)
    local total, biggest_key, biggest = 0, nil, 0
    for _, tensor in ipairs(list_tensors(record)) do
        local names <const>, sizes <const> = flatten(record, tensor)
        local bytes <const> = multiply(4, table.unpack(sizes))
        local key <const> = largest_key(names, sizes)
        if not bytes then
            report(key, ("%s of %s elements is too big"):format(tensor[1], describe(names, sizes)),
                "less than 2^63 bytes for a tensor")
            return
        elseif bytes > biggest then
            biggest, biggest_key = bytes, key
        end
        total = add(total, bytes)
    end
    if not total or total > math.maxinteger // 4 then -- room for padding to panels and alignment
        report(biggest_key, "all tensors together are too big",
            "less than 2^61 bytes for all tensors of a call")
    end
end

-- Multiply-adds, so that whoever counts FLOPs may count in 64 bits.
local function check_work(record, report)
    local b <const>, l <const>, s <const> = record.batch, record.seq_len, record.kv_len
    local qk_and_pv <const> = record.head_dim + record.v_head_dim
    local products <const> = {
        { { "batch", "heads", "seq_len", "kv_len" }, { b, record.heads, l, s }, qk_and_pv },
    }
    if record.op == "mha" then
        products[2] = { { "batch", "seq_len", "heads", "d_model" },
            { b, l, record.heads, record.d_model }, qk_and_pv }
        if record.kv_cache ~= "static" then
            local rows <const> = record.kv_cache and "seq_len" or "kv_len"
            products[3] = { { "batch", rows, "kv_heads", "kv_dim" },
                { b, record[rows], record.kv_heads, record.kv_dim }, qk_and_pv }
        end
    end
    for _, product in ipairs(products) do
        local work <const> = multiply(product[3], 16, table.unpack(product[2]))
        if not work then
            report(largest_key(product[1], product[2]),
                ("one call would take %s x %d multiply-adds"):format(
                    describe(product[1], product[2]), product[3]),
                "less than 2^59 multiply-adds for a call")
            return
        end
    end
end

-- Checks in the order of the limits; the first that fails is reported, the others follow from it.
function M.check(record)
    local problems <const> = {}
    local function report(key, message, allowed)
        problems[#problems + 1] = {
            key = key, value = record[key], message = message, allowed = allowed,
        }
    end
    for _, check in ipairs({ check_widths, check_bytes, check_work }) do
        if #problems == 0 then
            check(record, report)
        end
    end
    return problems
end

return M
