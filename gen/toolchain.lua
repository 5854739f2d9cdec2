-- Compilers, emulators and the runtime program behind `attngen run`.
--   input:  an ISA, $CC, $PATH, a manifest's compiler flags
--   output: programs to call, objects built; everything missing is nil and one line that names
--           the Debian package to install
-- Does not know what is compiled, and prints nothing.

local fs <const> = require("gen.fs")
local host <const> = require("gen.host")
local isa <const> = require("gen.isa")
local process <const> = require("gen.process")
local version <const> = require("gen.version")

local M = {}

-- What an architecture other than this machine's needs. All names as Debian and Ubuntu have them.
local CROSS <const> = {
    aarch64 = {
        compilers = { "aarch64-linux-gnu-gcc" },
        compiler_package = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
        emulators = { "qemu-aarch64", "qemu-aarch64-static" },
        emulator_package = "qemu-user",
        sysroot = "/usr/aarch64-linux-gnu",
        sysroot_package = "libc6-dev-arm64-cross",
    },
    x86_64 = {
        compilers = { "x86_64-linux-gnu-gcc" },
        compiler_package = "gcc-x86-64-linux-gnu libc6-dev-amd64-cross",
        emulators = { "qemu-x86_64", "qemu-x86_64-static" },
        emulator_package = "qemu-user",
        sysroot = "/usr/x86_64-linux-gnu",
        sysroot_package = "libc6-dev-amd64-cross",
    },
}

local function needs_package(what, package)
    return ("%s; install it with: apt-get install %s"):format(what, package)
end

-- `command -v` would find the shell's own "true" in place of the program.
local SEARCH <const> = [[
case $1 in */*) test -f "$1" && test -x "$1" && echo "$1"; exit ;; esac
set -f
IFS=:
for dir in $PATH; do
    path=${dir:-.}/$1
    test -f "$path" && test -x "$path" && echo "$path" && exit
done
exit 1]]

-- Path of a program on $PATH (or of a path to one), nil when there is none.
function M.find_program(name)
    local status, text = process.capture({ "/bin/sh", "-c", SEARCH, "sh", name }, { quiet = true })
    return status == 0 and text:match("^[^\n]+") or nil
end

-- "a b" -> {"a", "b"}
function M.split_words(text)
    local words <const> = {}
    for word in text:gmatch("%S+") do
        words[#words + 1] = word
    end
    return words
end

local function extend(words, ...)
    local all <const> = table.move(words, 1, #words, 1, {})
    for _, more in ipairs({ ... }) do
        table.move(more, 1, #more, #all + 1, all)
    end
    return all
end

-- The architecture an ISA's programs run on; "any" is this machine's.
function M.arch_of(isa_name)
    local arch <const> = isa.get(isa_name).arch
    return arch == "any" and host.current().arch or arch
end

-- gcc or clang, and for which architecture: read from what the compiler itself predefines.
local function identify(words)
    local status, text = process.capture(
        extend(words, { "-dM", "-E", "-x", "c", "/dev/null" }), { merge = true })
    if status ~= 0 then
        return nil, ("the compiler %s does not work: %s"):format(
            table.concat(words, " "), text:match("^%s*([^\n]*)"))
    end
    local arch = "unknown"
    for name, macro in pairs(isa.arch_macros) do
        if text:find(("#define %s 1"):format(macro), 1, true) then
            arch = name
        end
    end
    local kind
    if text:find("#define __clang__ 1", 1, true) then
        kind = "clang"
    elseif text:find("#define __GNUC__ ", 1, true) then
        kind = "gcc"
    else
        return nil, ("the compiler %s is neither gcc nor clang"):format(table.concat(words, " "))
    end
    return { words = words, kind = kind, arch = arch }
end

-- The user's own compiler: $CC, else cc, gcc or clang.
local function default_compiler()
    local named <const> = M.split_words(os.getenv("CC") or "")
    if #named > 0 then
        if not M.find_program(named[1]) then
            return nil, ("CC is %s, but there is no such program"):format(named[1])
        end
        return identify(named)
    end
    for _, name in ipairs({ "cc", "gcc", "clang" }) do
        if M.find_program(name) then
            return identify({ name })
        end
    end
    return nil, needs_package("no C compiler (cc, gcc or clang)", "gcc libc6-dev")
end

-- A compiler for the architecture `wanted`: {words=, kind="gcc"|"clang", arch=}.
function M.find_compiler(wanted)
    local compiler, message = default_compiler()
    if compiler and compiler.arch == wanted then
        return compiler
    end
    local cross <const> = CROSS[wanted]
    if wanted == host.current().arch then
        if compiler then
            message = ("CC builds for %s, this machine is %s"):format(compiler.arch, wanted)
        end
        return nil, message
    elseif not cross then
        return nil, "no compiler known for " .. wanted
    end
    for _, name in ipairs(cross.compilers) do
        if M.find_program(name) then
            return identify({ name })
        end
    end
    return nil, needs_package(
        ("no compiler for %s (%s)"):format(wanted, table.concat(cross.compilers, ", ")),
        cross.compiler_package)
end

-- gcc or clang by name, for an architecture: as find_compiler, and what links with it.
function M.named_compiler(name, arch)
    local words, link = { name }, nil
    local cross <const> = arch ~= host.current().arch and CROSS[arch]
    if cross and name == "gcc" then
        words = { cross.compilers[1] }
    elseif cross then
        -- clang finds the headers of Debian's cross packages, but not their linker.
        words = { name, "--target=" .. cross.compilers[1]:gsub("%-gcc$", "") }
        link = { cross.compilers[1] }
    end
    if not M.find_program(words[1]) then
        local package <const> = cross and name == "gcc" and cross.compiler_package or name
        return nil, needs_package("no " .. words[1], package)
    end
    local compiler, message = identify(words)
    if compiler and compiler.kind ~= name then
        return nil, ("%s is really %s"):format(name, compiler.kind)
    elseif compiler and compiler.arch ~= arch then
        return nil, ("%s builds for %s, not for %s"):format(words[1], compiler.arch, arch)
    elseif compiler then
        compiler.link = link or words
    end
    return compiler, message
end

-- The words to put before a program built for `arch`: {} when it runs as it is.
function M.find_emulator(arch)
    if arch == host.current().arch then
        return {}
    end
    local cross <const> = CROSS[arch]
    if not cross then
        return nil, "no emulator known for " .. arch
    end
    for _, name in ipairs(cross.emulators) do
        if M.find_program(name) then
            if not fs.is_directory(cross.sysroot) then
                return nil, needs_package(("no C library for %s (%s)"):format(arch, cross.sysroot),
                    cross.sysroot_package)
            end
            return { name, "-L", cross.sysroot }
        end
    end
    return nil, needs_package(("no emulator for %s (%s)"):format(arch, cross.emulators[1]),
        cross.emulator_package)
end

-- How this machine runs an ISA: "native", "emulated" or nil, reason.
function M.how_to_run(isa_name)
    local data <const> = isa.get(isa_name)
    if host.can_run(isa_name) then
        return "native"
    end
    if data.arch == host.current().arch then
        local missing <const> = {}
        for _, flag in ipairs(data.cpu_test) do
            if not host.current().flags[flag] then
                missing[#missing + 1] = flag
            end
        end
        return nil, "this CPU lacks " .. table.concat(missing, ", ")
    end
    local emulator, message = M.find_emulator(data.arch)
    if not emulator then
        return nil, message
    end
    return "emulated"
end

-- True when `header` can be included with `flags`.
local function has_header(compiler, header, flags)
    local probe <const> = ("#include <%s>\n"):format(header)
    local dir, message = fs.make_temp_directory()
    if not dir then
        return nil, message
    end
    local source <const> = fs.join(dir, "probe.c")
    local ok
    ok, message = fs.write_all({ { path = source, text = probe } })
    local status
    if ok then
        status = process.capture(extend(compiler.words, flags or {}, { "-fsyntax-only", source }),
            { merge = true })
    end
    fs.remove_temp_directory(dir)
    if not ok then
        return nil, message
    end
    return status == 0
end

local function explain_failure(compiler, text, flags)
    local header <const> = text:match("fatal error:%s*'?([%w_/%.%-]+%.h)'?[: ]")
    if header and not has_header(compiler, header, flags) then
        local package = "libc6-dev"
        if header == "jansson.h" then
            package = "libjansson-dev"
        elseif compiler.arch ~= host.current().arch and CROSS[compiler.arch] then
            package = CROSS[compiler.arch].sysroot_package
        elseif header:find("intrin", 1, true) or header:find("arm_", 1, true) then
            package = compiler.kind
        end
        return needs_package(("%s does not find <%s>"):format(compiler.words[1], header), package)
    end
    local library <const> = text:match("cannot find %-l([%w_]+)")
    if library then
        return needs_package(("%s does not find lib%s"):format(compiler.words[1], library),
            library == "jansson" and "libjansson-dev" or "libc6-dev")
    end
    return ("%s failed:\n%s"):format(compiler.words[1], (text:gsub("%s+$", "")))
end

-- Runs the compiler; true, or nil and what went wrong.
function M.compile(compiler, arguments)
    local status, text = process.capture(extend(compiler.words, arguments), { merge = true })
    if status == 0 then
        return true
    end
    return nil, explain_failure(compiler, text)
end

-- A file of the checkout's build directory, or of the user's cache when attngen is installed.
function M.cache_directory(root, name)
    if fs.is_file(fs.join(root, "Makefile")) then
        local build <const> = fs.join(root, "build/" .. name)
        if fs.make_directories(build) and not fs.is_read_only(build) then
            return build
        end
    end
    local base = os.getenv("XDG_CACHE_HOME") or ""
    if base:sub(1, 1) ~= "/" then
        local home <const> = os.getenv("HOME")
        if not home then
            return nil, "HOME and XDG_CACHE_HOME are not set: no place for the runtime's programs"
        end
        base = fs.join(home, ".cache")
    end
    local dir <const> = fs.join(base, ("attngen/%s/%s"):format(version.VERSION, name))
    local made, message = fs.make_directories(dir)
    return made and dir, message
end

local function is_current(program, sources)
    local built <const> = fs.modified(program)
    if not built then
        return false
    end
    for _, source in ipairs(sources) do
        if fs.modified(source) >= built then
            return false
        end
    end
    return true
end

local function list_files(dir, pattern)
    local files <const> = {}
    for _, name in ipairs(assert(fs.list(dir))) do
        if name:find(pattern) then
            files[#files + 1] = fs.join(dir, name)
        end
    end
    return files
end

-- The sources of the programs; attn_exec's are listed beside it, since it must do without the
-- libraries the other half needs.
local function program_sources(root, program)
    local runtime <const> = fs.join(root, "runtime")
    if program == "attn_watch" then
        return { fs.join(runtime, "tools/attn_watch.c") }
    elseif program == "attn_run" then
        return extend({ fs.join(runtime, "tools/attn_run.c") },
            list_files(fs.join(runtime, "src/edge"), "%.c$"),
            list_files(fs.join(runtime, "src/host"), "%.c$"))
    end
    local sources <const> = {}
    local list <const> = assert(fs.read(fs.join(runtime, "tools/attn_exec.sources")))
    for line in list:gmatch("[^\n]+") do
        sources[#sources + 1] = fs.join(root, line)
    end
    return sources
end

local LIBRARIES <const> = {
    attn_run = { "-ljansson", "-ldl", "-pthread", "-lm" },
    attn_exec = { "-ldl", "-pthread", "-lm" },
    attn_watch = {},
}

-- A program of runtime/tools, built on first use and when its sources change; its path.
local function build_program(compiler, root, program)
    local dir, message = M.cache_directory(root, "runner")
    if not dir then
        return nil, message
    end
    local path <const> = fs.join(dir, program .. "-" .. compiler.arch)
    local sources <const> = program_sources(root, program)
    local include <const> = fs.join(root, "runtime/include")
    if is_current(path, extend(sources, list_files(fs.join(include, "attngen"), "%.h$"),
        list_files(fs.join(root, "runtime/src/host"), "%.h$"))) then
        return path
    end
    -- Two runs at the same time build twice, and the last rename wins.
    local temporary <const> = fs.temporary_name(path)
    local ok
    ok, message = M.compile(compiler, extend({ "-std=c11", "-O2", "-I", include, "-o", temporary },
        sources, LIBRARIES[program]))
    if ok then
        ok, message = fs.rename(temporary, path)
    end
    if not ok then
        fs.remove(temporary)
        return nil, message
    end
    return path
end

-- The path of attn_watch, which runs programs that may hang (gen.process.watch).
function M.find_watcher(root)
    local native <const>, message = M.find_compiler(host.current().arch)
    if not native then
        return nil, message
    end
    return build_program(native, root, "attn_watch")
end

-- The path of attn_run, a program of this machine.
function M.find_attn_run(root)
    local native <const>, message = M.find_compiler(host.current().arch)
    if not native then
        return nil, message
    end
    return build_program(native, root, "attn_run")
end

-- The words that start attn_run for a kernel built by `compiler`: this machine's program, which
-- hands a foreign kernel to attn_exec under `emulator`.
function M.find_runner(compiler, emulator, root)
    local attn_run, message = M.find_attn_run(root)
    if not attn_run then
        return nil, message
    elseif compiler.arch == host.current().arch then
        return { attn_run }
    end
    local attn_exec
    attn_exec, message = build_program(compiler, root, "attn_exec")
    if not attn_exec then
        return nil, message
    end
    local words <const> = { attn_run }
    for _, word in ipairs(extend(emulator, { attn_exec })) do
        words[#words + 1] = "--runner"
        words[#words + 1] = word
    end
    return words
end

-- Compiles the kernel and the packer of a manifest with one variant, found in `dir`, to a shared
-- object there.
function M.build_shared(compiler, manifest, dir)
    local variant <const> = manifest.variants[1]
    local objects <const> = {}
    local units <const> = {
        { file = variant.kernel, flags = variant.flags[compiler.kind] },
    }
    if variant.pack then
        units[2] = { file = variant.pack, flags = manifest.plain_flags[compiler.kind] }
    end
    for _, unit in ipairs(units) do
        local object <const> = fs.join(dir, unit.file:gsub("%.c$", ".o"))
        local ok, message = M.compile(compiler, extend(unit.flags,
            { "-fPIC", "-I", dir, "-c", fs.join(dir, unit.file), "-o", object }))
        if not ok then
            return nil, message
        end
        objects[#objects + 1] = object
    end
    local shared <const> = fs.join(dir, "kernel.so")
    local ok, message = M.compile(compiler, extend({ "-shared", "-o", shared }, objects))
    return ok and shared, message
end

return M
