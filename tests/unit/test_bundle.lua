-- Bundles of several variants, compiled as their users do: linked into one program, on every
-- architecture there is a compiler and an emulator for.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")
local dkjson <const> = require("dkjson")

local fs <const> = require("gen.fs")
local isa <const> = require("gen.isa")
local process <const> = require("gen.process")
local support <const> = require("tests.unit.support")
local toolchain <const> = require("gen.toolchain")

local WARNINGS <const> = { "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror" }

-- Prints the variant selected for a CPU with every feature, after packing for it and calling it.
local PROGRAM <const> = [[
#include <stdio.h>
#include "mix.h"
static _Alignas(64) unsigned char packed[1 << 16], workspace[1 << 16];
static float matrix[256], bias[16], x[80], y[80];
int main(void)
{
    const attn_kernel *kernel = mix_select(~UINT32_C(0));
    const attn_weights weights = {.q_weight = matrix, .k_weight = matrix, .v_weight = matrix,
        .o_weight = matrix, .q_bias = bias, .k_bias = bias, .v_bias = bias, .o_bias = bias};
    const attn_args args = {.x = x, .y = y};
    bias[3] = 2.0f;
    const int packing = mix_pack(kernel, &weights, packed);
    const int status = kernel->forward(packed, &args, workspace);
    printf("%s of %d: %d %d %g\n", kernel->isa, MIX_VARIANTS, packing, status, (double)y[3]);
    return 0;
}
]]

TestBundle = {}

function TestBundle:setUp()
    self.scratch = support.new_scratch()
    self.scratch:write("mix.lua", "return { seq_len = 5, d_model = 16, heads = 2 }")
    self.scratch:write("main.c", PROGRAM)
end

function TestBundle:tearDown()
    self.scratch:remove()
end

-- Compiles every file of the bundle, with the flags of the compiler's own architecture only.
function TestBundle:compile(compiler, manifest)
    local objects <const> = {}
    local function compile(file, flags)
        local words <const> = table.move(compiler.words, 1, #compiler.words, 1, {})
        local object <const> = self.scratch:path(file .. ".o")
        for _, list in ipairs({ flags, WARNINGS, { "-c", self.scratch:path(file), "-o", object } })
        do
            table.move(list, 1, #list, #words + 1, words)
        end
        local status <const>, log = process.capture(words, { merge = true })
        lu.assertEquals(status, 0, log)
        objects[#objects + 1] = object
    end
    local plain <const> = manifest.plain_flags[compiler.kind]
    for _, variant in ipairs(manifest.variants) do
        local arch <const> = isa.get(variant.isa).arch
        compile(variant.kernel, (arch == compiler.arch or arch == "any")
            and variant.flags[compiler.kind] or plain)
        compile(variant.pack, plain)
    end
    compile(manifest.dispatcher, plain)
    compile(manifest.dispatcher_pack, plain)
    compile("main.c", { "-std=c11" })
    return objects
end

-- What a program of the bundle prints on `arch`; nil where nothing here builds or runs it.
function TestBundle:run_on(arch, manifest)
    local compiler <const> = toolchain.find_compiler(arch)
    local emulator <const> = compiler and toolchain.find_emulator(arch)
    if not emulator then
        print("skipped: bundles on " .. arch .. ": no compiler or no emulator")
        return nil
    end
    local words <const> = table.move(compiler.words, 1, #compiler.words, 1, {})
    local objects <const> = self:compile(compiler, manifest)
    table.move(objects, 1, #objects, #words + 1, words)
    table.move({ "-o", self.scratch:path("main") }, 1, 2, #words + 1, words)
    local linked <const>, log = process.capture(words, { merge = true })
    lu.assertEquals(linked, 0, log)
    local run <const> = table.move(emulator, 1, #emulator, 1, {})
    run[#run + 1] = self.scratch:path("main")
    local status <const>, text = process.capture(run, { merge = true })
    lu.assertEquals(status, 0, text)
    return text
end

function TestBundle:emit(isas)
    local result <const> = self.scratch:attngen(("emit mix.lua --set 'isa=%s'"):format(isas))
    lu.assertEquals(result.code, 0, result.err)
    return dkjson.decode((assert(fs.read(self.scratch:path("mix.json")))))
end

-- One bundle for two architectures links and runs on each, with the variants of that one.
function TestBundle:test_variants_of_two_architectures()
    local manifest = self:emit('["avx2","neon"]')
    local on_x86 = self:run_on("x86_64", manifest)
    lu.assertTrue(on_x86 == nil or on_x86 == "avx2 of 1: 0 0 2\n", on_x86)
    local on_arm = self:run_on("aarch64", manifest)
    lu.assertTrue(on_arm == nil or on_arm == "neon of 1: 0 0 2\n", on_arm)
    manifest = self:emit('["scalar","avx2","neon"]')
    on_x86 = self:run_on("x86_64", manifest)
    lu.assertTrue(on_x86 == nil or on_x86 == "avx2 of 2: 0 0 2\n", on_x86)
    on_arm = self:run_on("aarch64", manifest)
    lu.assertTrue(on_arm == nil or on_arm == "neon of 2: 0 0 2\n", on_arm)
end

-- Variants of one architecture need no conditions.
function TestBundle:test_variants_of_one_architecture()
    local manifest <const> = self:emit('["scalar","avx2"]')
    local on_x86 <const> = self:run_on("x86_64", manifest)
    lu.assertTrue(on_x86 == nil or on_x86 == "avx2 of 2: 0 0 2\n", on_x86)
    lu.assertNotStrContains(self.scratch:read("mix.c"), "#if")
end

os.exit(lu.LuaUnit.run())
