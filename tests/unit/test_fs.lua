-- gen.fs: outputs appear complete or not at all, whatever goes wrong on the way.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")
local lfs <const> = require("lfs")

local fs <const> = require("gen.fs")

TestFs = {}

function TestFs:setUp()
    self.dir = assert(fs.make_temp_directory())
end

function TestFs:tearDown()
    -- Sub-directories made by the tests, then the directory itself.
    os.execute(("chmod -R u+w '%s'; rm -rf '%s'"):format(self.dir, self.dir))
end

function TestFs:path(name)
    return fs.join(self.dir, name)
end

function TestFs:put(name, text)
    local file <close> = assert(io.open(self:path(name), "wb"))
    file:write(text)
end

function TestFs:three(prefix)
    return {
        { path = self:path("a"), text = prefix .. "a" },
        { path = self:path("b"), text = prefix .. "b" },
        { path = self:path("c"), text = prefix .. "c" },
    }
end

function TestFs:test_write_and_read_back()
    local bytes <const> = "zero \0, newline \n, high \255"
    local result <const> = assert(fs.write_all({ { path = self:path("x/y/z"), text = bytes } }))
    lu.assertEquals(result.written, { self:path("x/y/z") })
    lu.assertEquals(fs.read(self:path("x/y/z")), bytes)
    lu.assertEquals(fs.list(self:path("x/y")), { "z" })
end

function TestFs:test_unchanged_file_is_not_touched()
    assert(fs.write_all(self:three("1")))
    lfs.touch(self:path("b"), 1000000000)
    local result <const> = assert(fs.write_all({
        { path = self:path("a"), text = "new" },
        { path = self:path("b"), text = "1b" },
    }))
    lu.assertEquals(result.written, { self:path("a") })
    lu.assertEquals(result.unchanged, { self:path("b") })
    lu.assertEquals(fs.modified(self:path("b")), 1000000000)
end

-- A link is replaced by rename, so writing through it would silently cut it off: refused.
function TestFs:test_symbolic_link_is_refused()
    self:put("target", "mine")
    lfs.link(self:path("target"), self:path("c"), true)
    local result, message, refused = fs.write_all(self:three("1"))
    lu.assertNil(result)
    lu.assertTrue(refused)
    lu.assertStrContains(message, self:path("c") .. ": is a symbolic link")
    lu.assertEquals(fs.list(self.dir), { "c", "target" })
    lu.assertEquals(fs.read(self:path("target")), "mine")
end

function TestFs:test_dangling_link_is_refused()
    lfs.link(self:path("nowhere"), self:path("b"), true)
    local result, message = fs.write_all(self:three("1"))
    lu.assertNil(result)
    lu.assertStrContains(message, "symbolic link")
    lu.assertEquals(fs.list(self.dir), { "b" })
end

function TestFs:test_directory_in_the_way()
    lfs.mkdir(self:path("c"))
    local result, message, refused = fs.write_all(self:three("1"))
    lu.assertNil(result)
    lu.assertTrue(refused)
    lu.assertStrContains(message, "is a directory")
    lu.assertEquals(fs.list(self.dir), { "c" })
end

function TestFs:test_read_only_file_is_refused()
    self:put("b", "precious")
    assert(os.execute("chmod 444 " .. self:path("b")))
    local result, message, refused = fs.write_all(self:three("1"))
    lu.assertNil(result)
    lu.assertTrue(refused)
    lu.assertStrContains(message, self:path("b") .. ": is read-only")
    lu.assertEquals(fs.list(self.dir), { "b" })
    lu.assertEquals(fs.read(self:path("b")), "precious")
end

function TestFs:test_read_only_directory_is_refused()
    lfs.mkdir(self:path("locked"))
    assert(os.execute("chmod 555 " .. self:path("locked")))
    local result, message, refused = fs.write_all({
        { path = self:path("a"), text = "a" },
        { path = self:path("locked/b"), text = "b" },
    })
    lu.assertNil(result)
    lu.assertTrue(refused)
    lu.assertStrContains(message, "read-only")
    lu.assertEquals(fs.list(self.dir), { "locked" })
    lu.assertEquals(fs.list(self:path("locked")), {})
end

function TestFs:test_file_where_a_directory_should_be()
    self:put("file", "x")
    local result, message, refused = fs.write_all({
        { path = self:path("new/a"), text = "a" },
        { path = self:path("file/b"), text = "b" },
    })
    lu.assertNil(result)
    lu.assertTrue(refused)
    lu.assertStrContains(message, "cannot create the directory")
    lu.assertEquals(fs.list(self.dir), { "file" })
end

-- The third rename fails: the first two files are what they were before.
function TestFs:test_failed_rename_rolls_back()
    self:put("a", "old a")
    local renames = 0
    local function failing_rename(from, to)
        if to == self:path("c") then
            return nil, "no space left", 28
        end
        renames = renames + 1
        return os.rename(from, to)
    end
    local result, message, refused = fs.write_all(self:three("1"), failing_rename)
    lu.assertNil(result)
    lu.assertFalse(refused or false)
    lu.assertStrContains(message, "c: cannot be written: no space left")
    lu.assertEquals(renames, 3) -- a, b, and a put back
    lu.assertEquals(fs.list(self.dir), { "a" })
    lu.assertEquals(fs.read(self:path("a")), "old a")
end

function TestFs:test_interrupt_leaves_nothing_behind()
    local function interrupted_rename()
        error("interrupted!", 0)
    end
    local ok, message = pcall(fs.write_all, {
        { path = self:path("deep/er/a"), text = "a" },
    }, interrupted_rename)
    lu.assertFalse(ok)
    lu.assertEquals(message, "interrupted!")
    lu.assertEquals(fs.list(self.dir), {})
end

-- An interrupt between two renames takes the first one back too.
function TestFs:test_interrupt_between_renames_rolls_back()
    self:put("a", "old a")
    local function interrupted_rename(from, to)
        if to == self:path("b") then
            error("interrupted!", 0)
        end
        return os.rename(from, to)
    end
    lu.assertFalse((pcall(fs.write_all, self:three("1"), interrupted_rename)))
    lu.assertEquals(fs.list(self.dir), { "a" })
    lu.assertEquals(fs.read(self:path("a")), "old a")
end

function TestFs:test_full_disk()
    -- A file system of 64 KiB, where mounting is allowed.
    local mount <const> = self:path("small")
    lfs.mkdir(mount)
    if not os.execute(("mount -t tmpfs -o size=64k tmpfs '%s' 2>/dev/null"):format(mount)) then
        lu.skip("cannot mount a small tmpfs here")
    end
    local result, message, refused = fs.write_all({
        { path = fs.join(mount, "a"), text = ("x"):rep(30000) },
        { path = fs.join(mount, "b"), text = ("x"):rep(60000) },
    })
    local left <const> = fs.list(mount)
    os.execute(("umount '%s'"):format(mount))
    lu.assertNil(result)
    lu.assertFalse(refused or false)
    lu.assertStrContains(message, "b: cannot be written: No space left on device")
    lu.assertEquals(left, {})
end

function TestFs:test_same_path_twice_is_refused()
    local result, message = fs.write_all({
        { path = self:path("a"), text = "1" }, { path = self:path("a"), text = "2" },
    })
    lu.assertNil(result)
    lu.assertStrContains(message, "twice")
    lu.assertEquals(fs.list(self.dir), {})
end

function TestFs:test_read_problems_are_messages()
    local text, message = fs.read(self:path("missing"))
    lu.assertNil(text)
    lu.assertStrContains(message, "missing")
    text, message = fs.read(self.dir)
    lu.assertNil(text)
    lu.assertStrContains(message, "is a directory")
    self:put("empty", "")
    lu.assertEquals(fs.read(self:path("empty")), "")
    lu.assertEquals(fs.read(self:path("empty"), 8), "")
end

function TestFs:test_paths()
    lu.assertEquals({ fs.split("a/b/c.h") }, { "a/b", "c.h" })
    lu.assertEquals({ fs.split("c.h") }, { ".", "c.h" })
    lu.assertEquals({ fs.split("/c.h") }, { "/", "c.h" })
    lu.assertEquals(fs.join(".", "x"), "x")
    lu.assertEquals(fs.join("/", "x"), "/x")
    lu.assertEquals(fs.join("a/", "x"), "a/x")
end

function TestFs:test_temp_directory_is_private_and_goes_away()
    local dir <const> = assert(fs.make_temp_directory())
    lu.assertEquals(lfs.attributes(dir, "permissions"), "rwx------")
    fs.write_all({ { path = fs.join(dir, "x"), text = "x" } })
    fs.remove_temp_directory(dir)
    lu.assertNil(fs.kind(dir))
    lu.assertError(fs.remove_temp_directory, self:path("a"))
    lu.assertError(fs.remove_temp_directory, dir)
end

-- Whatever ends the process that made it, and whatever is in it by then.
function TestFs:test_temp_directory_goes_away_with_its_process()
    lfs.mkdir(self:path("base"))
    for _, last in ipairs({ "kill -TERM $PPID", "kill -HUP $PPID", "kill -KILL $PPID", "true" }) do
        self:put("make.lua", ([[
            local fs <const> = require("gen.fs")
            local dir <const> = assert(fs.make_temp_directory())
            fs.write_all({ { path = dir .. "/deep/x", text = "x" } })
            os.execute("%s")]]):format(last))
        os.execute(("TMPDIR='%s/base' lua5.4 '%s' 2>/dev/null"):format(self.dir,
            self:path("make.lua")))
        local left
        for _ = 1, 50 do
            left = fs.list(self:path("base"))
            if #left == 0 then
                break
            end
            os.execute("sleep 0.1")
        end
        lu.assertEquals(left, {}, last)
    end
end

-- Of another process: one process never refuses itself. Killed, it leaves a child, but no lock.
function TestFs:test_a_directory_is_for_one_process_which_may_be_killed()
    local dir <const> = self:path("work/deep")
    self:put("hold.lua", [[
        package.path = "./?.lua;" .. package.path
        assert(require("gen.fs").lock_directory(arg[1]))
        os.execute("touch " .. arg[1] .. "/held; sleep 4")]])
    local pipe <close> = assert(io.popen(
        ("lua5.4 '%s' '%s' </dev/null >/dev/null & echo $!"):format(self:path("hold.lua"), dir)))
    for _ = 1, 500 do
        if fs.kind(dir .. "/held") then
            break
        end
        os.execute("sleep 0.02")
    end
    local ok, message = fs.lock_directory(dir)
    os.execute("kill -KILL " .. pipe:read("l"))
    lu.assertNil(ok)
    lu.assertStrContains(message, dir)
    lu.assertStrContains(message, "--work")
    -- a signal takes a moment to arrive; the child sleeps on
    for _ = 1, 50 do
        ok, message = fs.lock_directory(dir)
        if ok then
            break
        end
        os.execute("sleep 0.02")
    end
    lu.assertTrue(ok, message)
    lu.assertTrue(fs.lock_directory(dir)) -- its own
    ok, message = fs.lock_directory(self:path("hold.lua"))
    lu.assertNil(ok)
    lu.assertStrContains(message, "hold.lua")
end

if arg and arg[0] and arg[0]:find("test_fs%.lua$") then
    os.exit(lu.LuaUnit.run())
end
