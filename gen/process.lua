-- Runs other programs.
--   input:  a list of words (never a command line: every word is quoted here)
--   output: exit status, and what the program printed when asked for
-- An interrupted child raises the error that Lua itself raises on SIGINT, so callers clean up once.
-- Does not look for programs (gen.toolchain does) and does not touch files (gen.fs does).

local M = {}

M.INTERRUPTED = "interrupted!"

-- Called with every command line before it runs, when set (--verbose).
M.trace = nil

-- "it's" -> 'it'\''s'
function M.quote(word)
    return "'" .. tostring(word):gsub("'", "'\\''") .. "'"
end

local function quote_all(words)
    local quoted <const> = {}
    for index, word in ipairs(words) do
        quoted[index] = M.quote(word)
    end
    return table.concat(quoted, " ")
end

local function command_line(words)
    local line <const> = quote_all(words)
    if M.trace then
        M.trace(line)
    end
    return line
end

local function status_of(kind, code)
    if (kind == "signal" and code == 2) or (kind == "exit" and code == 130) then
        error(M.INTERRUPTED, 0)
    end
    return kind == "signal" and 128 + code or code
end

-- Runs words with the caller's stdin, stdout and stderr; returns the exit status.
function M.run(words)
    local _, kind, code = os.execute(command_line(words))
    return status_of(kind, code)
end

-- Runs words and returns exit status, text. The text is stdout, and stderr too with
-- options.merge; stderr is dropped with options.quiet. stdin is empty.
function M.capture(words, options)
    local tail = " </dev/null"
    if options and options.merge then
        tail = tail .. " 2>&1"
    elseif options and options.quiet then
        tail = tail .. " 2>/dev/null"
    end
    local pipe <close> = assert(io.popen(command_line(words) .. tail, "r"))
    local text <const> = pipe:read("a") or ""
    local _, kind, code = pipe:close()
    return status_of(kind, code), text
end

-- Runs words, unseen, when the handle that this returns is closed, or this process is gone, however
-- it ends: a shell waits for the end of a pipe, which children of run (not of capture) hold too.
function M.at_end(words)
    return assert(io.popen("exec >/dev/null 2>&1; trap '' INT TERM HUP; "
        .. "while read -r _; do :; done; exec " .. quote_all(words), "w"))
end

-- Runs words under the program `watcher` (attn_watch): killed after options.seconds, when this
-- process dies, and at an interrupt, which is noticed within a beat. Output goes to the file
-- options.output. options.beat is called ten times a second. Returns {kind = "exit" | "signal" |
-- "timeout", code=, seconds=, cpu_seconds=}.
function M.watch(watcher, words, options)
    local line <const> = { watcher, "-b" }
    if options.seconds then
        table.move({ "-t", ("%.3f"):format(options.seconds) }, 1, 2, #line + 1, line)
    end
    if options.output then
        table.move({ "-o", options.output }, 1, 2, #line + 1, line)
    end
    line[#line + 1] = "--"
    table.move(words, 1, #words, #line + 1, line)
    local last
    do
        local pipe <close> = assert(io.popen(command_line(line), "r"))
        for text in pipe:lines() do
            last = text
            if text == "." and options.beat then
                options.beat()
            end
        end
    end
    local kind, code, seconds, cpu_seconds = (last or ""):match("^(%a+) (%d+) (%S+) (%S+)$")
    if not kind then
        error("attn_watch did not say how the program ended", 0)
    elseif kind == "stopped" then
        error(M.INTERRUPTED, 0)
    end
    return { kind = kind, code = math.tointeger(tonumber(code)), seconds = tonumber(seconds),
        cpu_seconds = tonumber(cpu_seconds) }
end

return M
