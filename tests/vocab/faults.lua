-- A copy of an ISA table in which every op is wrong, for the self-test of the vocabulary test.
--   input:  an ISA's data table, the vocabulary
--   output: a table and a vocabulary of faulty ops, named OP_1, OP_2, ...: each must be caught
-- Faults are made from the ISA's own texts (another op's, operands exchanged, a number changed), so
-- a new ISA needs no list.
local program <const> = require("tests.vocab.program")

local M = {}

local function swap(text, a, b)
    return (text:gsub("%$([%d])", function(n)
        return "$" .. (n == a and b or n == b and a or n)
    end))
end

-- Each: how to make the wrong op from the right table; nil where this ISA gives no such fault.
local ROUNDS <const> = {
    {
        zero = function(ops) return ops.minus_infinity end,
        minus_infinity = function(ops) return ops.zero end,
        splat = function(ops) return { text = ops.splat.text:gsub("%$1", "-$1") } end,
        load = function(ops) return { text = ops.load.text:gsub("%$1", "$1 + 1") } end,
        broadcast = function(ops) return { text = ops.broadcast.text:gsub("%$1", "$1 + 1") } end,
        store = function(ops) return { text = ops.store.text:gsub("%$1", "$1 - 1") } end,
        spread = function(ops)
            return { text = ops.spread.text:gsub("%$1", "$1 + 1"), helper = ops.spread.helper }
        end,
        zip_low = function(ops)
            return { text = swap(ops.zip_low.text, "1", "2"), helper = ops.zip_low.helper }
        end,
        zip_high = function(ops)
            return { text = swap(ops.zip_high.text, "1", "2"), helper = ops.zip_high.helper }
        end,
        join = function(ops)
            return { text = ops.join.text:gsub("%$1", "$1 + 1"), helper = ops.join.helper }
        end,
        split = function(ops)
            return { text = ops.split.text:gsub("%$1", "$1 + 1"), helper = ops.split.helper }
        end,
        load_part = function(ops) return ops.load end,
        store_part = function(ops) return ops.store end,
        add = function(ops) return ops.sub end,
        sub = function(ops) return { text = swap(ops.sub.text, "1", "2") } end,
        mul = function(ops) return ops.div end,
        div = function(ops) return { text = swap(ops.div.text, "1", "2") } end,
        fma = function(ops) return { text = swap(ops.fma.text, "1", "3") } end,
        max = function(ops)
            return { text = ops.max.text:gsub("max", "min"):gsub(">", "<") }
        end,
        ceil = function() return { text = "$1" } end,
        exp2 = function(ops) return ops.exp2_fast end,
        exp2_fast = function(ops) return ops.ceil end,
        exp2_near = function(ops) return ops.exp2_near_fast end,
        exp2_near_fast = function(ops) return ops.ceil end,
        has_high_bits = function() return { text = "0" } end,
        or_stray = function(ops)
            return { text = swap(ops.or_stray.text, "1", "2"), helper = ops.or_stray.helper }
        end,
        pair_sums = function(ops) return ops.pair_max end,
        pair_max = function(ops) return ops.pair_sums end,
        near_sums = function(ops) return ops.pair_max end,
        far_sums = function(ops) return ops.sub end,
        lanes_from = function(ops)
            return { text = ops.lanes_from.text:gsub("%$1", "$1 + 1"),
                helper = ops.lanes_from.helper }
        end,
        lanes_if = function(ops) return { text = ops.lanes_if.text:gsub("%$1", "!$1") } end,
        lanes_both = function() return { text = "$1" } end,
        lanes_allowed = function(ops)
            -- right for every number, wrong for NaN
            return { text = ops.lanes_allowed.text:gsub("_CMP_NEQ_UQ", "_CMP_NEQ_OQ")
                :gsub("!=", ">"):gsub("vmvnq_u32%(vceqq_f32", "(vcgtq_f32"),
                helper = ops.lanes_allowed.helper }
        end,
        lanes_above = function(ops) return { text = swap(ops.lanes_above.text, "1", "2") } end,
        has_above = function(ops) return { text = swap(ops.has_above.text, "1", "2") } end,
        select = function(ops) return { text = swap(ops.select.text, "2", "3") } end,
        has_nan = function() return { text = "0" } end,
        has_nan_part = function(ops) return ops.has_nan end,
        prefetch = function() return { text = "*($1) = 0.0f" } end,
        prefetch_soon = function() return { text = "*($1) = 0.0f" } end,
        prefetch_write = function() return { text = "*($1) = 0.0f" } end,
    },
    {
        zip_low = function(ops) return ops.zip_high end,
        zip_high = function(ops) return ops.zip_low end,
        join = function(ops)
            return { text = ops.join.text:gsub("%$4", "($4 - 1)"), helper = ops.join.helper }
        end,
        split = function(ops)
            return { text = ops.split.text:gsub("%$5", "($5 - 1)"), helper = ops.split.helper }
        end,
        load_part = function(ops)
            local text <const> = ops.load_part.text
            return { text = text:gsub("%$2", "($2 - 1)"), helper = ops.load_part.helper }
        end,
        store_part = function(ops)
            local text <const> = ops.store_part.text
            return { text = text:gsub("%$3", "($3 - 1)"), helper = ops.store_part.helper }
        end,
        has_nan_part = function() return { text = "1" } end,
        -- two roundings instead of one, or one instead of two
        fma = function(ops)
            if ops.fma.meaning then return { text = "__builtin_fmaf($1, $2, $3)" } end
            local product <const> = ops.mul.text
            return { text = ops.add.text:gsub("%$1", function() return product end, 1)
                :gsub(", %$2%)$", ", $3)") }
        end,
        max = function() return { text = "$2" } end,
        pair_sums = function() return { text = "$2" } end,
        pair_max = function() return { text = "$2" } end,
        near_sums = function() return { text = "$2" } end,
        far_sums = function() return { text = "$2" } end,
        lanes_above = function(ops)
            -- right but where the operands are equal
            return { text = ops.lanes_above.text:gsub("_CMP_GT_OQ", "_CMP_GE_OQ")
                :gsub(">", ">="):gsub("vcgtq", "vcgeq") }
        end,
        has_above = function() return { text = "1" } end,
        lanes_both = function() return { text = "$2" } end,
        select = function() return { text = "$2" } end,
        prefetch = function()
            return { text = "(void)*(const volatile float *)($1)" }
        end,
        prefetch_soon = function()
            return { text = "(void)*(const volatile float *)($1)" }
        end,
        prefetch_write = function()
            return { text = "(void)*(const volatile float *)($1)" }
        end,
        has_nan = function() return { text = "1" } end,
    },
}

-- Numbers changed in helper texts: {helper, from, to, the ops that rely on it, the trial of ISAs
-- where the meaning is changed alike}.
local HELPER_FAULTS <const> = {
    { "first_lanes", "8 %- count", "7 - count", { "load_part", "store_part" } },
    { "spread", "group == 4", "group >= 2", { "spread" } },
    { "join", "src %+ first %* stride", "src + stride", { "join" } },
    { "split", "count %- first", "1", { "split" } },
    { "lanes_from", "16 %- skipped", "15 - skipped", { "lanes_from" } },
    { "lanes_from", "first < 16 %? 0xffffu << first : 0u", "0xffffu << (first & 15)",
        { "lanes_from" } },
    { "lanes_from", "first < 4 %? first : 4", "first < 4 ? first : 3", { "lanes_from" } },
    { "load_part", "count > 2", "count > 3", { "load_part" } },
    { "store_part", "count > 2", "count > 1", { "store_part" } },
    { "has_nan_part", "vcgeq_u32", "vcgtq_u32", { "has_nan_part" } },
    { "round_up", "whole < x", "whole <= x", { "ceil" } },
    { "vec_exp2", "%-142%.0f", "-141.0f", { "exp2" } },
    { "vec_exp2_near_fast", "0x1%.3a051ap%-6f", "0x1.3b051ap-6f", { "exp2_near_fast" } },
    { "vec_exp2_near", "0x1%.80011cp", "0x1.80011ep", { "exp2_near" } },
    -- a domain 16 too wide below: only weights tell
    { "or_stray", "0x1%.80011c", "0x1.80013c", { "or_stray" }, "bits" },
    { "scalar_exp2", "x <= %-142", "x <= -141", { "exp2" } },
    -- the last digits of a coefficient
    { "vec_exp2_fast", "0x1%.3a051ap%-7f", "0x1.3b051ap-7f", { "exp2_fast" } },
    { "vec_exp2_fast", "0x1%.b7f752p%-7f", "0x1.b8f752p-7f", { "exp2_fast" } },
    { "scalar_exp2_fast", "0x1%.3a051ap%-7f", "0x1.3b051ap-7f", { "exp2_fast" } },
    { "transpose_block", "%+ 2 %* dst_stride", "+ 3 * dst_stride", { "transpose_block" } },
    { "transpose_block", "src %+ 4,", "src + 3,", { "transpose_block" } },
    { "regroup_block", "src %+ 1 %* src_stride", "src + 2 * src_stride", { "regroup_block" } },
    { "regroup_block", "src %+ src_stride", "src + 2 * src_stride", { "regroup_block" } },
    { "transpose_block", "%*dst = %*src", "*dst = -*src", { "transpose_block" } },
}

local function copy_table(source)
    local copy <const> = {}
    for key, value in pairs(source) do copy[key] = value end
    return copy
end

-- Ops that do nothing on this ISA, so that nothing can be wrong with them: one lane has no part and
-- no group.
local UNUSED <const> = { spread = true, zip_low = true, zip_high = true, join = true, split = true,
    regroup_block = true }
function M.is_unused(data, op)
    return data.lanes == 1 and (UNUSED[op] or op:find("_part$") ~= nil)
end

-- The vocabulary and the ISA with nothing but faults, and the list of their names.
function M.plant(data, vocabulary)
    local faulty <const>, words <const>, names <const> = copy_table(data), {}, {}
    faulty.ops, faulty.helpers = {}, copy_table(data.helpers)
    local count <const> = {}
    local function add(op, text, helper, meaning)
        assert(text ~= data.ops[op].text, "no fault planted in " .. op)
        count[op] = (count[op] or 0) + 1
        local name <const> = ("%s_%d"):format(op, count[op])
        faulty.ops[name] = { text = text, helper = helper,
            meaning = meaning or data.ops[op].meaning }
        words[name] = vocabulary[op]
        names[#names + 1] = name
    end
    for _, round in ipairs(ROUNDS) do
        for op, make in pairs(round) do
            if not M.is_unused(data, op) then
                local wrong <const> = make(data.ops)
                add(op, wrong.text, wrong.helper)
            end
        end
    end
    for _, fault in ipairs(HELPER_FAULTS) do
        local helper <const>, ops <const>, trial <const> = fault[1], fault[4], fault[5]
        local right <const> = (not trial or trial == data.trial) and data.helpers[helper]
        local text <const>, found = (right and right.text or ""):gsub(fault[2], fault[3])
        if found > 0 and ops[1]:find("_block$") then
            faulty.helpers[ops[1]] = { text = text, needs = right.needs }
            names[#names + 1] = ops[1]
        elseif found > 0 then
            local wrong <const> = "wrong_" .. helper
            faulty.helpers[wrong] = { needs = right.needs,
                text = text:gsub("%f[%w_]" .. helper .. "%(", wrong .. "(") }
            for _, op in ipairs(ops) do
                add(op, data.ops[op].text:gsub("%f[%w_]" .. helper .. "%(", wrong .. "("), wrong,
                    trial and vocabulary[op].meaning:gsub(fault[2], fault[3]))
            end
        end
    end
    if data.trial == "bits" then
        for _, op in ipairs(program.TRIAL_OPS) do faulty.ops[op] = data.ops[op] end
    end
    table.sort(names)
    return { isa = faulty, vocabulary = words, names = names }
end

return M
