-- Keeps generated/ and the support table of README.md equal to what the generator says.
--   usage:  lua5.4 tools/generated.lua write|check     (from anywhere)
--   input:  generated/configs/*.lua, README.md
--   output: generated/*.{c,h,json} and the lines between the README's markers; with `check` nothing
--           is written, differences are listed and the exit code is 1
-- A file in generated/ that no config makes is an error too.

local root <const> = arg[0]:match("^(.*)/[^/]*/[^/]*$") or "."
package.path = ("%s/?.lua;%s/?/init.lua;%s"):format(root, root, package.path)

local cli <const> = require("gen.cli")
local config <const> = require("gen.config")
local fs <const> = require("gen.fs")
local generate <const> = require("gen.generate")

local OUTPUT <const> = fs.join(root, "generated")
local README <const> = fs.join(root, "README.md")
local BEGIN <const> = "<!-- isas: written by make generated -->\n"
local END <const> = "<!-- end of isas -->\n"

local function fail(text)
    io.stderr:write(text, "\n")
    os.exit(1)
end

-- {path=, text=} of every file the configs make.
local function generate_files()
    local files <const> = {}
    local config_dir <const> = fs.join(OUTPUT, "configs")
    for _, name in ipairs(assert(fs.list(config_dir))) do
        local records, errors = config.load(fs.join(config_dir, name), {})
        if not records then
            fail(config.format_errors(errors))
        end
        for _, record in ipairs(records) do
            for _, file in ipairs(generate.bundle(record).files) do
                files[#files + 1] = { path = fs.join(OUTPUT, file.path), text = file.text }
            end
        end
    end
    return files
end

local function readme_with_table()
    local text <const> = assert(fs.read(README))
    local _, start = text:find(BEGIN, 1, true)
    local stop <const> = text:find(END, 1, true)
    if not (start and stop) then
        fail(README .. ": the markers of the support table are gone")
    end
    return text:sub(1, start) .. cli.isa_table() .. text:sub(stop)
end

local function find_strays(files)
    local expected <const> = { configs = true, ["README.md"] = true }
    for _, file in ipairs(files) do
        local _, name = fs.split(file.path)
        expected[name] = true
    end
    local strays <const> = {}
    for _, name in ipairs(assert(fs.list(OUTPUT))) do
        if not expected[name] then
            strays[#strays + 1] = fs.join(OUTPUT, name)
        end
    end
    return strays
end

local function write(files)
    local result, message = fs.write_all(files)
    if not result then
        fail(message)
    end
    print(("generated: %d files written, %d already up to date"):format(#result.written,
        #result.unchanged))
end

local function check(files)
    local problems = 0
    for _, file in ipairs(files) do
        local text <const> = fs.read(file.path)
        if text ~= file.text then
            problems = problems + 1
            io.stderr:write(file.path, text and ": differs from what the generator writes\n"
                or ": is missing\n")
        end
    end
    if problems > 0 then
        fail(("%d of %d files are out of date: run make generated and commit the result"):format(
            problems, #files))
    end
    print(("generated: all %d files are up to date"):format(#files))
end

local VERBS <const> = { write = write, check = check }

local function main(verb)
    if not VERBS[verb] then
        io.stderr:write("usage: lua5.4 tools/generated.lua write|check\n")
        os.exit(2)
    end
    local files <const> = generate_files()
    local strays <const> = find_strays(files)
    if #strays > 0 then
        fail(table.concat(strays, "\n") .. "\nno config in generated/configs makes these: "
            .. "remove them")
    end
    files[#files + 1] = { path = README, text = readme_with_table() }
    VERBS[verb](files)
end

main(arg[1])
