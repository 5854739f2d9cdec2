/* Hosts one kernel: safetensors in, safetensors out (the program behind `attngen run`).
 * In: a kernel as a shared library, its symbol prefix, weights and inputs. Out: y and weights.
 * With --runner the kernel is executed by another program, attn_exec, perhaps for another machine
 * under an emulator; this process then only converts. Exit: 0 ok, 1 failure, 2 usage. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <getopt.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attngen/run.h"
#include "attngen/threads.h"

extern char **environ;

#define MAX_RUNNER_WORDS 32
#define PATH_BYTES 4096

static const char USAGE[] =
    "usage: attn_run KERNEL.so PREFIX --inputs IN.safetensors --output OUT.safetensors\n"
    "  --weights FILE   weights, needed when the kernel has projections\n"
    "  --family NAME    how the checkpoint names its tensors (default: plain); --family list\n"
    "  --layer N        which layer (default: 0)\n"
    "  --prefix TEXT    what stands before the family's tensor names (default: the usual ones)\n"
    "  --threads N      1 to 1024 (default: 1)\n"
    "  --runner WORD    run attn_exec by this command, one word per --runner, e.g.\n"
    "                   --runner qemu-aarch64 --runner -L --runner /usr/aarch64-linux-gnu \\\n"
    "                   --runner build/aarch64/attn_exec\n";

typedef struct options {
    const char *library, *symbols;
    const char *weights, *inputs, *output;
    attn_layer layer;
    size_t threads;
    char *runner[MAX_RUNNER_WORDS];
    size_t runner_words;
} options;

/* ---- command line ---- */

static bool parse_number(const char *text, size_t high, size_t *value)
{
    char *end;
    errno = 0;
    const unsigned long long parsed = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || parsed > high) {
        return false;
    }
    *value = (size_t)parsed;
    return true;
}

static void list_families(void)
{
    for (size_t i = 0; attn_family_name(i) != NULL; i++) {
        printf("%s\n", attn_family_name(i));
    }
}

/* NULL, or what is wrong. */
static const char *parse_options(int argc, char **argv, options *o)
{
    static const struct option known[] = {
        {"weights", required_argument, NULL, 'w'}, {"inputs", required_argument, NULL, 'i'},
        {"output", required_argument, NULL, 'o'},  {"family", required_argument, NULL, 'f'},
        {"layer", required_argument, NULL, 'l'},   {"prefix", required_argument, NULL, 'p'},
        {"threads", required_argument, NULL, 't'}, {"runner", required_argument, NULL, 'r'},
        {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0}};
    int letter;
    while ((letter = getopt_long(argc, argv, "h", known, NULL)) != -1) {
        switch (letter) {
        case 'w':
            o->weights = optarg;
            break;
        case 'i':
            o->inputs = optarg;
            break;
        case 'o':
            o->output = optarg;
            break;
        case 'f':
            o->layer.family = optarg;
            break;
        case 'p':
            o->layer.prefix = optarg;
            break;
        case 'l':
            if (!parse_number(optarg, SIZE_MAX, &o->layer.layer)) {
                return "--layer wants a number >= 0";
            }
            break;
        case 't':
            if (!parse_number(optarg, ATTN_MAX_THREADS, &o->threads) || o->threads == 0) {
                return "--threads wants a number from 1 to 1024";
            }
            break;
        case 'r':
            if (o->runner_words == MAX_RUNNER_WORDS) {
                return "too many --runner words";
            }
            o->runner[o->runner_words++] = optarg;
            break;
        case 'h':
            fputs(USAGE, stdout);
            exit(0);
        default:
            return ""; /* getopt has said it */
        }
    }
    if (o->layer.family != NULL && strcmp(o->layer.family, "list") == 0) {
        list_families();
        exit(0);
    }
    if (argc - optind != 2) {
        return "wants a kernel library and its symbol prefix";
    }
    if (o->inputs == NULL || o->output == NULL) {
        return "--inputs and --output are needed";
    }
    o->library = argv[optind];
    o->symbols = argv[optind + 1];
    return NULL;
}

/* ---- tensors ---- */

static attn_status load_tensors(const options *o, attn_job *job)
{
    const bool needs_weights = (job->kernel->tensors & ATTN_T_X) != 0;
    if (needs_weights != (o->weights != NULL)) {
        return attn_fail(ATTN_E_ARGUMENT, "kernel \"%s\" %s", job->kernel->name,
                         needs_weights ? "has projections: give --weights"
                                       : "has no projections: --weights makes no sense");
    }
    attn_safetensors *file;
    attn_status status;
    if (needs_weights) {
        status = attn_safetensors_open(o->weights, ATTN_OPEN_READ, &file);
        if (status.code == ATTN_OK) {
            status = attn_job_load_weights(job, file, &o->layer);
            attn_safetensors_close(file);
            if (status.code != ATTN_OK) {
                return attn_fail(status.code, "%s: %s", o->weights, status.message);
            }
        }
        if (status.code != ATTN_OK) {
            return status;
        }
    }
    status = attn_safetensors_open(o->inputs, ATTN_OPEN_READ, &file);
    if (status.code == ATTN_OK) {
        status = attn_job_load_inputs(job, file, stderr);
        attn_safetensors_close(file);
        if (status.code != ATTN_OK) {
            return attn_fail(status.code, "%s: %s", o->inputs, status.message);
        }
    }
    return status;
}

/* ---- in this process ---- */

static attn_status run_here(const options *o)
{
    attn_library library;
    attn_status status = attn_library_open(o->library, o->symbols, &library);
    if (status.code != ATTN_OK) {
        return status;
    }
    attn_job job;
    status = attn_job_create(library.kernel, &job);
    if (status.code == ATTN_OK) {
        status = load_tensors(o, &job);
    }
    if (status.code == ATTN_OK) {
        status = attn_job_run(&job, &library, o->threads);
    }
    if (status.code == ATTN_OK) {
        status = attn_job_save(&job, o->output);
    }
    attn_job_free(&job);
    attn_library_close(&library);
    return status;
}

/* ---- in another program ---- */

/* Runs the runner's words followed by these, which end with NULL. */
static attn_status spawn_runner(const options *o, char *const *words)
{
    char *command[MAX_RUNNER_WORDS + 8];
    size_t n = 0;
    for (; n < o->runner_words; n++) {
        command[n] = o->runner[n];
    }
    while (*words != NULL) {
        command[n++] = *words++;
    }
    command[n] = NULL;
    pid_t child;
    const int reason = posix_spawnp(&child, command[0], NULL, NULL, command, environ);
    if (reason != 0) {
        return attn_fail(ATTN_E_SYSTEM, "cannot start %s: %s", command[0], strerror(reason));
    }
    int result;
    while (waitpid(child, &result, 0) < 0) {
        if (errno != EINTR) {
            return attn_fail(ATTN_E_SYSTEM, "waiting for %s: %s", command[0], strerror(errno));
        }
    }
    if (WIFSIGNALED(result)) {
        return attn_fail(ATTN_E_SYSTEM, "%s ended by signal %d", command[0], WTERMSIG(result));
    }
    return WEXITSTATUS(result) == 0 ? attn_success()
                                    : attn_fail(ATTN_E_SYSTEM, "%s failed with exit status %d",
                                                command[0], WEXITSTATUS(result));
}

typedef struct raw_paths {
    char directory[PATH_BYTES];
    char descriptor[PATH_BYTES + 16], job[PATH_BYTES + 16], result[PATH_BYTES + 16];
} raw_paths;

static attn_status make_directory(raw_paths *paths)
{
    const char pattern[] = {'X', 'X', 'X', 'X', 'X', 'X', '\0'}; /* mkdtemp replaces it */
    const char *root = getenv("TMPDIR");
    const int length = snprintf(paths->directory, sizeof paths->directory, "%s/attn_run.%s",
                                root != NULL && root[0] != '\0' ? root : "/tmp", pattern);
    if (length < 0 || (size_t)length >= sizeof paths->directory) {
        return attn_fail(ATTN_E_IO, "TMPDIR is too long");
    }
    if (mkdtemp(paths->directory) == NULL) {
        return attn_fail(ATTN_E_IO, "%s: %s", paths->directory, strerror(errno));
    }
    snprintf(paths->descriptor, sizeof paths->descriptor, "%s/descriptor", paths->directory);
    snprintf(paths->job, sizeof paths->job, "%s/job", paths->directory);
    snprintf(paths->result, sizeof paths->result, "%s/result", paths->directory);
    return attn_success();
}

static attn_status run_described(const options *o, raw_paths *paths, char *library, char *symbols)
{
    char *describe[] = {library, symbols, "describe", paths->descriptor, NULL};
    attn_status status = spawn_runner(o, describe);
    attn_descriptor descriptor;
    if (status.code == ATTN_OK) {
        status = attn_descriptor_read(paths->descriptor, &descriptor);
    }
    if (status.code != ATTN_OK) {
        return status;
    }
    attn_job job;
    status = attn_job_create(&descriptor.kernel, &job);
    if (status.code == ATTN_OK) {
        status = load_tensors(o, &job);
    }
    if (status.code == ATTN_OK) {
        status = attn_job_write(paths->job, &job);
    }
    if (status.code == ATTN_OK) {
        char threads[24];
        snprintf(threads, sizeof threads, "%zu", o->threads);
        char *run[] = {library, symbols, "run", paths->job, paths->result, threads, NULL};
        status = spawn_runner(o, run);
    }
    if (status.code == ATTN_OK) {
        status = attn_result_read(paths->result, &job);
    }
    if (status.code == ATTN_OK) {
        status = attn_job_save(&job, o->output);
    }
    attn_job_free(&job);
    return status;
}

static attn_status run_elsewhere(const options *o)
{
    raw_paths paths;
    attn_status status = make_directory(&paths);
    if (status.code != ATTN_OK) {
        return status;
    }
    char *library = strdup(o->library); /* posix_spawn wants writable words */
    char *symbols = strdup(o->symbols);
    status = library != NULL && symbols != NULL ? run_described(o, &paths, library, symbols)
                                                : attn_fail(ATTN_E_MEMORY, "out of memory");
    free(library);
    free(symbols);
    unlink(paths.descriptor);
    unlink(paths.job);
    unlink(paths.result);
    rmdir(paths.directory);
    return status;
}

int main(int argc, char **argv)
{
    options o = {.threads = 1};
    const char *wrong = parse_options(argc, argv, &o);
    if (wrong != NULL) {
        fprintf(stderr, "%s%s%s%s", wrong[0] ? "attn_run: " : "", wrong, wrong[0] ? "\n" : "",
                USAGE);
        return 2;
    }
    const attn_status status = o.runner_words > 0 ? run_elsewhere(&o) : run_here(&o);
    if (status.code != ATTN_OK) {
        fprintf(stderr, "attn_run: %s\n", status.message);
        return 1;
    }
    return 0;
}
