-- Draws random legal configs.
--   input:  a seed and a case number
--   output: {config = raw table for gen.config, isa = name}; the same for the same numbers, always
-- Shapes are small (a reference in double runs for every input set), odd, and cluster around the
-- edges of register tiles. Does not validate: a draw that gen.config refuses is a bug here.
local random <const> = require("tests.fuzz.random")

local M = {}

-- Sizes on and beside the lane counts 1, 4, 8, 16 and their multiples.
local EDGES <const> = { 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 23, 24, 31, 32, 33 }
local SMALL <const> = { 1, 2, 3, 4, 5, 7, 8, 9 }
local ISAS <const> = {
    { "avx2", 38 }, { "scalar", 27 }, { "avx512", 20 }, { "neon", 15 },
}

local REGISTERS <const> = { scalar = 16, avx2 = 16, avx512 = 32, neon = 32 }

local function draw_isa(r)
    local ticket = r:below(100)
    for _, entry in ipairs(ISAS) do
        ticket = ticket - entry[2]
        if ticket <= 0 then
            return entry[1]
        end
    end
end

-- Multiply-adds of one call: what an input set costs.
local function cost(c)
    local d <const> = c.head_dim or c.d_model // c.heads
    local v <const> = c.v_head_dim or d
    local s <const> = c.kv_len or c.seq_len
    local e <const>, f <const> = c.d_model or 0, c.kv_dim or c.d_model or 0
    return c.batch * (c.seq_len * c.heads * (d * e + v * e + s * (d + v))
        + s * (c.kv_heads or c.heads) * f * (d + v))
end

local function draw_shape(r, c)
    c.batch = r:pick({ 1, 1, 2, 3 })
    c.seq_len = r:pick(EDGES)
    local kv_heads <const> = r:pick({ 1, 1, 2, 3 })
    c.heads = kv_heads * r:pick({ 1, 1, 2, 3 })
    if r:chance(50) then
        c.kv_heads = kv_heads
    end
    local head_dim <const> = r:chance(70) and r:pick(SMALL) or r:pick(EDGES)
    local given = c.op == "sdpa" or r:chance(50)
    if c.op == "mha" then
        c.d_model = given and r:pick(EDGES) or c.heads * head_dim
        if c.heads * head_dim ~= c.d_model then
            given = true
        end
    end
    if given then
        c.head_dim = head_dim
    end
    if r:chance(40) then
        c.v_head_dim = r:pick(r:chance(70) and SMALL or EDGES)
    end
    c.cross = c.op == "mha" and r:chance(25) or nil
    if c.op == "sdpa" or c.cross then
        if r:chance(70) then
            c.kv_len = r:pick(EDGES)
        end
        if c.cross and r:chance(50) then
            c.kv_dim = r:pick(EDGES)
        end
    end
end

local function draw_masks(r, c)
    local mask <const> = {}
    for _, entry in ipairs({ { "causal", 40 }, { "lengths", 30 }, { "padding", 20 }, { "bool", 20 },
        { "additive", 20 } }) do
        if r:chance(entry[2]) then
            mask[#mask + 1] = entry[1]
        end
    end
    for i = #mask, 2, -1 do
        local j <const> = r:below(i)
        mask[i], mask[j] = mask[j], mask[i]
    end
    local has <const> = {}
    for _, name in ipairs(mask) do
        has[name] = true
    end
    if #mask == 1 and r:chance(50) then
        c.mask = mask[1]
    elseif #mask > 0 then
        c.mask = mask
    elseif r:chance(30) then
        c.mask = "none"
    end
    local s <const> = c.kv_len or c.seq_len
    if has.causal and (s ~= c.seq_len or r:chance(60)) then
        local choices <const> = { "top_left", "bottom_right", r:range(-3, s + 1) }
        if has.lengths then
            choices[#choices + 1] = "lengths"
        end
        c.causal_align = r:pick(choices)
    end
    if has.lengths and r:chance(40) then
        c.padded_queries = "zero"
    end
    if (has.bool or has.additive) and r:chance(70) then
        c.mask_shape = { r:pick({ 1, c.batch }), r:pick({ 1, c.heads }), r:pick({ 1, c.seq_len }),
            s }
    end
    if r:chance(50) then
        c.empty_row = r:pick({ "zero", "uniform", "nan" })
    end
end

local function draw_projection(r, c)
    if r:chance(25) then
        c.bias = false
    elseif r:chance(50) then
        c.bias = {}
        for _, name in ipairs({ "q", "k", "v" }) do
            if r:chance(60) then
                c.bias[name] = r:chance(50)
            end
        end
    end
    if r:chance(25) then
        c.output_projection = false
    elseif type(c.bias) == "table" and r:chance(40) then
        c.bias.o = r:chance(50)
    end
end

-- A tile of rows x vectors accumulators that may fit (the plan refuses what does not).
local function draw_tile(r, isa, unroll)
    local budget <const> = isa == "scalar" and 12 or REGISTERS[isa] - 4
    local vectors <const> = r:range(1, 3)
    local most_rows <const> = math.max(1, budget // vectors - 1)
    local tile <const> = { vectors = vectors, rows = r:range(1, most_rows) }
    if unroll and r:chance(40) then
        tile.unroll = r:pick({ 1, 2, 3, 4, 8 })
    end
    return tile
end

local function draw_plan(r, c, isa)
    local plan <const> = {}
    for _, stage in ipairs({ "project", "scores", "context", "output" }) do
        local applies <const> = c.op == "mha" or stage == "scores" or stage == "context"
        if applies and (stage ~= "output" or c.output_projection ~= false) and r:chance(50) then
            plan[stage] = draw_tile(r, isa, stage ~= "scores")
        end
    end
    if r:chance(50) then
        plan.fold = {}
        for _, rule in ipairs({ "scale", "k_bias", "v_bias" }) do
            if r:chance(40) then
                plan.fold[rule] = r:chance(30)
            end
        end
        if next(plan.fold) == nil then
            plan.fold = nil
        end
    end
    if next(plan) ~= nil then
        c.plan = plan
    end
end

-- Case number `case` of `seed`. limit: multiply-adds of a call, default by chance 60 000 or more.
function M.draw(seed, case)
    local r <const> = random.new(seed, case)
    local isa <const> = draw_isa(r)
    local limit = r:chance(12) and 400000 or 50000
    if isa == "neon" or isa == "avx512" then
        limit = limit // 3 -- emulated
    end
    local unroll <const> = r:chance(6) and "full" or r:chance(25) and "tiles" or nil
    if unroll == "full" then
        limit = 1500
    end
    local c
    repeat
        c = { op = r:chance(35) and "sdpa" or "mha" }
        draw_shape(r, c)
    until cost(c) <= limit
    draw_masks(r, c)
    if c.op == "mha" then
        draw_projection(r, c)
    end
    if r:chance(25) then
        c.scale = r:pick({ 1.0, 0.25, -0.5, 2.0, 0.1, 1e-3 })
    end
    if r:chance(35) then
        c.return_weights = r:pick({ "per_head", "mean" })
    end
    if r:chance(10) then
        c.accuracy = "fast"
    end
    if unroll then
        c.unroll = unroll
    end
    if unroll == "full" then
        c.code_budget = 400000
    end
    if r:chance(30) then
        draw_plan(r, c, isa)
    end
    c.isa = isa
    return { config = c, isa = isa, number = case }
end

return M
