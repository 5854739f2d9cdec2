-- Draws random legal configs.
--   input:  a seed and a case number
--   output: {config = raw table for gen.config, isa = name}; the same for the same numbers, always
-- Shapes are small (a reference in double runs for every input set), odd, and cluster around the
-- edges of register tiles. Does not validate: a draw that gen.config refuses is a bug here.
local isa_data <const> = require("gen.isa")
local dims <const> = require("gen.plan.dims")
local keys <const> = require("gen.keys")
local random <const> = require("tests.fuzz.random")

local M = {}

-- Sizes on and beside the lane counts 1, 4, 8, 16 and their multiples.
local EDGES <const> = { 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 23, 24, 31, 32, 33 }
local SMALL <const> = { 1, 2, 3, 4, 5, 7, 8, 9 }
local ISAS <const> = {
    { "avx2", 38 }, { "scalar", 27 }, { "avx512", 20 }, { "neon", 15 },
}

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
    local s_new <const> = c.kv_cache == "append" and c.seq_len or c.kv_cache and 0
    local d <const> = c.head_dim or c.d_model // c.heads
    local v <const> = c.v_head_dim or d
    local s <const> = c.kv_len or c.seq_len
    local e <const>, f <const> = c.d_model or 0, c.kv_dim or c.d_model or 0
    return c.batch * (c.seq_len * c.heads * (d * e + v * e + s * (d + v))
        + (s_new or s) * (c.kv_heads or c.heads) * f * (d + v))
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
    if c.op == "mha" and not c.cross and r:chance(30) then
        -- few new tokens, any room for old ones
        c.kv_cache = r:pick({ "append", "append", "static" })
        c.seq_len = r:chance(80) and r:pick({ 1, 1, 2, 3, 4, 5 }) or c.seq_len
        c.kv_len = c.kv_cache == "append" and c.seq_len + r:pick(EDGES) - 1 or r:pick(EDGES)
    elseif c.op == "sdpa" or c.cross then
        if c.op == "sdpa" and r:chance(20) then
            c.seq_len = r:range(1, 5)
        end
        if r:chance(70) then
            c.kv_len = r:pick(EDGES)
        end
        if c.cross and r:chance(50) then
            c.kv_dim = r:pick(EDGES)
        end
    elseif r:chance(20) then
        c.queries = r:pick({ "all", "first", "last" })
        if c.queries ~= "all" and r:chance(80) then
            c.kv_len = c.seq_len
            c.seq_len = r:chance(40) and 1 or r:range(1, c.kv_len)
        end
    end
end

local function draw_masks(r, c)
    local mask <const> = {}
    local appends <const> = c.kv_cache == "append"
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
    elseif not appends and r:chance(30) then
        c.mask = "none"
    end
    local s <const> = c.kv_len or c.seq_len
    local known <const> = s == c.seq_len or c.queries -- the alignment need not be given
    if appends then
        c.causal_align = r:chance(30) and "lengths" or nil
    elseif has.causal and (not known or r:chance(60)) then
        local choices <const> = { "top_left", "bottom_right", r:range(-3, s + 1) }
        if has.lengths then
            choices[#choices + 1] = "lengths"
        end
        c.causal_align = r:pick(choices)
    end
    if has.lengths and not appends and c.queries ~= "last" and r:chance(40) then
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
                c.bias[name] = r:chance(50) and (name == "q" or c.kv_cache ~= "static")
            end
        end
    end
    if r:chance(25) then
        c.output_projection = false
    elseif type(c.bias) == "table" and r:chance(40) then
        c.bias.o = r:chance(50)
    end
end

-- Fields that share the registers: mostly a tile that fits, now and then one that the plan refuses.
local function draw_tile(r, stage, chosen, isa)
    local vectors <const> = r:range(1, 3)
    local rows <const> = (isa_data.get(isa).registers - 1) // vectors - 1
    local most <const> = { vectors = 8, rows = math.max(1, r:chance(95) and rows or rows + 2) }
    for _, field in ipairs(stage.fields) do
        if field.tile then
            chosen[field.name] = field.name == "vectors" and vectors
                or r:range(1, math.min(field.most, most[field.name]))
        end
    end
end

-- Random legal values of one stage, from the list that config checking reads; may be empty.
local function draw_stage(r, stage, isa)
    local chosen <const> = {}
    if stage.fields[1].tile and r:chance(70) then
        draw_tile(r, stage, chosen, isa)
    end
    for _, field in ipairs(stage.fields) do
        if not field.tile and r:chance(45) then
            local tried <const> = field.tried and r:chance(85) and field.tried
            chosen[field.name] = r:pick(tried or keys.plan_values(field))
        end
    end
    if stage.name == "scores" and chosen.orientation == "dims" then
        -- which has short tiles of one vector of keys
        chosen.vectors = nil
        chosen.rows = chosen.rows and math.min(chosen.rows, r:range(1, 7))
        local data <const> = isa_data.get(isa)
        if chosen.rows and chosen.rows * dims.row_registers(data.lanes) >= data.registers
            and r:chance(95) then
            chosen.rows = nil
        end
    end
    return chosen
end

-- Overrides of the plan that fit the config's stages: at least one.
local function draw_plan(r, c, isa)
    local record <const> = { op = c.op, output_projection = c.output_projection ~= false }
    repeat
        local plan <const> = {}
        for _, stage in ipairs(keys.plan_stages) do
            if keys.has_stage(stage, record) and r:chance(60) then
                local chosen <const> = draw_stage(r, stage, isa)
                plan[stage.name] = next(chosen) and chosen or nil
            end
        end
        c.plan = plan
    until next(c.plan)
end

-- Numbers of a machine with small caches: at the sizes drawn here, what the planner decides by
-- cache size is decided so nowhere else.
local function draw_target(r, c)
    c.target = {}
    for _, name in ipairs(keys.target_numbers) do
        if r:chance(60) then
            c.target[name] = name:find("^l%d") and 1 << r:range(8, 16) or r:range(1, 8)
        end
    end
    c.target = next(c.target) and c.target or nil
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
    elseif not unroll and r:chance(60) then
        c.code_budget = r:pick({ 1024, 4096, 8192 })
    end
    if r:chance(34) then
        draw_plan(r, c, isa)
    end
    if r:chance(20) then
        draw_target(r, c)
    end
    c.isa = isa
    return { config = c, isa = isa, number = case }
end

return M
