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

local function command_line(words)
    local quoted <const> = {}
    for index, word in ipairs(words) do
        quoted[index] = M.quote(word)
    end
    local line <const> = table.concat(quoted, " ")
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

return M
