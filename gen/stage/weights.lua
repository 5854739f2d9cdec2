-- Weights of one block of queries, whichever way the lanes lie: score tiles, looked at afterwards
-- and done again where a reference is out of reach. Knows the order, not how a tile works.
local ir <const> = require("gen.ir")
local softmax <const> = require("gen.stage.softmax")

local weights <const> = {}

-- Before a part's first block: references of 0 are worth a try, no logit was a stray.
function weights.trust(body, plan)
    for _, buffer in ipairs(plan.part_buffers) do
        local to <const> = ir.mem("scratch", buffer.offset)
        if buffer.name == "trust" then
            body:run("store_one", to)
        elseif buffer.name == "strays" then
            body:run("store", to, body:let("vec", "no_strays", "zero"))
        end
    end
end

-- Appends to `body` what fills the scores with the weights of the keys of ctx. build(ctx) makes the
-- functions around tiles; `stage` calls a function. use(to), if given, appends what is done with
-- the weights: with tried ones before they are looked at, so that it need not wait for their sums.
function weights.add(phase, body, ctx, build, stage, use)
    use = use or function() end
    local makers <const> = build(ctx)
    for _, fn in ipairs(makers) do phase:add(fn) end
    local out_of_reach <const> = phase:add(softmax.out_of_reach(ctx))
    local move <const> = phase:add(softmax.move(ctx))
    local function with_maxima(to, otherwise)
        for _, fn in ipairs(makers) do stage(to, fn) end
        to:when("true_", { to:ask("far", out_of_reach) }, function(again)
            again:call(move)
            for _, fn in ipairs(makers) do stage(again, fn) end
        end, otherwise)
    end
    if not ctx.plan.attention.trial then
        with_maxima(body)
        use(body)
        return
    end
    local restart <const> = phase:add(softmax.restart(ctx))
    local unproven <const> = phase:add(softmax.unproven(ctx))
    local tries <const> = build(setmetatable({ at_zero = true }, { __index = ctx }))
    for _, fn in ipairs(tries) do phase:add(fn) end
    -- in one function, compilers keep the constants of all of them on its stack
    for _, fn in ipairs(makers) do fn.apart = true end
    for _, fn in ipairs(tries) do fn.apart = not ctx.plan.attention.uses_tried end
    local trust <const> = ir.mem("trust")
    -- where it failed last, it is not tried again before a block that would have passed
    body:declare("int", "open", "byte_set", trust)
    local function try(to)
        for _, fn in ipairs(tries) do stage(to, fn) end
        use(to)
        to:set("open", "copy", to:ask("unproven", unproven))
        to:when("true_", { "open" }, function(inner)
            stage(inner, restart)
            inner:run("store_zero", trust)
        end, ctx.totals and function(inner) softmax.settled(inner, ctx) end or nil)
    end
    if ctx.totals then
        body:set("open", "and_not", "open", body:ask("moved", phase:add(softmax.moved(ctx))))
    end
    body:when("true_", { "open" }, try, function(inner) inner:set("open", "one") end)
    body:when("true_", { "open" }, function(inner)
        with_maxima(inner, function(other) softmax.trust(other, ctx) end)
        use(inner)
    end)
end

return weights
