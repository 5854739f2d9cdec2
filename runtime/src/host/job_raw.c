/* The raw files between the two halves of a hosted call. Each starts with a 16-byte head: magic,
 * and a number that reads differently on a host of the other byte order. Descriptor: the fixed
 * struct below. Job: the weights and inputs in slot order. Result: the outputs. Sizes follow from
 * the descriptor and are checked exactly. */
#include <stdbool.h>
#include <string.h>

#include "attngen/run.h"
#include "checked.h"
#include "file.h"

#define BYTE_ORDER_MARK UINT64_C(0x0102030405060708)

typedef struct head {
    char magic[8];
    uint64_t byte_order;
} head;

static const char DESCRIPTOR[] = "ATTNDESC";
static const char JOB[] = "ATTNJOB1";
static const char RESULT[] = "ATTNRES1";

/* The descriptor with fixed widths: the two halves may differ in the size of size_t. */
typedef struct raw_descriptor {
    head head;
    uint32_t abi, features, tensors, phases;
    uint64_t layout_hash, config_hash;
    uint64_t sizes[19];
    char name[64];
    char isa[16];
} raw_descriptor;

/* The size_t members of attn_kernel, in the order of `sizes`. */
static void list_sizes(attn_kernel *kernel, size_t *members[19])
{
    size_t *const all[19] = {
        &kernel->batch,         &kernel->seq_len,         &kernel->kv_len,
        &kernel->d_model,       &kernel->kv_dim,          &kernel->heads,
        &kernel->kv_heads,      &kernel->head_dim,        &kernel->v_head_dim,
        &kernel->mask_shape[0], &kernel->mask_shape[1],   &kernel->mask_shape[2],
        &kernel->mask_shape[3], &kernel->y_elements,      &kernel->weights_elements,
        &kernel->packed_bytes,  &kernel->workspace_bytes, &kernel->part_bytes,
        &kernel->alignment};
    memcpy(members, all, sizeof all);
}

/* `magic` is 8 characters. */
static head make_head(const char *magic)
{
    head made = {.byte_order = BYTE_ORDER_MARK};
    memcpy(made.magic, magic, sizeof made.magic);
    return made;
}

/* Opens a raw file of exactly `bytes` behind a head of this kind. On failure *fd is -1. */
static attn_status open_raw(const char *path, const char *magic, uint64_t bytes, int *fd)
{
    uint64_t have;
    head found = {.byte_order = 0};
    attn_status status = attn_file_open(path, fd, &have);
    if (status.code != ATTN_OK) {
        return status;
    }
    if (have != bytes) {
        status = attn_fail(ATTN_E_FORMAT, "%s: %llu bytes, wanted %llu", path,
                           (unsigned long long)have, (unsigned long long)bytes);
    } else {
        status = attn_file_read(*fd, 0, &found, sizeof found);
    }
    if (status.code == ATTN_OK && memcmp(found.magic, magic, sizeof found.magic) != 0) {
        status = attn_fail(ATTN_E_FORMAT, "%s: not the kind of file wanted here", path);
    } else if (status.code == ATTN_OK && found.byte_order != BYTE_ORDER_MARK) {
        status =
            attn_fail(ATTN_E_BYTE_ORDER, "%s: written by a host of the other byte order", path);
    }
    if (status.code != ATTN_OK) {
        attn_file_close(*fd);
        *fd = -1;
    }
    return status;
}

/* ---- descriptor ---- */

attn_status attn_descriptor_write(const char *path, const attn_kernel *kernel)
{
    attn_status status = attn_check_kernel(kernel);
    if (status.code != ATTN_OK) {
        return status;
    }
    raw_descriptor raw;
    memset(&raw, 0, sizeof raw);
    if (strlen(kernel->name) >= sizeof raw.name || strlen(kernel->isa) >= sizeof raw.isa) {
        return attn_fail(ATTN_E_ARGUMENT, "the kernel's name is too long");
    }
    raw.head = make_head(DESCRIPTOR);
    raw.abi = kernel->abi;
    raw.features = kernel->features;
    raw.tensors = kernel->tensors;
    raw.phases = kernel->phases;
    raw.layout_hash = kernel->layout_hash;
    raw.config_hash = kernel->config_hash;
    attn_kernel copy = *kernel;
    size_t *members[19];
    list_sizes(&copy, members);
    for (size_t i = 0; i < 19; i++) {
        raw.sizes[i] = *members[i];
    }
    memcpy(raw.name, kernel->name, strlen(kernel->name));
    memcpy(raw.isa, kernel->isa, strlen(kernel->isa));

    attn_file_writer writer;
    status = attn_file_begin(path, &writer);
    return status.code != ATTN_OK
               ? status
               : attn_file_finish(&writer, attn_file_put(&writer, &raw, sizeof raw));
}

attn_status attn_descriptor_read(const char *path, attn_descriptor *descriptor)
{
    memset(descriptor, 0, sizeof *descriptor);
    raw_descriptor raw;
    int fd;
    attn_status status = open_raw(path, DESCRIPTOR, sizeof raw, &fd);
    if (status.code != ATTN_OK) {
        return status;
    }
    status = attn_file_read(fd, 0, &raw, sizeof raw);
    attn_file_close(fd);
    if (status.code != ATTN_OK) {
        return status;
    }
    attn_kernel *kernel = &descriptor->kernel;
    kernel->abi = raw.abi;
    kernel->features = raw.features;
    kernel->tensors = raw.tensors;
    kernel->phases = raw.phases;
    kernel->layout_hash = raw.layout_hash;
    kernel->config_hash = raw.config_hash;
    size_t *members[19];
    list_sizes(kernel, members);
    for (size_t i = 0; i < 19; i++) {
        if (raw.sizes[i] > SIZE_MAX) {
            return attn_fail(ATTN_E_MEMORY, "%s: a size exceeds the address space", path);
        }
        *members[i] = (size_t)raw.sizes[i];
    }
    memcpy(descriptor->name, raw.name, sizeof raw.name - 1);
    memcpy(descriptor->isa, raw.isa, sizeof raw.isa - 1);
    kernel->name = descriptor->name;
    kernel->isa = descriptor->isa;
    return attn_check_kernel(kernel);
}

/* ---- job and result ---- */

static bool is_wanted(const attn_slot *slot, bool outputs)
{
    return (slot->role == ATTN_OUTPUT) == outputs;
}

static attn_status write_slots(const char *path, const char *magic, const attn_job *job,
                               bool outputs)
{
    attn_file_writer writer;
    attn_status status = attn_file_begin(path, &writer);
    if (status.code != ATTN_OK) {
        return status;
    }
    const head start = make_head(magic);
    status = attn_file_put(&writer, &start, sizeof start);
    for (size_t i = 0; i < job->count && status.code == ATTN_OK; i++) {
        const attn_slot *slot = &job->slots[i];
        if (is_wanted(slot, outputs)) {
            status = attn_file_put(&writer, attn_slot_get(slot, &job->weights.weights, &job->args),
                                   slot->bytes);
        }
    }
    return attn_file_finish(&writer, status);
}

/* Fills slots that have memory from the file. */
static attn_status read_slots(const char *path, const char *magic, const attn_job *job,
                              bool outputs)
{
    size_t bytes = sizeof(head);
    for (size_t i = 0; i < job->count; i++) {
        if (is_wanted(&job->slots[i], outputs) &&
            !attn_add_size(bytes, job->slots[i].bytes, &bytes)) {
            return attn_fail(ATTN_E_MEMORY, "%s: exceeds the address space", path);
        }
    }
    int fd;
    attn_status status = open_raw(path, magic, bytes, &fd);
    if (status.code != ATTN_OK) {
        return status;
    }
    uint64_t offset = sizeof(head);
    for (size_t i = 0; i < job->count && status.code == ATTN_OK; i++) {
        const attn_slot *slot = &job->slots[i];
        if (is_wanted(slot, outputs)) {
            /* The slots of a job point into its own buffers. */
            void *data = (void *)(uintptr_t)attn_slot_get(slot, &job->weights.weights, &job->args);
            status = attn_file_read(fd, offset, data, slot->bytes);
            offset += slot->bytes;
        }
    }
    attn_file_close(fd);
    return status.code == ATTN_OK ? status : attn_fail(status.code, "%s: %s", path, status.message);
}

attn_status attn_job_write(const char *path, const attn_job *job)
{
    return write_slots(path, JOB, job, false);
}

attn_status attn_job_read(const char *path, attn_job *job)
{
    attn_weights_free(&job->weights);
    const attn_status status = attn_weights_allocate(job->slots, job->count, &job->weights);
    return status.code == ATTN_OK ? read_slots(path, JOB, job, false) : status;
}

attn_status attn_result_write(const char *path, const attn_job *job)
{
    return write_slots(path, RESULT, job, true);
}

attn_status attn_result_read(const char *path, attn_job *job)
{
    return read_slots(path, RESULT, job, true);
}
