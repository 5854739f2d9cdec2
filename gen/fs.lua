-- The only module of the generator that touches the disk.
--   input:  paths and texts
--   output: files that appear complete or not at all; every failure as nil, message
-- write_all is the one way outputs are written: all files of a run or none of them, each through
-- a temporary file and a rename, and only those whose content differs.
-- Does not know what the files mean.

local lfs <const> = require("lfs")
local process <const> = require("gen.process")

local M = {}

-- Failures that are about the place the user chose, not about the machine (a full disk is).
local REFUSALS <const> = {
    [1] = true, [13] = true, [17] = true, [20] = true, [21] = true, [30] = true, [36] = true,
    [40] = true, -- EPERM EACCES EEXIST ENOTDIR EISDIR EROFS ENAMETOOLONG ELOOP
}

-- "ROOT/sub/a.c" -> "ROOT/sub", "a.c"
function M.split(path)
    local dir, base = path:match("^(.*)/([^/]*)$")
    if not dir then
        return ".", path
    end
    return dir == "" and "/" or dir, base
end

function M.join(dir, name)
    if dir == "" or dir == "." then
        return name
    end
    return dir:sub(-1) == "/" and dir .. name or dir .. "/" .. name
end

-- nil, "file", "directory", "link", …; a link is not followed.
function M.kind(path)
    return (lfs.symlinkattributes(path, "mode"))
end

function M.is_directory(path)
    return lfs.attributes(path, "mode") == "directory"
end

function M.is_file(path)
    return lfs.attributes(path, "mode") == "file"
end

-- True when both paths name the same existing file.
function M.is_same(a, b)
    local one <const>, two <const> = lfs.attributes(a), lfs.attributes(b)
    return one ~= nil and two ~= nil and one.dev == two.dev and one.ino == two.ino
end

function M.modified(path)
    return (lfs.attributes(path, "modification"))
end

function M.size(path)
    return (lfs.attributes(path, "size"))
end

-- Sorted names in a directory, without "." and "..".
function M.list(dir)
    if not M.is_directory(dir) then
        return nil, dir .. ": is not a directory"
    end
    local names <const> = {}
    for name in lfs.dir(dir) do
        if name ~= "." and name ~= ".." then
            names[#names + 1] = name
        end
    end
    table.sort(names)
    return names
end

-- A message of this module without the path in front, for who names the file itself.
function M.strip_path(message, path)
    local prefix <const> = path .. ": "
    return message:sub(1, #prefix) == prefix and message:sub(#prefix + 1) or message
end

-- Whole file, or its first `limit` bytes.
function M.read(path, limit)
    if M.is_directory(path) then
        return nil, path .. ": is a directory"
    end
    local file <const>, message = io.open(path, "rb")
    if not file then
        return nil, message
    end
    local text, problem = file:read(limit or "a")
    file:close()
    if not text and problem then
        return nil, path .. ": " .. problem
    end
    return text or ""
end

-- Creates dir and its parents. Returns the list of directories made, outermost first.
function M.make_directories(dir)
    local made <const> = {}
    local prefix = dir:sub(1, 1) == "/" and "/" or ""
    for part in dir:gmatch("[^/]+") do
        prefix = prefix .. part
        if not M.is_directory(prefix) then
            local ok, message, code = lfs.mkdir(prefix)
            -- Somebody else may have made it between the look and the call.
            if not ok and not M.is_directory(prefix) then
                M.remove_directories(made)
                return nil, ("%s: cannot create the directory: %s"):format(prefix, message),
                    REFUSALS[code]
            end
            if ok then
                made[#made + 1] = prefix
            end
        end
        prefix = prefix .. "/"
    end
    return made
end

-- Removes the directories of a make_directories result that are still empty.
function M.remove_directories(made)
    for index = #made, 1, -1 do
        lfs.rmdir(made[index])
    end
end

-- Open files that hold this process's locks, by directory.
local locks <const> = {}

-- Makes `dir` and takes it for this process alone. The kernel's lock on an open file goes with its
-- holder, even one that is killed. nil, message when another one has it.
function M.lock_directory(dir)
    if locks[dir] then
        return true -- closing a second handle would give the lock back
    end
    local made, message = M.make_directories(dir)
    if not made then
        return nil, message
    end
    local path <const> = M.join(dir, "lock")
    local file
    file, message = io.open(path, "ab")
    if not file then
        return nil, message
    end
    local ok, problem = lfs.lock(file, "w")
    if not ok then
        file:close()
        return nil, ("%s: another attngen is at work in this directory (%s: %s); wait until it "
            .. "has ended, or take another directory with --work"):format(dir, path, problem)
    end
    locks[dir] = file
    return true
end

function M.rename(from, to)
    return os.rename(from, to)
end

function M.remove(path)
    return os.remove(path)
end

-- What make_temp_directory has made: handles that remove it at the end of this process.
local removals <const> = {}

-- A new private directory, under $TMPDIR or /tmp; it goes away with this process at the latest.
function M.make_temp_directory()
    local base = os.getenv("TMPDIR") or ""
    if base == "" then
        base = "/tmp"
    elseif base:sub(1, 1) ~= "/" then -- no option of any program, and a path for dlopen
        base = "./" .. base
    end
    local status, text = process.capture({ "mktemp", "-d", M.join(base, "attngen.XXXXXXXX") },
        { merge = true })
    if status ~= 0 then
        return nil, "cannot make a temporary directory: " .. text:gsub("%s+$", "")
    end
    local dir <const> = text:gsub("\n$", "")
    removals[dir] = process.at_end({ "rm", "-rf", "--", dir })
    return dir
end

-- Removes a directory made by make_temp_directory, with everything in it.
function M.remove_temp_directory(dir)
    local removal <const> = assert(removals[dir], "not a temporary directory")
    removals[dir] = nil
    for _, name in ipairs(M.list(dir) or {}) do
        os.remove(M.join(dir, name))
    end
    lfs.rmdir(dir)
    removal:close()
end

-- Nobody may write: honoured for root too, who would otherwise write through it.
function M.is_read_only(path)
    local permissions <const> = lfs.attributes(path, "permissions")
    return permissions ~= nil and not permissions:find("w", 1, true)
end

-- Why `path` cannot be an output, or nil; and its present content when it is a plain file.
function M.inspect_target(path)
    local kind <const> = M.kind(path)
    if kind == nil then
        return nil, nil
    elseif kind == "link" then
        return path .. ": is a symbolic link; remove it or choose another output directory"
    elseif kind ~= "file" then
        return ("%s: is a %s, not a plain file"):format(path, kind)
    elseif M.is_read_only(path) then
        return path .. ": is read-only"
    end
    local text, message = M.read(path)
    if not text then
        return "cannot be read: " .. message
    end
    return nil, text
end

local function write_plain(path, text)
    local file <const>, message, code = io.open(path, "wb")
    if not file then
        return nil, message:gsub("^.*: ", ""), REFUSALS[code]
    end
    local ok, problem = file:write(text)
    local closed, close_problem = file:close()
    if ok and closed then
        return true
    end
    return nil, problem or close_problem or "write failed"
end

-- Adds text to the end of a file, which is on its way to the disk when this returns: what a later
-- kill cannot take away.
function M.append(path, text)
    local file <const>, message = io.open(path, "ab")
    if not file then
        return nil, message
    end
    local ok, problem = file:write(text)
    local closed, close_problem = file:close()
    if ok and closed then
        return true
    end
    return nil, ("%s: cannot be written: %s"):format(path, problem or close_problem)
end

-- A name beside `path` that nothing else uses. The table address is unique within this process,
-- the check covers leftovers of others.
function M.temporary_name(path)
    local dir, base = M.split(path)
    local mark <const> = tostring({}):match("0x(%x+)") or "0"
    local count = 0
    local name
    repeat
        name = M.join(dir, (".%s.%s%d.tmp"):format(base, mark, count))
        count = count + 1
    until M.kind(name) == nil
    return name
end

-- Puts back what commit_items replaced. Reports nothing: the first failure is the one to show.
local function roll_back(done, rename)
    for index = #done, 1, -1 do
        local item <const> = done[index]
        if item.before == nil then
            os.remove(item.path)
        else
            local spare <const> = M.temporary_name(item.path)
            if write_plain(spare, item.before) then
                rename(spare, item.path)
            end
        end
    end
end

local function remove_temporaries(items)
    for _, item in ipairs(items) do
        if item.temporary then
            os.remove(item.temporary)
        end
    end
end

-- All temporaries first: a full disk or a read-only directory shows before any output changes.
local function stage_items(items)
    for _, item in ipairs(items) do
        local dir <const> = M.split(item.path)
        if M.is_read_only(dir) then
            return nil, dir .. ": the directory is read-only", true
        end
        item.temporary = M.temporary_name(item.path)
        local ok, message, refused = write_plain(item.temporary, item.text)
        if not ok then
            return nil, ("%s: cannot be written: %s"):format(item.path, message), refused
        end
    end
    return true
end

-- Renames, and notes in `done` what has been replaced.
local function commit_items(items, rename, done)
    for _, item in ipairs(items) do
        local ok, message, code = rename(item.temporary, item.path)
        if not ok then
            return nil, ("%s: cannot be written: %s"):format(item.path, message), REFUSALS[code]
        end
        item.temporary = nil
        done[#done + 1] = item
    end
    return true
end

local function check_targets(files)
    local changed <const>, unchanged <const>, seen <const> = {}, {}, {}
    for _, file in ipairs(files) do
        if seen[file.path] then
            return nil, file.path .. ": would be written twice"
        end
        seen[file.path] = true
        local problem, before = M.inspect_target(file.path)
        if problem then
            return nil, problem
        elseif before == file.text then
            unchanged[#unchanged + 1] = file.path
        else
            changed[#changed + 1] = { path = file.path, text = file.text, before = before }
        end
    end
    return changed, unchanged
end

-- True when both paths, in directories that exist, name the same entry.
local function is_same_entry(a, b)
    local dir_a <const>, base_a = M.split(a)
    local dir_b <const>, base_b = M.split(b)
    return base_a == base_b and M.is_same(dir_a, dir_b)
end

-- The one of `paths` that is the same file as `path`, or nil.
function M.find_same(path, paths)
    for _, one in ipairs(paths) do
        if M.is_same(path, one) then
            return one
        end
    end
end

-- Why `path` cannot become a file, tried out with one of another name; the directories made for it
-- are added to `made`.
local function try_place(path, made)
    local dir <const>, base <const> = M.split(path)
    if base == "" then
        return ("'%s': names no file"):format(path)
    end
    local new_dirs, message = M.make_directories(dir)
    if not new_dirs then
        return message
    end
    table.move(new_dirs, 1, #new_dirs, #made + 1, made)
    local item <const> = { path = path, text = "" }
    local ok
    ok, message = stage_items({ item })
    remove_temporaries({ item })
    return not ok and message or nil
end

-- Why `outputs` cannot all be written once what reads `inputs` is done, or nil: asked before long
-- work. Leaves the disk as it was.
function M.refuse_outputs(outputs, inputs)
    local made <const> = {}
    local function look()
        for index, path in ipairs(outputs) do
            local same <const> = M.find_same(path, inputs)
            local problem <const> = same and ("%s: this output would overwrite %s, which is read "
                .. "for it; choose another name"):format(path, same)
                or M.inspect_target(path) or try_place(path, made)
            if problem then
                return problem
            end
            for before = 1, index - 1 do
                if is_same_entry(path, outputs[before]) then
                    return ("%s and %s: two outputs would be one file"):format(outputs[before],
                        path)
                end
            end
        end
    end
    local ok <const>, problem = pcall(look)
    M.remove_directories(made)
    if not ok then
        error(problem, 0)
    end
    return problem
end

-- Writes every {path=, text=} of `files`, or none.
-- Returns {written = {path…}, unchanged = {path…}}; or nil, message, and true when the place is at
-- fault (a link, a directory, no permission). `rename` replaces os.rename in tests.
function M.write_all(files, rename)
    rename = rename or os.rename
    local items, unchanged = check_targets(files)
    if not items then
        return nil, unchanged, true
    end
    local made <const>, done <const> = {}, {}
    local function attempt()
        for _, item in ipairs(items) do
            local new_dirs, message, refused = M.make_directories((M.split(item.path)))
            if not new_dirs then
                return nil, message, refused
            end
            table.move(new_dirs, 1, #new_dirs, #made + 1, made)
        end
        local staged, message, refused = stage_items(items)
        if not staged then
            return nil, message, refused
        end
        return commit_items(items, rename, done)
    end
    -- pcall: an interrupt must not leave temporary files behind either.
    local finished, ok, message, refused = pcall(attempt)
    if not (finished and ok) then
        roll_back(done, rename)
        remove_temporaries(items)
        M.remove_directories(made)
    end
    if not finished then
        error(ok, 0)
    elseif not ok then
        return nil, message, refused
    end
    local written <const> = {}
    for index, item in ipairs(items) do
        written[index] = item.path
    end
    return { written = written, unchanged = unchanged }
end

return M
