-- The order in which candidates are tried.
--   input:  a space, a strategy, a seed; then the time of every candidate handed out
--   output: batches of candidates, until nothing is left to try
-- exhaustive: all of them, the likeliest by the planner's model first; random: all of them in an
-- order drawn from the seed; greedy: one dimension after the other, every value of it beside the
-- best candidate so far, again until a whole round changes nothing. The planner's own choice is
-- always first. The same seed and the same times give the same order, so that a resumed search
-- walks through its log. Measures nothing.
local space <const> = require("gen.tune.space")

local M = {}

M.STRATEGIES = { "greedy", "random", "exhaustive" }

local Search <const> = {}
Search.__index = Search

----------------------------------------------------------------------------------------------------
-- exhaustive: the smallest sums of model cycles, lazily
----------------------------------------------------------------------------------------------------

-- A binary heap of {cost=, order=}: equal costs leave in the order they came.
local function before(a, b)
    return a.cost < b.cost or a.cost == b.cost and a.order < b.order
end

local function push(heap, item)
    local at = #heap + 1
    heap[at] = item
    while at > 1 and before(heap[at], heap[at // 2]) do
        heap[at], heap[at // 2] = heap[at // 2], heap[at]
        at = at // 2
    end
end

local function pop(heap)
    local top <const>, last <const> = heap[1], table.remove(heap)
    if #heap > 0 then
        heap[1] = last
        local at = 1
        while true do
            local child = 2 * at
            if child < #heap and before(heap[child + 1], heap[child]) then
                child = child + 1
            end
            if child > #heap or not before(heap[child], heap[at]) then
                break
            end
            heap[at], heap[child] = heap[child], heap[at]
            at = child
        end
    end
    return top
end

local function cost_of(dimension, index)
    return math.max(0.0, dimension.values[index].cycles)
end

local function new_exhaustive(self)
    local dimensions <const> = self.space.dimensions
    local heap <const>, seen <const>, order = {}, {}, 0
    local function add(picks, cost)
        local name <const> = table.concat(picks, ",")
        if not seen[name] then
            seen[name] = true
            order = order + 1
            push(heap, { cost = cost, order = order, picks = picks })
        end
    end
    add(self:first_picks(), 0.0)
    return function()
        local top <const> = pop(heap)
        if not top then
            return nil
        end
        for index, dimension in ipairs(dimensions) do
            local pick <const> = top.picks[index]
            if pick < #dimension.values then
                local picks <const> = { table.unpack(top.picks) }
                picks[index] = pick + 1
                add(picks, top.cost - cost_of(dimension, pick) + cost_of(dimension, pick + 1))
            end
        end
        return top.picks
    end
end

----------------------------------------------------------------------------------------------------
-- random
----------------------------------------------------------------------------------------------------

-- xorshift64*: the same numbers on every machine.
local function new_random(seed)
    local state = seed * 2 + 0x9E3779B97F4A7C15 | 1
    return function(below)
        state = state ~ (state >> 12)
        state = state ~ (state << 25)
        state = state ~ (state >> 27)
        return ((state * 0x2545F4914F6CDD1D) >> 33) % below
    end
end

-- Candidates drawn one by one; when most of a small space is known, what is left in order.
local function new_drawn(self)
    local draw <const> = new_random(self.seed)
    local rest <const> = new_exhaustive(self)
    return function()
        for _ = 1, 200 do
            local picks <const> = {}
            for index, dimension in ipairs(self.space.dimensions) do
                picks[index] = draw(#dimension.values) + 1
            end
            if not self.handed_out[space.candidate(self.space, picks).key] then
                return picks
            end
        end
        return rest()
    end
end

----------------------------------------------------------------------------------------------------
-- greedy
----------------------------------------------------------------------------------------------------

-- Walks the dimensions; `unchanged` counts how many in a row have not moved the best.
local function new_greedy(self)
    local count <const> = #self.space.dimensions
    local dimension, unchanged = 0, 0
    local queue, started_from = {}, nil
    -- Without `hurry` nothing goes on from a best that the results to come may change.
    return function(hurry)
        while #queue == 0 do
            if self.waiting > 0 and not hurry then
                return "wait"
            end
            local best <const> = self.best or self.space.default
            unchanged = started_from == best.key and unchanged + 1 or 0
            if unchanged >= count then
                return self.waiting > 0 and "wait" or nil
            end
            started_from = best.key
            dimension = dimension % count + 1
            for pick in ipairs(self.space.dimensions[dimension].values) do
                if pick ~= best.picks[dimension] then
                    local picks <const> = { table.unpack(best.picks) }
                    picks[dimension] = pick
                    queue[#queue + 1] = picks
                end
            end
        end
        return table.remove(queue, 1)
    end
end

local STARTS <const> = { exhaustive = new_exhaustive, random = new_drawn, greedy = new_greedy }

----------------------------------------------------------------------------------------------------

function M.new(strategy, built_space, seed)
    local self <const> = setmetatable({ space = built_space, seed = seed, handed_out = {},
        waiting = 0 }, Search)
    self.step = STARTS[strategy](self)
    return self
end

function Search:first_picks()
    local picks <const> = {}
    for index in ipairs(self.space.dimensions) do
        picks[index] = 1
    end
    return picks
end

-- Up to `most` candidates nobody has tried; an empty list at the end of the search. All results of
-- one batch must be told before the next. A greedy search takes the next dimension as well where
-- one alone has fewer than `least`, so that no compiler idles.
function Search:next(most, least)
    local batch <const> = {}
    local function hand_out(candidate)
        if not self.handed_out[candidate.key] then
            self.handed_out[candidate.key] = true
            self.waiting = self.waiting + 1
            batch[#batch + 1] = candidate
        end
    end
    if not self.started then
        self.started = true
        hand_out(self.space.default)
        return batch
    end
    while #batch < most do
        local picks <const> = self.step(#batch < (least or 1))
        if not picks or picks == "wait" then
            break
        end
        hand_out(space.candidate(self.space, picks))
    end
    return batch
end

-- The result of a candidate; `is_best` when it is the one to go on from.
function Search:tell(candidate, is_best)
    self.waiting = self.waiting - 1
    if is_best then
        self.best = candidate
    end
end

return M
