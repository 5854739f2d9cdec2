-- `attngen run`: emits one variant into a temporary directory, compiles it with the manifest's own
-- flags, and hands the shared object to the runtime's attn_run program, through an emulator when
-- the ISA is another machine's.
--   input:  a job (see execute)
--   output: the result file, written by attn_run; or nil, message, and true for bad usage
-- Reads of the tensors only the shape of a mask.

local fs <const> = require("gen.fs")
local process <const> = require("gen.process")
local safetensors <const> = require("gen.safetensors")
local toolchain <const> = require("gen.toolchain")

local M = {}

M.STEPS = 3 -- emit, compile, run

-- The first ISA of the record that runs here, natively if any does.
local function choose_isa(record)
    local emulated, reasons = nil, {}
    for _, name in ipairs(record.isa) do
        local how, reason = toolchain.how_to_run(name)
        if how == "native" then
            return name
        elseif how == "emulated" then
            emulated = emulated or name
        else
            reasons[#reasons + 1] = ("%s: %s"):format(name, reason)
        end
    end
    if emulated then
        return emulated
    end
    return nil, "this machine cannot run the kernel: " .. table.concat(reasons, "; ")
end

-- {S}, {L,S}, … -> {1,1,L,S}
local function align_right(shape)
    local full <const> = {}
    for _ = 1, 4 - #shape do
        full[#full + 1] = 1
    end
    return table.move(shape, 1, #shape, #full + 1, full)
end

-- True for {B,1,L,S}, what a config without mask_shape gets.
local function has_default_mask_shape(record)
    local shape <const> = record.mask_shape
    return shape ~= nil and shape[1] == record.batch and shape[2] == 1
        and shape[3] == record.seq_len and shape[4] == record.kv_len
end

-- The mask tensor of the inputs gives mask_shape where the config leaves it at its default.
local function adopt_mask_shape(record, inputs)
    local name <const> = record.mask.bool and "mask_keep" or "mask_add"
    local tensors, message = safetensors.read_header(inputs)
    if not tensors then
        return nil, message
    end
    local tensor <const> = tensors[name]
    if not tensor then
        return nil, ("%s: no tensor %s, which the mask needs"):format(inputs, name)
    end
    local limits <const> = { record.batch, record.heads, record.seq_len, record.kv_len }
    local shape <const> = #tensor.shape <= 4 and align_right(tensor.shape) or {}
    local fits = #shape == 4
    for axis = 1, #shape do
        fits = fits and (shape[axis] == limits[axis] or (axis < 4 and shape[axis] == 1))
    end
    if not fits then
        return nil, ("%s: %s is [%s], which does not broadcast to [B,H,L,S] = [%s]"):format(inputs,
            name, table.concat(tensor.shape, ","), table.concat(limits, ","))
    end
    record.mask_shape = shape
    return true
end

local function write_bundle(bundle, dir)
    local files <const> = {}
    for index, file in ipairs(bundle.files) do
        files[index] = { path = fs.join(dir, file.path), text = file.text }
    end
    return fs.write_all(files)
end

-- The command line of attn_run, whose own temporary directory goes away with ours.
local function runner_words(job, runner, dir, shared, variant)
    local words <const> = { "env", "TMPDIR=" .. dir, runner[1] }
    local function add(...)
        for _, word in ipairs({ ... }) do
            words[#words + 1] = tostring(word)
        end
    end
    add(table.unpack(runner, 2))
    add(shared, variant.prefix)
    for _, option in ipairs({ "weights", "inputs", "output", "threads", "family", "layer" }) do
        if job[option] then
            add("--" .. option, job[option])
        end
    end
    return words
end

local function execute_in(dir, job, record)
    job.step("emit " .. record.name)
    local bundle <const> = job.bundle(record)
    local variant <const> = bundle.manifest.variants[1]
    local ok, message = write_bundle(bundle, dir)
    if not ok then
        return nil, message
    end

    job.step(("compile for %s"):format(variant.isa))
    local arch <const> = toolchain.arch_of(variant.isa)
    local compiler, emulator, shared, runner
    compiler, message = toolchain.find_compiler(arch)
    if not compiler then
        return nil, message
    end
    emulator, message = toolchain.find_emulator(arch)
    if not emulator then
        return nil, message
    end
    shared, message = toolchain.build_shared(compiler, bundle.manifest, dir)
    if not shared then
        return nil, message
    end
    runner, message = toolchain.find_runner(compiler, emulator, job.root)
    if not runner then
        return nil, message
    end

    job.step("run")
    local status, text = process.capture(runner_words(job, runner, dir, shared, variant),
        { merge = true })
    -- Each of its lines starts with its name, which the user did not call.
    text = ("\n" .. text):gsub("\nattn_run: ", "\n"):gsub("^%s+", ""):gsub("%s+$", "")
    if status ~= 0 then
        return nil, text ~= "" and text or ("the run failed with status %d"):format(status)
    elseif text ~= "" then
        job.note(text)
    end
    return true
end

-- The families are a table of attn_run.
local function check_family(job)
    local attn_run, message = toolchain.find_attn_run(job.root)
    if not attn_run then
        return nil, message
    end
    local _, text = process.capture({ attn_run, "--family", "list" })
    local names <const> = {}
    for name in text:gmatch("[^\n]+") do
        if name == job.family then
            return true
        end
        names[#names + 1] = name
    end
    return nil, ('--family: there is no family "%s" (allowed: %s)'):format(job.family,
        table.concat(names, ", ")), true
end

local function check_job(job)
    local record <const> = job.record
    if record.op == "mha" and not job.weights then
        return nil, 'run needs --weights: op "mha" has projections', true
    end
    for _, option in ipairs({ "weights", "family", "layer" }) do
        if record.op == "sdpa" and job[option] then
            return nil, ('op "sdpa" has no weights: leave --%s out'):format(option), true
        end
    end
    for _, path in ipairs({ job.inputs, job.weights }) do
        local start, message = fs.read(path, 1)
        if not start then
            return nil, message
        end
    end
    local problem <const> = fs.refuse_outputs({ job.output },
        { job.config, job.inputs, job.weights })
    if problem then
        return nil, problem, true
    end
    if job.family then
        return check_family(job)
    end
    return true
end

-- job: record, config (its path), weights, inputs, output, threads, family, layer, root (of
-- attngen's own files), step(label), note(text), bundle(record).
function M.execute(job)
    local ok, message, bad_usage = check_job(job)
    if not ok then
        return nil, message, bad_usage
    end
    local record <const> = job.record
    local isa_name
    isa_name, message = choose_isa(record)
    if not isa_name then
        return nil, message
    end
    record.isa = { isa_name }
    if has_default_mask_shape(record) then
        ok, message = adopt_mask_shape(record, job.inputs)
        if not ok then
            return nil, message
        end
    end
    local dir
    dir, message = fs.make_temp_directory()
    if not dir then
        return nil, message
    end
    local finished
    finished, ok, message = xpcall(execute_in, function(problem)
        return type(problem) == "table" and problem
            or { traceback = debug.traceback(tostring(problem), 2) }
    end, dir, job, record)
    fs.remove_temp_directory(dir)
    if not finished then
        error(ok, 0)
    end
    return ok, message
end

return M
