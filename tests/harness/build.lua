-- Turns configs into checked shared objects.
--   input:  builds {label, record, isa, compiler, ...}
--   output: bundles and one build.ninja under build/tests/<name>, a run of ninja, and the list of
--           outputs that are missing afterwards
-- Knows compilers and flags; not what the kernels are checked for.
local fs <const> = require("gen.fs")
local generate <const> = require("gen.generate")
local process <const> = require("gen.process")

local M = {}
M.__index = M

local WARNINGS <const> = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -Wvla"

-- The bound on a stack frame: what the manifest promises for optimised code, else 64 KiB.
local function frame_flag(variant, level)
    return ("-Wframe-larger-than=%d"):format(level == "-O0" and 65536 or variant.frame_bytes)
end

-- -O0: optimising, gcc spends minutes on the instrumented straight-line code.
local SANITIZE <const> = "-O0 -fPIC -fsanitize=address,undefined -fno-sanitize-recover=all"
    .. " -fno-omit-frame-pointer"

-- A builder for build/tests/<name>; `tools` comes from tests.harness.toolset.
function M.new(name, tools)
    return setmetatable({ dir = "build/tests/" .. name, tools = tools, files = {}, edges = {},
        outputs = {}, bundles = {} }, M)
end

-- Emits the record's bundle once. Returns the bundle, or nil and {refused=text} for a plan-level
-- refusal, {crash=text} for anything else.
function M:emit(record, key)
    if self.bundles[key] then
        return self.bundles[key]
    end
    local ok <const>, bundle = xpcall(generate.bundle, function(problem)
        if type(problem) == "table" and problem.errors then
            local texts <const> = {}
            for index, item in ipairs(problem.errors) do
                texts[index] = ("%s: %s"):format(item.key, item.message)
            end
            return { refused = table.concat(texts, "; ") }
        end
        return { crash = debug.traceback(tostring(problem), 2) }
    end, record)
    if not ok then
        return nil, bundle
    end
    local dir <const> = self.dir .. "/" .. key
    for _, file in ipairs(bundle.files) do
        self.files[#self.files + 1] = { path = dir .. "/" .. file.path, text = file.text }
    end
    bundle.dir = dir
    self.bundles[key] = bundle
    return bundle
end

local function edge(self, output, inputs, command, label)
    local text <const> = { ("build %s: run %s\n"):format(output, table.concat(inputs, " ")) }
    text[2] = "  command = " .. command:gsub("%$", "$$") .. "\n"
    text[3] = "  label = " .. label .. "\n"
    self.edges[#self.edges + 1] = table.concat(text)
    self.outputs[#self.outputs + 1] = { path = output, label = label }
end

M.add_command = edge

local function joined(...)
    local words <const> = {}
    for _, list in ipairs({ ... }) do
        words[#words + 1] = type(list) == "table" and table.concat(list, " ") or list
    end
    return table.concat(words, " ")
end

-- The variant of a manifest for an ISA.
function M.variant(bundle, isa)
    for _, variant in ipairs(bundle.manifest.variants) do
        if variant.isa == isa then
            return variant
        end
    end
    error("the manifest has no variant " .. isa)
end

-- Compiles one variant of a bundle into a shared object and returns its path.
--   options.level     "-O0": appended to the pinned flags
--   options.sanitize  ASan and UBSan instead of the object checks
function M:add_kernel(bundle, isa, compiler_name, options)
    options = options or {}
    local plan <const> = self.tools.isas[isa]
    local compiler <const> = plan.compilers[compiler_name]
    local variant <const> = M.variant(bundle, isa)
    local stem <const> = ("%s/%s-%s%s%s"):format(bundle.dir, isa, compiler_name,
        options.level or "", options.sanitize and "-asan" or "")
    local object <const>, pack_object <const> = stem .. ".o", stem .. "_pack.o"
    local flags = variant.flags[compiler_name]
    if plan.runs == "simde" then
        -- The ISA flags would turn the real instructions on; -O3 of emulated text takes minutes.
        -- clang needs half as long for -O0 as for -O1, gcc longer.
        flags = joined(flags, "-mno-avx512f -mavx2 -mfma",
            compiler_name == "clang" and "-O0" or "-O1")
    end
    local extra <const> = joined(WARNINGS, plan.extra,
        (plan.runs == "simde" or options.sanitize) and ""
            or frame_flag(variant, options.level), options.level or "",
        options.sanitize and SANITIZE or "")
    local inputs <const> = { bundle.dir .. "/" .. variant.kernel }
    local pinned <const> = plan.runs ~= "simde" and not options.sanitize and not options.level
    local steps <const> = { joined(compiler.command, flags, extra, pinned and "-fstack-usage" or "",
        "-c", inputs[1], "-o", object) }
    if pinned then
        steps[2] = ("sh tests/fuzz/check_stack.sh %s.su %s %d"):format(stem, inputs[1],
            variant.frame_bytes)
    end
    local plain_build <const> = options.level == "-O0" or plan.runs == "simde"
    if not options.sanitize then
        -- Without optimisation compilers may call memcpy for a struct; nothing else is excused.
        steps[#steps + 1] = joined("sh tests/fuzz/check_object.sh", compiler.nm, compiler.size,
            object, plain_build and "memcpy memset" or "")
    end
    local objects = object
    if variant.pack then
        inputs[2] = bundle.dir .. "/" .. variant.pack
        local plain <const> = bundle.manifest.plain_flags[compiler_name]
        steps[#steps + 1] = joined(compiler.command, plain, WARNINGS, options.level or "",
            options.sanitize and SANITIZE or "", "-c", inputs[2], "-o", pack_object)
        objects = objects .. " " .. pack_object
    end
    steps[#steps + 1] = joined(compiler.link, "-shared -Wl,-Bsymbolic",
        options.sanitize and SANITIZE or "", "-o", stem .. ".so", objects, "-lm")
    edge(self, stem .. ".so", inputs, table.concat(steps, " && "), stem)
    return stem .. ".so"
end

-- Compiles without running: flags of the real ISA, or a header as C++.
function M:add_compile_only(bundle, isa, compiler_name, level)
    local compiler <const> = self.tools.host[compiler_name]
    local variant <const> = M.variant(bundle, isa)
    local output <const> = ("%s/%s-%s%s-compile.o"):format(bundle.dir, isa, compiler_name, level)
    local source <const> = bundle.dir .. "/" .. variant.kernel
    local compile <const> = joined(compiler.command, variant.flags[compiler_name], WARNINGS,
        frame_flag(variant, level), level, "-c", source, "-o", output)
    local check <const> = joined("sh tests/fuzz/check_object.sh", compiler.nm, compiler.size,
        output, level == "-O0" and "memcpy memset" or "")
    edge(self, output, { source }, compile .. " && " .. check, output)
end

function M:add_header_cpp(bundle, header)
    local path <const> = bundle.dir .. "/" .. header
    local source <const>, output <const> = path .. ".cpp", path .. ".cpp.o"
    self.files[#self.files + 1] = { path = source,
        text = ('#include "%s"\n#include "%s"\n'):format(header, header) }
    for _, compiler in ipairs({ "g++", "clang++" }) do
        if self.tools.host[compiler == "g++" and "gcc" or "clang"] then
            edge(self, output .. "." .. compiler, { source, path },
                joined(compiler, "-std=c++14", WARNINGS, "-c", source, "-o",
                    output .. "." .. compiler), output)
        end
    end
end

-- What ninja said about each failed output: "FAILED: [code=1] PATH", the command, its messages.
local function split_log(log)
    local texts <const> = {}
    local path
    for line in log:gmatch("[^\n]*") do
        local failed <const> = line:match("^FAILED: .-(%S+)%s*$")
        if failed then
            path = failed
            texts[path] = ""
        elseif line:find("^%[%d+/%d+%]") or line:find("^ninja: ") then
            path = nil
        elseif path and #texts[path] < 4000 then
            texts[path] = texts[path] .. line .. "\n"
        end
    end
    return texts
end

-- Writes everything and runs ninja. Returns the list of {path=, message=} that failed.
function M:run(jobs)
    local ninja <const> = { ("builddir = %s\n\n"):format(self.dir),
        "rule run\n  command = $command\n  description = $label\n\n",
        table.concat(self.edges, "\n") }
    local path <const> = self.dir .. "/build.ninja"
    self.files[#self.files + 1] = { path = path, text = table.concat(ninja) }
    local done <const>, message = fs.write_all(self.files)
    if not done then
        error(message)
    end
    local status <const>, log = process.capture(
        { "ninja", "-f", path, "-k", 0, "-j", jobs or 2, "--quiet" }, { merge = true })
    if status == 0 then
        return {}
    end
    local missing <const>, texts <const> = {}, split_log(log)
    for _, output in ipairs(self.outputs) do
        if texts[output.path] or not fs.is_file(output.path) then
            missing[#missing + 1] = { path = output.path,
                message = texts[output.path] or "not built, see the other failures" }
        end
    end
    if #missing == 0 then
        missing[1] = { path = path, message = log:sub(-2000) }
    end
    return missing
end

return M
