-- Progress on stderr: a bar that redraws itself on a terminal, plain lines otherwise, nothing when
-- quiet. stdout stays free for data.
--   input:  the number of steps, and a label as each begins
--   output: lines on stderr

local M = {}

local BAR_WIDTH <const> = 24
local CLEAR_LINE <const> = "\r\27[K"

local Progress <const> = {}
Progress.__index = Progress

-- options: total (steps), quiet, is_terminal, stream (stderr).
function M.new(options)
    return setmetatable({
        total = options.total,
        done = 0,
        quiet = options.quiet,
        is_terminal = options.is_terminal,
        stream = options.stream or io.stderr,
    }, Progress)
end

-- Begins the next step.
function Progress:step(label)
    if self.quiet then
        return
    end
    if self.is_terminal then
        local filled <const> = BAR_WIDTH * self.done // self.total
        self.stream:write(("%s[%s%s] %d/%d %s"):format(CLEAR_LINE, ("#"):rep(filled),
            ("."):rep(BAR_WIDTH - filled), self.done, self.total, label))
        self.stream:flush()
    else
        self.stream:write(("[%d/%d] %s\n"):format(self.done + 1, self.total, label))
    end
    self.done = self.done + 1
end

-- Redraws a bar of work that has no steps: a share of it is done, and some text. Without a terminal
-- one line for every label, when it changes.
function Progress:status(share, label, text)
    if self.quiet then
        return
    elseif self.is_terminal then
        local filled <const> = math.min(BAR_WIDTH, BAR_WIDTH * share // 1 | 0)
        self.stream:write(("%s[%s%s] %s"):format(CLEAR_LINE, ("#"):rep(filled),
            ("."):rep(BAR_WIDTH - filled), text))
        self.stream:flush()
    elseif label ~= self.label then
        self.stream:write(text, "\n")
    end
    self.label = label
end

-- Takes the bar away; what was said in plain lines stays.
function Progress:finish()
    self.label = nil
    if self.is_terminal and not self.quiet then
        self.stream:write(CLEAR_LINE)
        self.stream:flush()
    end
end

return M
