/* Hosting a kernel: shared library, tensors from files, raw files between the two halves, and the
 * programs themselves, here and under an emulator. Runs in the root of the repository. */
#include <math.h>
#include <stdarg.h>
#include <sys/wait.h>

#include "attngen/run.h"
#include "runtime_support.h"

#define CFLAGS "-std=c11 -O1 -D_GNU_SOURCE -Iruntime/include "

__attribute__((format(printf, 1, 2))) static int shell(const char *format, ...)
{
    char command[4096];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    cr_assert_lt(length, (int)sizeof command);
    const int status = system(command);
    cr_assert(WIFEXITED(status), "%s", command);
    return WEXITSTATUS(status);
}

static void set_up(void)
{
    make_test_dir();
    cr_assert_eq(shell("cc " CFLAGS "-fPIC -shared tests/c/fake_kernel.c -o %s/fake.so", test_dir),
                 0);
}

TestSuite(run, .init = set_up, .fini = remove_test_dir, .timeout = 120);

/* ---- files ---- */

static void write_weights(float first)
{
    float q[16] = {first, 2}, k[8] = {0}, v[8] = {0}, o[16] = {0}, bias[4] = {0, 0, 0, 5};
    o[15] = 0.25f;
    const attn_tensor_source sources[] = {
        {.name = "q.weight", .dtype = ATTN_F32, .rank = 2, .shape = {4, 4}, .data = q},
        {.name = "k.weight", .dtype = ATTN_F32, .rank = 2, .shape = {2, 4}, .data = k},
        {.name = "v.weight", .dtype = ATTN_F32, .rank = 2, .shape = {2, 4}, .data = v},
        {.name = "o.weight", .dtype = ATTN_F32, .rank = 2, .shape = {4, 4}, .data = o},
        {.name = "q.bias", .dtype = ATTN_F32, .rank = 1, .shape = {4}, .data = bias},
    };
    expect_ok(attn_safetensors_write(in_dir("w.safetensors"), sources, 5));
}

/* The inputs of the fake kernel, each of which a test may bend. */
enum { X, LENGTHS, KEEP, MASK, EXTRA, INPUTS };

static float x_data[24];
static int64_t length_data[2];
static const uint8_t keep_data[6] = {1, 0, 1, 0, 2, 0};
static const float mask_data[9] = {0, -INFINITY, 3, 4, 5, 6, 7, 8, 9};

static void make_inputs(attn_tensor_source inputs[INPUTS])
{
    for (int i = 0; i < 24; i++) {
        x_data[i] = (float)i / 8;
    }
    length_data[0] = 0;
    length_data[1] = 3;
    const attn_tensor_source made[INPUTS] = {
        {.name = "x", .dtype = ATTN_F32, .rank = 3, .shape = {2, 3, 4}, .data = x_data},
        {.name = "kv_lengths", .dtype = ATTN_I64, .rank = 1, .shape = {2}, .data = length_data},
        {.name = "key_keep", .dtype = ATTN_BOOL, .rank = 2, .shape = {2, 3}, .data = keep_data},
        {.name = "mask_add", .dtype = ATTN_F32, .rank = 2, .shape = {3, 3}, .data = mask_data},
        {.name = "mask_keep", .dtype = ATTN_U8, .rank = 1, .shape = {1}, .data = keep_data},
    };
    memcpy(inputs, made, sizeof made);
}

static void write_inputs(const attn_tensor_source *inputs)
{
    expect_ok(attn_safetensors_write(in_dir("in.safetensors"), inputs, INPUTS));
}

static void expect_outputs(const char *name)
{
    attn_safetensors *file;
    float y[24], weights[18];
    expect_ok(attn_safetensors_open(in_dir(name), ATTN_OPEN_READ, &file));
    cr_assert_eq(attn_safetensors_count(file), 2);
    const attn_tensor *tensor = attn_safetensors_find(file, "y");
    cr_assert(tensor != NULL && tensor->rank == 3 && tensor->shape[0] == 2 &&
              tensor->shape[1] == 3 && tensor->shape[2] == 4);
    expect_ok(attn_tensor_read_f32(file, tensor, 0, 24, y));
    tensor = attn_safetensors_find(file, "weights");
    cr_assert(tensor != NULL && tensor->rank == 3 && tensor->shape[2] == 3);
    expect_ok(attn_tensor_read_f32(file, tensor, 0, 18, weights));
    for (int i = 0; i < 24; i++) {
        cr_assert_eq(y[i], (float)i / 8 * 2 + 5.25f + (i < 12 ? 0 : 300), "y[%d] = %g", i,
                     (double)y[i]);
    }
    for (int i = 0; i < 18; i++) {
        cr_assert_eq(weights[i], mask_data[i % 9] + (keep_data[i / 9 * 3 + i % 3] != 0 ? 1 : 0));
    }
    attn_safetensors_close(file);
}

/* ---- libraries ---- */

Test(run, libraries_are_checked)
{
    attn_library library;
    expect_ok(attn_library_open(in_dir("fake.so"), "fake", &library));
    cr_assert_str_eq(library.kernel->name, "fake");
    cr_assert_not_null(library.pack);
    attn_library_close(&library);
    cr_assert_null(library.kernel);
    attn_library_close(&library);
    expect_fail(attn_library_open(in_dir("none.so"), "fake", &library), ATTN_E_IO, "none.so");
    expect_fail(attn_library_open(write_file("text.so", "text", 4), "fake", &library), ATTN_E_IO,
                "text.so");
    expect_fail(attn_library_open(in_dir("fake.so"), "other", &library), ATTN_E_MISSING,
                "other_kernel");
    expect_fail(attn_library_open(in_dir("fake.so"), "bare", &library), ATTN_E_MISSING,
                "bare_pack");
    expect_fail(attn_library_open(in_dir("fake.so"), "old", &library), ATTN_E_ABI,
                "interface version 0, this runtime 2");
    cr_assert_null(library.handle);
}

/* ---- a job from files ---- */

static attn_status load_inputs(attn_job *job, FILE *notes)
{
    attn_safetensors *file;
    expect_ok(attn_safetensors_open(in_dir("in.safetensors"), ATTN_OPEN_READ, &file));
    const attn_status status = attn_job_load_inputs(job, file, notes);
    attn_safetensors_close(file);
    return status;
}

Test(run, wrong_inputs_are_named_with_both_shapes)
{
    attn_library library;
    attn_job job;
    attn_tensor_source inputs[INPUTS];
    expect_ok(attn_library_open(in_dir("fake.so"), "fake", &library));
    expect_ok(attn_job_create(library.kernel, &job));
    cr_assert(isnan(job.args.y[0]) && isnan(job.args.weights[17])); /* poisoned */

#define BEND(change, code, text)                                                                   \
    do {                                                                                           \
        make_inputs(inputs);                                                                       \
        change;                                                                                    \
        write_inputs(inputs);                                                                      \
        expect_fail(load_inputs(&job, NULL), code, text);                                          \
    } while (0)
    BEND(inputs[X].name = "X", ATTN_E_MISSING, "input: no tensor \"x\"");
    BEND(inputs[X].rank = 2, ATTN_E_SHAPE, "input \"x\": shape [2,3], wanted [2,3,4]");
    BEND(inputs[X].shape[2] = 3, ATTN_E_SHAPE, "shape [2,3,3], wanted [2,3,4]");
    BEND(inputs[X].dtype = ATTN_I32, ATTN_E_DTYPE, "\"x\" has dtype I32, wanted F32");
    BEND(inputs[LENGTHS].dtype = ATTN_F32, ATTN_E_DTYPE, "\"kv_lengths\" has dtype F32");
    BEND(length_data[1] = 4, ATTN_E_RANGE, "\"kv_lengths\": element 1 is 4, allowed is 0 to 3");
    BEND(length_data[0] = -1, ATTN_E_RANGE, "element 0 is -1");
    BEND(length_data[0] = INT64_C(1) << 32, ATTN_E_RANGE, "element 0 is 4294967296");
    BEND(inputs[KEEP].dtype = ATTN_F32;
         inputs[KEEP].data = x_data, ATTN_E_DTYPE, "\"key_keep\" has dtype F32, wanted U8 or BOOL");
    BEND(inputs[MASK].dtype = ATTN_U8, ATTN_E_DTYPE, "\"mask_add\" has dtype U8");
    BEND(inputs[MASK].rank = 1, ATTN_E_SHAPE, "input \"mask_add\": shape [3], wanted [1,1,3,3]");
    BEND(inputs[MASK].shape[0] = 1, ATTN_E_SHAPE, "shape [1,3], wanted [1,1,3,3]");

    make_inputs(inputs);
    inputs[LENGTHS].dtype = ATTN_I32;
    inputs[LENGTHS].data = (const int32_t[2]){0, 3};
    inputs[MASK].rank = 4; /* all dimensions given */
    memcpy(inputs[MASK].shape, (uint64_t[4]){1, 1, 3, 3}, 4 * sizeof(uint64_t));
    write_inputs(inputs);
    char *notes = NULL;
    size_t notes_bytes;
    FILE *to = open_memstream(&notes, &notes_bytes);
    expect_ok(load_inputs(&job, to));
    fclose(to);
    cr_assert_str_eq(notes, "note: kernel \"fake\" does not read input \"mask_keep\"\n");
    free(notes);
    cr_assert_eq(job.args.kv_lengths[1], 3);
    attn_job_free(&job);
    attn_library_close(&library);
}

/* Only masks may lack leading dimensions, even where those would be 1. */
Test(run, a_batch_of_one_is_still_a_dimension)
{
    attn_library library;
    attn_job job;
    attn_tensor_source inputs[INPUTS];
    expect_ok(attn_library_open(in_dir("fake.so"), "fake", &library));
    attn_kernel one = *library.kernel;
    one.batch = 1;
    expect_ok(attn_job_create(&one, &job));
    make_inputs(inputs);
    inputs[LENGTHS].shape[0] = 1;
    inputs[KEEP].shape[0] = 1;
    inputs[X].shape[0] = 1;
    write_inputs(inputs);
    expect_ok(load_inputs(&job, NULL));
    inputs[X].rank = 2;
    inputs[X].shape[0] = 3;
    inputs[X].shape[1] = 4;
    write_inputs(inputs);
    expect_fail(load_inputs(&job, NULL), ATTN_E_SHAPE, "input \"x\": shape [3,4], wanted [1,3,4]");
    attn_job_free(&job);
    attn_library_close(&library);
}

Test(run, raw_files_carry_a_job_to_another_process)
{
    attn_library library;
    attn_descriptor described;
    attn_job here, there;
    attn_tensor_source inputs[INPUTS];
    make_inputs(inputs);
    write_inputs(inputs);
    write_weights(1);
    expect_ok(attn_library_open(in_dir("fake.so"), "fake", &library));
    expect_ok(attn_descriptor_write(in_dir("desc"), library.kernel));
    expect_ok(attn_descriptor_read(in_dir("desc"), &described));
    cr_assert_str_eq(described.kernel.name, "fake");
    cr_assert(described.kernel.mask_shape[3] == 3 && described.kernel.alignment == 64);

    expect_ok(attn_job_create(&described.kernel, &here));
    attn_safetensors *file;
    expect_ok(attn_safetensors_open(in_dir("w.safetensors"), ATTN_OPEN_READ, &file));
    expect_ok(attn_job_load_weights(&here, file, &(attn_layer){.family = NULL}));
    attn_safetensors_close(file);
    expect_ok(load_inputs(&here, NULL));
    expect_ok(attn_job_write(in_dir("job"), &here));

    expect_ok(attn_job_create(library.kernel, &there));
    expect_ok(attn_job_read(in_dir("job"), &there));
    expect_ok(attn_job_run(&there, &library, 3));
    expect_ok(attn_result_write(in_dir("result"), &there));
    expect_ok(attn_result_read(in_dir("result"), &here));
    expect_ok(attn_job_save(&here, in_dir("out.safetensors")));
    expect_outputs("out.safetensors");

    expect_fail(attn_result_read(in_dir("job"), &here), ATTN_E_FORMAT, "job");
    expect_fail(attn_job_read(in_dir("result"), &there), ATTN_E_FORMAT, "result");
    expect_fail(attn_descriptor_read(in_dir("job"), &described), ATTN_E_FORMAT, "job");
    expect_fail(attn_job_read(in_dir("absent"), &there), ATTN_E_IO, "absent");
    attn_job_free(&there);
    attn_job_free(&here);
    attn_library_close(&library);
}

/* ---- the programs ---- */

static int attn_run(const char *more)
{
    return shell("%s/attn_run %s/fake.so fake --inputs %s/in.safetensors --output "
                 "%s/out.safetensors %s >/dev/null 2>%s/log",
                 test_dir, test_dir, test_dir, test_dir, more, test_dir);
}

static bool log_says(const char *text)
{
    return shell("grep -qF -- '%s' %s/log", text, test_dir) == 0;
}

static void build_programs(const char *cross)
{
    cr_assert_eq(shell("cc " CFLAGS
                       "runtime/tools/attn_run.c runtime/src/*/*.c -ljansson -lpthread "
                       "-ldl -o %s/attn_run",
                       test_dir),
                 0);
    cr_assert_eq(shell("%s " CFLAGS "$(cat runtime/tools/attn_exec.sources) -lpthread -ldl -o "
                       "%s/attn_exec",
                       cross, test_dir),
                 0);
}

Test(run, programs_run_a_kernel_in_one_process_and_in_two)
{
    attn_tensor_source inputs[INPUTS];
    char more[2048];
    build_programs("cc");
    make_inputs(inputs);
    write_inputs(inputs);
    write_weights(1);
    for (int two = 0; two < 2; two++) {
        const size_t files = count_files();
        snprintf(more, sizeof more, "--weights %s/w.safetensors --threads 2 %s%s%s", test_dir,
                 two ? "--runner " : "", two ? test_dir : "", two ? "/attn_exec" : "");
        cr_assert_eq(attn_run(more), 0);
        cr_assert(log_says("does not read input \"mask_keep\""));
        expect_outputs("out.safetensors");
        cr_assert_leq(count_files(), files + 2); /* the output and the log, nothing temporary */

        write_weights(13); /* the kernel refuses to pack these */
        unlink(in_dir("out.safetensors"));
        cr_assert_eq(attn_run(more), 1);
        cr_assert(log_says("packing the weights"));
        cr_assert_neq(access(in_dir("out.safetensors"), F_OK), 0);
        write_weights(1);
    }
    cr_assert_eq(attn_run("--weights /nonexistent"), 1);
    cr_assert(log_says("/nonexistent: No such file"));
    cr_assert_eq(attn_run(""), 1);
    cr_assert(log_says("has projections: give --weights"));
    cr_assert_eq(attn_run("--threads 0"), 2);
    cr_assert_eq(attn_run("--threads 2x"), 2);
    cr_assert_eq(attn_run("--layer -1"), 2);
    cr_assert_eq(attn_run("--frobnicate"), 2);
    cr_assert_eq(attn_run("surplus"), 2);
    cr_assert_eq(attn_run("--family list"), 0);
    snprintf(more, sizeof more, "--weights %s/w.safetensors --runner /nonexistent/exec", test_dir);
    cr_assert_eq(attn_run(more), 1);
    cr_assert(log_says("/nonexistent/exec"));
}

Test(run, programs_run_a_kernel_of_another_machine)
{
    if (shell("command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null "
              "&& test -d /usr/aarch64-linux-gnu") != 0) {
        cr_skip("no aarch64-linux-gnu-gcc, qemu-aarch64 or /usr/aarch64-linux-gnu");
    }
    attn_tensor_source inputs[INPUTS];
    char more[2048];
    build_programs("aarch64-linux-gnu-gcc");
    cr_assert_eq(shell("aarch64-linux-gnu-gcc " CFLAGS "-fPIC -shared tests/c/fake_kernel.c -o "
                       "%s/fake.so",
                       test_dir),
                 0);
    make_inputs(inputs);
    write_inputs(inputs);
    write_weights(1);
    snprintf(more, sizeof more,
             "--weights %s/w.safetensors --threads 3 --runner qemu-aarch64 --runner -L --runner "
             "/usr/aarch64-linux-gnu --runner %s/attn_exec",
             test_dir, test_dir);
    cr_assert_eq(attn_run(more), 0);
    expect_outputs("out.safetensors");
}
