/* Hosting a kernel that comes as a shared library: the two halves behind `attngen run`.
 *
 * The execution half (library, job, raw files) needs libc, pthread and dlopen, so that it can be
 * cross-compiled and run under an emulator. The tensor half (attn_job_load_*, attn_job_save) needs
 * the safetensors reader and stays on the host. Between them travel three raw files, in the byte
 * order of the execution half, which both sides check: the descriptor, the job and the result. */
#ifndef ATTNGEN_RUN_H
#define ATTNGEN_RUN_H

#include <stdio.h>

#include "attngen/mapping.h"
#include "attngen/signature.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- execution half ---- */

typedef int (*attn_pack_function)(const attn_weights *, void *packed);

typedef struct attn_library {
    void *handle;
    const attn_kernel *kernel;
    attn_pack_function pack; /* NULL when the kernel has no packed weights */
} attn_library;

/* Loads PREFIX_kernel and PREFIX_pack. On failure *library is empty. */
attn_status attn_library_open(const char *path, const char *prefix, attn_library *library);
void attn_library_close(attn_library *library);

/* All tensors of one call. */
typedef struct attn_job {
    const attn_kernel *kernel; /* must outlive the job */
    attn_slot slots[ATTN_MAX_SLOTS];
    size_t count;
    attn_loaded_weights weights; /* empty until loaded */
    attn_buffer tensors;         /* inputs and outputs */
    attn_args args;
} attn_job;

/* Allocates inputs and outputs; outputs are filled with NaN. On failure *job is empty. */
attn_status attn_job_create(const attn_kernel *kernel, attn_job *job);
void attn_job_free(attn_job *job);

/* Checks the CPU, packs the weights and runs the kernel on `threads` threads. */
attn_status attn_job_run(attn_job *job, const attn_library *library, size_t threads);

/* The raw files. A result is read into the job it belongs to. */
attn_status attn_descriptor_write(const char *path, const attn_kernel *kernel);
attn_status attn_job_write(const char *path, const attn_job *job);
attn_status attn_job_read(const char *path, attn_job *job);
attn_status attn_result_write(const char *path, const attn_job *job);
attn_status attn_result_read(const char *path, attn_job *job);

/* A descriptor that came from another process: function pointers are NULL. */
typedef struct attn_descriptor {
    attn_kernel kernel; /* name and isa point into this struct: do not copy it */
    char name[64];
    char isa[16];
} attn_descriptor;
attn_status attn_descriptor_read(const char *path, attn_descriptor *descriptor);

/* ---- tensor half ---- */

/* Loads the weights the kernel reads, see attn_weights_load. */
attn_status attn_job_load_weights(attn_job *job, const attn_safetensors *file,
                                  const attn_layer *layer);

/* Loads every input by its name, converted to what the kernel reads. A mask may lack leading
 * dimensions; they count as 1. Inputs the kernel does not read are named on `notes` when that is
 * not NULL. */
attn_status attn_job_load_inputs(attn_job *job, const attn_safetensors *file, FILE *notes);

/* Writes `y` and, when the kernel returns them, `weights`. */
attn_status attn_job_save(const attn_job *job, const char *path);

#ifdef __cplusplus
}
#endif

#endif /* ATTNGEN_RUN_H */
