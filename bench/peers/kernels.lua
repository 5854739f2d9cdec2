-- Builds what `python3 -m bench.peers` measures and says where it is, as JSON on stdout.
--   lua5.4 bench/peers/kernels.lua DIR ISA|best COMPILERS CORE|any [SHAPE…]
-- From the root. SHAPE is an id of bench/shapes or the path of a config, CORE where to measure the
-- machine. Exit status 2 for a shape there is not, 1
-- when the measuring library cannot be built; a kernel that cannot be is part of the answer.
package.path = "./?.lua;./?/init.lua;" .. package.path

local dkjson <const> = require("dkjson")

local blas <const> = require("gen.bench.blas")
local build <const> = require("gen.bench.build")
local config <const> = require("gen.config")
local flops <const> = require("gen.bench.flops")
local fs <const> = require("gen.fs")
local host <const> = require("gen.host")
local isa <const> = require("gen.isa")
local measure <const> = require("gen.bench.measure")
local version <const> = require("gen.version")

local SHAPES <const> = "bench/shapes"

local function stop(status, format, ...)
    io.stderr:write("bench-peers: ", format:format(...), "\n")
    os.exit(status)
end

-- {id=, path=} of the named shapes, of all without names.
local function find_shapes(names)
    local shapes <const> = {}
    for _, name in ipairs(names) do
        local path <const> = name:find("[./]") and name or ("%s/%s.lua"):format(SHAPES, name)
        if not fs.is_file(path) then
            stop(2, "no shape %s; there are %s/*.lua, or give a config's path", name, SHAPES)
        end
        shapes[#shapes + 1] = { id = name:match("([^/]+)%.[^./]*$") or name, path = path }
    end
    for _, file in ipairs(#names == 0 and fs.list(SHAPES) or {}) do
        shapes[#shapes + 1] = { id = file:match("^(.*)%.lua$"), path = SHAPES .. "/" .. file }
    end
    return shapes
end

-- Wants the shape's kernels built; the shape is refused when no compiler gets one.
local function add_kernels(builder, shape, record, isa_name, compilers)
    shape.kernels = {}
    for _, compiler in ipairs(compilers) do
        local item, refusal = builder:add({ key = ("%s-%s-%s"):format(record.name, isa_name,
            compiler), record = record, isa = isa_name, compiler = compiler })
        if item then
            shape.config, shape.case = item.manifest.config, item.case.path
        end
        shape.kernels[#shape.kernels + 1] = item or { isa = isa_name, compiler = compiler,
            ok = false, message = refusal, failure = "refused" }
    end
    if not shape.config then
        shape.refused = shape.kernels[1].message
    end
end

local function load_shape(builder, shape, isa_name, compilers)
    local records, errors = config.load(shape.path)
    if not records then
        shape.refused = ("%s: %s"):format(errors[1].key or "config", errors[1].message)
        shape.work = math.huge
        return
    end
    shape.flops = flops.count(records[1])
    shape.work = shape.flops.projections + shape.flops.core
    add_kernels(builder, shape, records[1], isa_name, compilers)
end

-- What Python needs of an item.
local function kernel_data(item)
    local variant <const> = item.manifest and item.manifest.variants[1] or {}
    return { id = "attngen-" .. item.compiler, isa = item.isa, compiler = item.compiler,
        compiler_version = item.compiler_version, shared = item.shared, prefix = item.prefix,
        ok = item.ok, message = item.message, failure = item.failure or "compile",
        compile_seconds = item.compile_seconds, code_bytes = item.code_bytes,
        packed_bytes = variant.packed_bytes, workspace_bytes = variant.workspace_bytes }
end

local function split(text)
    local words <const> = {}
    for word in text:gmatch("[^,]+") do
        words[#words + 1] = word
    end
    return words
end

-- {name=, version=} of the compilers that are here.
local function find_compilers(names)
    local found <const> = {}
    for _, name in ipairs(names) do
        local compiler, message = build.find_compiler(name, host.current().arch)
        if compiler then
            found[#found + 1] = { name = name, version = compiler.version }
        else
            io.stderr:write("bench-peers: ", message, "\n")
        end
    end
    if #found == 0 then
        stop(2, "none of the compilers is here")
    end
    return found
end

local function choose_isa(wanted)
    local name <const> = wanted == "best" and host.native_isa() or wanted
    for _, known in ipairs(isa.names) do
        if known == name and host.can_run(name) then
            return name
        end
    end
    stop(2, "isa %s is unknown or does not run here", name)
end

local function check(value, message)
    return value or stop(1, "%s", message)
end

local directory <const>, compilers <const> = arg[1], find_compilers(split(arg[3]))
local isa_name <const> = choose_isa(arg[2])
local shapes <const> = find_shapes({ table.unpack(arg, 5) })
local builder <const> = build.new({ root = ".", dir = directory })
local gauge <const> = check(builder:add_runner(isa_name))
local probe <const> = check(builder:add_probe(isa_name))
local names <const> = {}
for index, compiler in ipairs(compilers) do
    names[index] = compiler.name
end
for _, shape in ipairs(shapes) do
    load_shape(builder, shape, isa_name, names)
end
table.sort(shapes, function(a, b)
    return a.work < b.work or (a.work == b.work and a.id < b.id)
end)
check(builder:run())
for _, shape in ipairs(shapes) do
    shape.work = nil
    for index, item in ipairs(shape.kernels or {}) do
        shape.kernels[index] = kernel_data(item)
    end
end
local rates <const> = check(measure.machine(probe, { cpu = tonumber(arg[4]) }))
print(dkjson.encode({ gauge = gauge, isa = isa_name, shapes = shapes, compilers = compilers,
    generator = version.VERSION, blas = { library = blas.LIBRARY,
        cores = blas.candidates(host.current()) },
    machine = { cpu = host.current().cpu, arch = host.current().arch,
        rates = { { isa = isa_name, peak_gflops = rates.peak_gflops,
            product_gflops = rates.product_gflops, load = rates.load } } } }))
