-- Keeps generated/, and in README.md the support table, the excerpt and the benchmark tables, equal
-- to what the generator and the recorded figures say.
--   usage:  lua5.4 tools/generated.lua write|check     (from anywhere)
--   input:  generated/configs/*.lua, docs/benchmarks/*.json, README.md
--   output: generated/*.{c,h,json}, docs/benchmarks/*.html and the lines between the README's
--           markers; with `check` nothing is written, differences are listed and the exit status
--           is 1
-- A file in generated/ that no config makes is an error too.

local root <const> = arg[0]:match("^(.*)/[^/]*/[^/]*$") or "."
package.path = ("%s/?.lua;%s/?/init.lua;%s"):format(root, root, package.path)

local dkjson <const> = require("dkjson")

local bench_page <const> = require("gen.bench.html")
local bench_tables <const> = require("gen.bench.readme")
local cli <const> = require("gen.cli")
local config <const> = require("gen.config")
local fs <const> = require("gen.fs")
local generate <const> = require("gen.generate")

local OUTPUT <const> = fs.join(root, "generated")
local README <const> = fs.join(root, "README.md")
local BENCHMARKS <const> = "docs/benchmarks" -- as the README links to it

-- The functions the README shows, all of one generated file.
local EXCERPT <const> = { file = "grouped_sdpa_avx2.c",
    functions = { "attend_8", "phase_attention" } }

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

-- The text of a static function with the comment above it.
local function find_function(text, name)
    local start <const> = text:find("\nstatic [%w ]+ " .. name .. "%(")
    if not start then
        fail(("%s: no function %s for the README's excerpt"):format(EXCERPT.file, name))
    end
    local comment = start
    while comment > 1 and text:sub(comment - 1, comment) ~= "\n\n" do
        comment = comment - 1
    end
    local _, stop = text:find("\n}\n", start, true)
    return text:sub(comment + 1, stop)
end

local function excerpt(files)
    for _, file in ipairs(files) do
        local _, name = fs.split(file.path)
        if name == EXCERPT.file then
            local parts <const> = {}
            for index, func in ipairs(EXCERPT.functions) do
                parts[index] = find_function(file.text, func)
            end
            return "```c\n" .. table.concat(parts, "\n") .. "```\n"
        end
    end
    fail("no config makes " .. EXCERPT.file .. ", which the README quotes")
end

-- `text` with what stands between the two markers of `name` replaced.
local function replace_section(text, name, content)
    local begin_mark <const> = ("<!-- %s: written by make generated -->\n"):format(name)
    local end_mark <const> = ("<!-- end of %s -->\n"):format(name)
    local _, start = text:find(begin_mark, 1, true)
    local stop <const> = text:find(end_mark, 1, true)
    if not (start and stop) then
        fail(("%s: the markers of %s are gone"):format(README, name))
    end
    return text:sub(1, start) .. content .. text:sub(stop)
end

-- {document=, link=} of every machine, and their pages.
local function load_benchmarks()
    local list <const>, pages <const> = {}, {}
    local skeleton <const> = assert(fs.read(fs.join(root, "templates/bench.html.in")))
    for _, name in ipairs(fs.list(fs.join(root, BENCHMARKS)) or {}) do
        local stem <const> = name:match("^(.*)%.json$")
        local path <const> = fs.join(root, fs.join(BENCHMARKS, name))
        if stem then
            local document <const>, _, problem = dkjson.decode(assert(fs.read(path)))
            if not document or document.settings.short then
                fail(path .. ": " .. (problem or "from a short run, whose figures mean nothing"))
            end
            list[#list + 1] = { document = document, link = BENCHMARKS .. "/" .. stem .. ".html" }
            pages[#pages + 1] = { path = path:gsub("%.json$", ".html"),
                text = bench_page.render(document, skeleton) }
        end
    end
    return list, pages
end

local function readme_text(files, benchmarks)
    local text = replace_section(assert(fs.read(README)), "isas", cli.isa_table())
    text = replace_section(text, "benchmarks", bench_tables.tables(benchmarks))
    return replace_section(text, "excerpt", excerpt(files))
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
    local benchmarks <const>, pages <const> = load_benchmarks()
    files[#files + 1] = { path = README, text = readme_text(files, benchmarks) }
    table.move(pages, 1, #pages, #files + 1, files)
    VERBS[verb](files)
end

main(arg[1])
