-- Builds kernels, and the program that measures them (bench/probe.c), with ninja.
--   input:  records, each for one ISA and one compiler; a directory that is ours
--   output: per kernel a shared object (or a program with the kernel inside, for an emulator or a
--           board), the compiler's seconds, the bytes of code; or why there is none
-- A kernel that cannot be generated or compiled is a result, not an error. Measures nothing
-- (gen.bench.measure does).

local fs <const> = require("gen.fs")
local generate <const> = require("gen.generate")
local host <const> = require("gen.host")
local isa <const> = require("gen.isa")
local manifest <const> = require("gen.manifest")
local process <const> = require("gen.process")
local toolchain <const> = require("gen.toolchain")

-- The tests' own description of a case: the judge of the tests judges here too.
local case_text <const> = require("tests.harness.case_text")

local M = {}

local Builder <const> = {}
Builder.__index = Builder

-- What every probe is made of, beside its subject. machine.c and blas_softmax.c have flags of their
-- own.
local PROBE_SOURCES <const> = { "bench/probe.c", "bench/samples.c", "bench/subject.c",
    "bench/truth.c", "tests/fuzz/inputs.c", "tests/reference/ref_case.c",
    "tests/reference/reference.c" }
local LIBRARY_SOURCES <const> = { "bench/subject_library.c", "bench/blas_layer.c" }
local LINKED_SOURCE <const> = "bench/subject_linked.c"

-- Inputs have the same bits on every machine: the answer may come from another one.
local PROBE_FLAGS <const> = { "-std=c11", "-O2", "-D_GNU_SOURCE", "-ffp-contract=off" }
-- Vectors only where the source has them, and each a * b + c one instruction.
local MACHINE_FLAGS <const> = { "-std=c11", "-O3", "-ffp-contract=fast", "-fno-tree-vectorize",
    "-fno-tree-slp-vectorize" }
local SOFTMAX_FLAGS <const> = { "-std=c11", "-O3", "-march=native", "-ffast-math" }

-- The kernel's rule never leaves an old object behind a failure, keeps what the compiler said and
-- the seconds it took.
local RULES <const> = [[
rule cc
  command = $cc $flags -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = $cc -o $out $in $libs
rule kernel
  command = rm -f $out; $
      $limit $cc $flags -MMD -MF $out.d -c $in -o $out >$out.log 2>&1; status=$$?; $
      times >$out.times; test $$status = 0 && $size -A $out >$out.size; exit $$status
  depfile = $out.d
  deps = gcc
rule shared
  command = $cc -shared -Wl,-Bsymbolic -o $out $in
rule linked
  command = $cc $flags -static -o $out $in -lm

]]

-- options: root (attngen's own files), dir (where to build), jobs (one a core), compile_timeout
-- (seconds, none), limiter (seconds -> words that stop a compiler then), capture (process.capture,
-- or what takes its place).
function M.new(options)
    return setmetatable({ root = options.root, dir = options.dir,
        jobs = options.jobs or host.processors(),
        compile_timeout = options.compile_timeout,
        limiter = options.limiter or function(seconds)
            return { "timeout", "-k", "1", seconds }
        end,
        capture = options.capture or process.capture, files = {}, edges = {}, made = {}, items = {},
        probes = {} }, Builder)
end

local function quote_all(words)
    local quoted <const> = {}
    for index, word in ipairs(words) do
        quoted[index] = process.quote(word)
    end
    return (table.concat(quoted, " "):gsub("%$", "$$"))
end

local function extend(...)
    local all <const> = {}
    for _, list in ipairs({ ... }) do
        table.move(list, 1, #list, #all + 1, all)
    end
    return all
end

-- Paths in a ninja file.
local function escape(path)
    return (path:gsub("[$ :]", "$%0"))
end

local function escape_all(paths)
    local escaped <const> = {}
    for index, path in ipairs(paths) do
        escaped[index] = escape(path)
    end
    return table.concat(escaped, " ")
end

-- One edge; asking for the same output again changes nothing. Returns the output.
function Builder:edge(rule, output, inputs, variables)
    if self.made[output] then
        return output
    end
    self.made[output] = true
    local lines <const> = { ("build %s: %s %s"):format(escape(output), rule, escape_all(inputs)) }
    for _, pair in ipairs(variables) do
        lines[#lines + 1] = ("  %s = %s"):format(pair[1], pair[2])
    end
    self.edges[#self.edges + 1] = table.concat(lines, "\n") .. "\n"
    return output
end

function Builder:source(name)
    return fs.join(self.root, name)
end

function Builder:includes()
    return { "-I", self:source("bench"), "-I", self:source("tests"), "-I",
        self:source("runtime/include") }
end

-- One object of a probe; its place says by which compiler, and with `kind` for which ISA.
function Builder:probe_object(source, flags, compiler, kind)
    local dir <const> = fs.join(self.dir, "probe/" .. compiler.label)
    return self:edge("cc", fs.join(dir, (kind or "any") .. "/" .. source:gsub("[/.]", "_") .. ".o"),
        { self:source(source) }, { { "cc", quote_all(compiler.words) },
            { "flags", quote_all(extend(flags, self:includes())) } })
end

-- The objects of a probe for one ISA by one compiler, without its subject.
function Builder:probe_objects(isa_name, compiler)
    local data <const> = isa.get(isa_name)
    local objects <const> = {}
    for index, source in ipairs(PROBE_SOURCES) do
        objects[index] = self:probe_object(source, PROBE_FLAGS, compiler)
    end
    objects[#objects + 1] = self:probe_object("bench/machine.c", extend(MACHINE_FLAGS, data.flags,
        { "-DLANES=" .. data.lanes, "-DREGISTERS=" .. data.registers }), compiler, isa_name)
    return objects
end

-- The path of the program that loads kernels of this ISA; this machine must run it.
function Builder:add_probe(isa_name)
    if self.probes[isa_name] then
        return self.probes[isa_name]
    end
    local compiler, message = M.default_compiler(host.current().arch)
    if not compiler then
        return nil, message
    end
    local objects <const> = self:probe_objects(isa_name, compiler)
    for _, source in ipairs(LIBRARY_SOURCES) do
        objects[#objects + 1] = self:probe_object(source, PROBE_FLAGS, compiler)
    end
    objects[#objects + 1] = self:probe_object("bench/blas_softmax.c", SOFTMAX_FLAGS, compiler)
    local program <const> = self:edge("link", fs.join(self.dir, ("probe/%s/%s/probe"):format(
        compiler.label, isa_name)), objects,
        { { "cc", quote_all(compiler.words) }, { "libs", "-ldl -lm" } })
    self.probes[isa_name] = program
    return program
end

-- The path of the shared object through which another language's process runs layers in C
-- (bench/peers/runner.c): subjects and gauge of the probe, weights and inputs from outside.
function Builder:add_runner(isa_name)
    local data <const> = isa.get(isa_name)
    local compiler, message = M.default_compiler(host.current().arch)
    if not compiler then
        return nil, message
    end
    local objects <const> = {}
    local function add(flags, kind, ...)
        for _, source in ipairs({ ... }) do
            objects[#objects + 1] = self:probe_object(source, extend(flags, { "-fPIC" }), compiler,
                kind .. "-pic")
        end
    end
    add(PROBE_FLAGS, "any", "bench/peers/runner.c", "bench/samples.c", "bench/subject.c",
        "tests/reference/ref_case.c", table.unpack(LIBRARY_SOURCES))
    add(SOFTMAX_FLAGS, "any", "bench/blas_softmax.c")
    add(extend(MACHINE_FLAGS, data.flags,
        { "-DLANES=" .. data.lanes, "-DREGISTERS=" .. data.registers }), isa_name,
        "bench/machine.c")
    return self:edge("shared", fs.join(self.dir, ("probe/%s/%s/runner.so"):format(compiler.label,
        isa_name)), objects, { { "cc", quote_all(compiler.words) } })
end

-- gcc, else clang, for an architecture.
function M.default_compiler(arch)
    local compiler, message
    for _, name in ipairs({ "gcc", "clang" }) do
        compiler, message = M.find_compiler(name, arch)
        if compiler then
            return compiler
        end
    end
    return nil, message
end

local compilers <const> = {}

-- {words=, link=, kind=, arch=, label=, name=, version=, size=} of "gcc" or "clang" for an
-- architecture.
function M.find_compiler(name, arch)
    local key <const> = name .. "-" .. arch
    if not compilers[key] then
        local found, message = toolchain.named_compiler(name, arch)
        if not found then
            return nil, message
        end
        local _, text = process.capture(extend(found.words, { "--version" }), { merge = true })
        found.name = name
        found.label = key
        found.version = text:match("^[^\n]*")
        _, text = process.capture(extend(found.words, { "-print-prog-name=size" }))
        found.size = text:match("^[^\n]+") or "size"
        compilers[key] = found
    end
    return compilers[key]
end

-- Refusals of the planner as one line.
local function try_generate(record)
    local ok <const>, bundle = xpcall(generate.bundle, function(problem)
        if type(problem) == "table" and problem.errors then
            local texts <const> = {}
            for index, item in ipairs(problem.errors) do
                texts[index] = item.key and ("%s: %s"):format(item.key, item.message)
                    or item.message
            end
            return { refused = table.concat(texts, "; ") }
        end
        return { refused = "internal error: " .. tostring(problem),
            traceback = debug.traceback(tostring(problem), 2) }
    end, record)
    if not ok then
        if bundle.refused:find(process.INTERRUPTED, 1, true) then
            error(process.INTERRUPTED, 0)
        end
        return nil, bundle.refused, bundle.traceback
    end
    return bundle
end

local function variant_of(bundle, isa_name)
    for _, variant in ipairs(bundle.manifest.variants) do
        if variant.isa == isa_name then
            return variant
        end
    end
    error("the manifest has no variant " .. isa_name)
end

function Builder:add_object(item, source, object, flags, compiler)
    local limit <const> = self.compile_timeout
        and quote_all(self.limiter(self.compile_timeout)) or ""
    item.objects[#item.objects + 1] = self:edge("kernel", object, { source }, {
        { "cc", quote_all(compiler.words) }, { "limit", limit }, { "size", compiler.size },
        { "flags", quote_all(extend(flags, { "-fPIC", "-I", item.dir })) } })
end

-- A program with the kernel inside.
function Builder:add_linked(item, variant, compiler)
    local flags <const> = extend(PROBE_FLAGS, self:includes(),
        { ("-DLINKED_KERNEL=%s_kernel"):format(variant.prefix) },
        variant.pack and { ("-DLINKED_PACK=%s_pack"):format(variant.prefix) } or {})
    local subject <const> = self:edge("cc", fs.join(item.dir, "subject.o"),
        { self:source(LINKED_SOURCE) },
        { { "cc", quote_all(compiler.words) }, { "flags", quote_all(flags) } })
    local objects <const> = extend(self:probe_objects(item.isa, compiler), { subject },
        item.objects)
    return self:edge("linked", fs.join(item.dir, item.key .. ".probe"), objects,
        { { "cc", quote_all(compiler.link) }, { "flags", "" } })
end

-- Wants one kernel built.
--   key       unique name of this build, also its directory
--   record    validated config; only the ISA is taken from the next field
--   isa, compiler ("gcc", "clang")
--   flags     compiler flags instead of the manifest's
--   linked    true: a program with the kernel inside instead of a shared object
-- Returns the item, whose fields run() fills in: ok, message, shared or program, compile_seconds,
-- code_bytes; there at once: prefix, manifest, files, case (a file), flags. Or nil and the refusal.
function Builder:add(options)
    local record <const> = {}
    for key, value in pairs(options.record) do
        record[key] = value
    end
    record.isa = { options.isa }
    local compiler, message = M.find_compiler(options.compiler, toolchain.arch_of(options.isa))
    if not compiler then
        return nil, message
    end
    local bundle, refusal, traceback = try_generate(record)
    if not bundle then
        return nil, refusal, traceback
    end
    local variant <const> = variant_of(bundle, options.isa)
    local dir <const> = fs.join(self.dir, "kernels/" .. options.key)
    local item <const> = { key = options.key, isa = options.isa, compiler = compiler.name,
        compiler_version = compiler.version, dir = dir, record = record, prefix = variant.prefix,
        manifest = bundle.manifest, files = bundle.files, objects = {}, flags = options.flags
            or variant.flags[compiler.kind] }
    for _, file in ipairs(bundle.files) do
        self.files[#self.files + 1] = { path = fs.join(dir, file.path), text = file.text }
    end
    item.case = self:add_case(record, variant.form)
    self:add_object(item, fs.join(dir, variant.kernel), fs.join(dir, "kernel.o"), item.flags,
        compiler)
    if variant.pack then
        self:add_object(item, fs.join(dir, variant.pack), fs.join(dir, "pack.o"),
            bundle.manifest.plain_flags[compiler.kind], compiler)
    end
    if options.linked then
        item.program = self:add_linked(item, variant, compiler)
    else
        item.shared = self:edge("shared", fs.join(dir, "kernel.so"), item.objects,
            { { "cc", quote_all(compiler.link) } })
        item.probe, message = self:add_probe(options.isa)
        if not item.probe then
            return nil, message
        end
    end
    self.items[#self.items + 1] = item
    return item
end

-- The file that tells a probe what a record computes, and beside it (`truth`) where the answer is
-- kept: {path=, truth=}. Its name changes with what computes the answer. form: of a variant (see
-- gen/fold.lua), which moves the tolerance.
function Builder:add_case(record, form)
    local line <const> = case_text.line(record, form) .. "\n"
    if not self.judge_text then
        local texts <const> = {}
        for index, name in ipairs({ "fuzz/inputs.c", "reference/ref_case.c",
            "reference/reference.c" }) do
            texts[index] = assert(fs.read(self:source("tests/" .. name)))
        end
        self.judge_text = manifest.hash(table.concat(texts))
    end
    local stem <const> = fs.join(self.dir, "cases/" .. manifest.hash(self.judge_text .. line))
    if not self.made[stem] then
        self.made[stem] = true
        self.files[#self.files + 1] = { path = stem .. ".case", text = line }
    end
    return { path = stem .. ".case", truth = stem .. ".truth" }
end

-- Seconds of user and system time of the compiler, from the shell's `times`: its children's line.
function M.parse_times(text)
    local line <const> = text:match("^[^\n]*\n([^\n]*)") or ""
    local total = 0.0
    for minutes, seconds in line:gmatch("(%d+)m([%d.]+)s") do
        total = total + 60 * tonumber(minutes) + tonumber(seconds)
    end
    return total
end

-- Bytes of the .text sections in what `size -A` prints.
function M.parse_size(text)
    local total = 0
    for bytes in text:gmatch("\n%.text%S*%s+(%d+)") do
        total = total + math.tointeger(tonumber(bytes))
    end
    return total
end

local function first_error(log)
    return log:match("[^\n]*error:[^\n]*") or log:match("^%s*([^\n]+)") or "no message"
end

local function finish_item(self, item)
    local output <const> = item.shared or item.program
    item.compile_seconds = 0.0
    for _, object in ipairs(item.objects) do
        if not fs.is_file(object) then
            local log <const> = fs.read(object .. ".log") or ""
            local seconds <const> = M.parse_times(fs.read(object .. ".times") or "")
            item.ok = false
            item.message = log == "" and self.compile_timeout
                and ("the compiler was stopped after %d s"):format(self.compile_timeout)
                or first_error(log)
            item.compile_seconds = item.compile_seconds + seconds
            return
        end
    end
    item.compile_seconds = M.parse_times(fs.read(item.objects[1] .. ".times") or "")
    item.code_bytes = M.parse_size(fs.read(item.objects[1] .. ".size") or "")
    item.ok = fs.is_file(output)
    item.message = not item.ok and "the linker failed" or nil
end

-- Builds everything that was added. True, or nil and a message when the probe itself or ninja is
-- at fault; what failed for one kernel is in its item.
function Builder:run()
    if not toolchain.find_program("ninja") then
        return nil, "no ninja; install it with: apt-get install ninja-build"
    end
    local path <const> = fs.join(self.dir, "build.ninja")
    local files <const> = extend(self.files, { { path = path,
        text = ("builddir = %s\n\n"):format(escape(self.dir)) .. RULES
            .. table.concat(self.edges, "\n") } })
    local done, message = fs.write_all(files)
    if not done then
        return nil, message
    end
    local status, log = self.capture({ "ninja", "-f", path, "-k", 0, "-j", self.jobs, "--quiet" },
        { merge = true })
    for _, item in ipairs(self.items) do
        finish_item(self, item)
    end
    for _, name in ipairs(isa.names) do
        local probe <const> = self.probes[name]
        if probe and not fs.is_file(probe) then
            -- Where the log goes may be as full as where the program goes.
            return nil, ("the measuring program cannot be built in %s:%s"):format(self.dir,
                log:find("%S") and "\n" .. log or (" ninja ended with status %d and said nothing; "
                    .. "is there room on that disk?"):format(status))
        end
    end
    return true
end

return M
