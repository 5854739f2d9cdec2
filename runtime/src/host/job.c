/* One call of a kernel with all its tensors in memory. */
#include <stdbool.h>
#include <string.h>

#include "attngen/cpu.h"
#include "attngen/run.h"
#include "attngen/threads.h"
#include "checked.h"

#define TENSOR_ALIGNMENT 64

/* All-ones bytes are NaN as floats: what a kernel fails to write, or reads too early, shows. */
#define POISON 0xff

/* Whether slot `i` is the first of the tensors behind its argument: a cache is input and output. */
static bool owns_memory(const attn_job *job, size_t i)
{
    for (size_t before = 0; before < i; before++) {
        if (job->slots[before].role != ATTN_WEIGHT &&
            job->slots[before].offset == job->slots[i].offset) {
            return false;
        }
    }
    return job->slots[i].role != ATTN_WEIGHT;
}

static attn_status total_bytes(const attn_job *job, size_t *total)
{
    *total = 0;
    for (size_t i = 0; i < job->count; i++) {
        size_t rounded;
        if (owns_memory(job, i) &&
            (!attn_add_size(job->slots[i].bytes, TENSOR_ALIGNMENT - 1, &rounded) ||
             !attn_add_size(*total, rounded - rounded % TENSOR_ALIGNMENT, total))) {
            return attn_fail(ATTN_E_MEMORY, "the tensors of kernel \"%s\" exceed the address space",
                             job->kernel->name);
        }
    }
    return attn_success();
}

attn_status attn_job_create(const attn_kernel *kernel, attn_job *job)
{
    memset(job, 0, sizeof *job);
    job->kernel = kernel;
    attn_status status = attn_kernel_slots(kernel, job->slots, &job->count);
    size_t bytes = 0;
    if (status.code == ATTN_OK) {
        status = total_bytes(job, &bytes);
    }
    if (status.code == ATTN_OK) {
        status = attn_buffer_alloc(&job->tensors, bytes, TENSOR_ALIGNMENT);
    }
    if (status.code != ATTN_OK) {
        attn_job_free(job);
        return status;
    }
    memset(job->tensors.data, POISON, bytes);
    char *at = job->tensors.data;
    for (size_t i = 0; i < job->count; i++) {
        const attn_slot *slot = &job->slots[i];
        if (owns_memory(job, i)) {
            attn_slot_set(slot, NULL, &job->args, at);
            at += (slot->bytes + TENSOR_ALIGNMENT - 1) / TENSOR_ALIGNMENT * TENSOR_ALIGNMENT;
        }
    }
    return attn_success();
}

void attn_job_free(attn_job *job)
{
    attn_buffer_free(&job->weights.storage);
    attn_buffer_free(&job->tensors);
    memset(job, 0, sizeof *job);
}

static attn_status pack_weights(const attn_job *job, const attn_library *library,
                                attn_buffer *packed)
{
    const attn_kernel *kernel = job->kernel;
    attn_status status = attn_buffer_alloc(packed, kernel->packed_bytes, kernel->alignment);
    if (status.code != ATTN_OK || kernel->packed_bytes == 0) {
        return status;
    }
    const int code = library->pack(&job->weights.weights, packed->data);
    return code == ATTN_OK ? status
                           : attn_fail(code, "packing the weights of kernel \"%s\": %s",
                                       kernel->name, attn_error_text(code));
}

attn_status attn_job_run(attn_job *job, const attn_library *library, size_t threads)
{
    const attn_kernel *kernel = job->kernel;
    attn_buffer packed = {NULL, 0};
    attn_buffer workspace = {NULL, 0};
    attn_pool *pool = NULL;
    size_t workspace_bytes = 0;
    attn_status status = attn_check_cpu(kernel);
    if (status.code == ATTN_OK) {
        status = attn_workspace_bytes(kernel, threads, &workspace_bytes);
    }
    if (status.code == ATTN_OK) {
        status = attn_pool_create(threads, &pool);
    }
    if (status.code == ATTN_OK) {
        status = pack_weights(job, library, &packed);
    }
    if (status.code == ATTN_OK) {
        status = attn_buffer_alloc(&workspace, workspace_bytes, kernel->alignment);
    }
    if (status.code == ATTN_OK) {
        memset(workspace.data, POISON, workspace_bytes);
        status = attn_forward(pool, kernel, packed.data, &job->args, workspace.data);
    }
    attn_pool_destroy(pool);
    attn_buffer_free(&workspace);
    attn_buffer_free(&packed);
    return status;
}
