-- kv_cache = "append": the new tokens' keys and values take their rows in the caller's tensors, at
-- kv_lengths[item] - seq_len and on. Rows before them are read by later stages only; rows behind
-- them are neither read nor written.
local ir <const> = require("gen.ir")

local cache <const> = {}

-- The function that copies one head's new rows for `copy`, an entry of plan.append.
local function copy_rows(phase, plan, copy)
    local lanes <const>, count <const> = plan.machine.lanes, plan.problem.seq_len
    local from_row <const>, width <const> = copy.from.row, copy.to.row
    local whole <const>, rest <const> = width // lanes, width % lanes
    return phase:share(ir.func("append_" .. copy.name,
        { ("The %d new %s of one head to their places in the cache."):format(count, copy.name) },
        { { "input", "input" }, { "output", "out" } }, function(block)
            block:each("row", count, plan.straight, function(body, row)
                local from <const> = body:pointer("pointer", "from", ir.mem("input",
                    row * from_row))
                local to <const> = body:pointer("writable", "to", ir.mem("out", row * width))
                if whole > 0 then
                    body:each("vector", whole, plan.straight, function(inner, i)
                        inner:let("vec", "value", "load", ir.offset(from, i * lanes))
                        inner:run("store", ir.offset(to, i * lanes), "value")
                    end)
                end
                if rest > 0 then
                    body:let("vec", "tail", "load_part", ir.offset(from, whole * lanes),
                        ir.index(rest))
                    body:run("store_part", ir.offset(to, whole * lanes), "tail", ir.index(rest))
                end
            end)
        end))
end

-- Appends the phase to `kernel`.
function cache.build(kernel, plan)
    local problem <const> = plan.problem
    local phase <const> = kernel:phase("append", "Cache: new keys and values take their rows")
    local heads <const> = problem.kv_heads
    local functions <const> = {}
    for i, copy in ipairs(plan.append) do functions[i] = copy_rows(phase, plan, copy) end
    local function unit(body, batch, head)
        local length <const> = body:size("length", "load_i32", ir.mem("kv_lengths", batch))
        local first <const> = body:size("first", "excess", length, ir.index(problem.seq_len))
        for i, copy in ipairs(plan.append) do
            local from <const>, to <const> = copy.from, copy.to
            body:call(functions[i], {
                input = ir.offset(kernel:place(from), batch * from.batch + head * from.head),
                out = ir.offset(kernel:place(to), batch * to.batch + head * to.head
                    + first * to.row),
            })
        end
    end
    if plan.straight then
        for batch = 0, problem.batch - 1 do
            for head = 0, heads - 1 do
                phase.body:scope(function(body) unit(body, ir.index(batch), ir.index(head)) end)
            end
        end
        return
    end
    phase.body:loop({ var = "unit", from = ir.var("part"), to = problem.batch * heads,
        step = "parts" }, function(body, index)
        local head <const> = heads == 1 and ir.index(0)
            or body:size("head", "remainder", index, ir.index(heads))
        local batch <const> = problem.batch == 1 and ir.index(0) or heads == 1 and index
            or body:size("batch", "quotient", index, ir.index(heads))
        unit(body, batch, head)
    end)
end

return cache
