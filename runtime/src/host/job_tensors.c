/* The safetensors side of a hosted call: files into a job, a job's outputs into a file. */
#include <stdbool.h>
#include <string.h>

#include "attngen/run.h"

/* A mask may lack leading dimensions, which count as 1; all else must match exactly. */
static bool has_shape(const attn_slot *slot, const attn_tensor *tensor)
{
    const bool may_lack = (slot->flag & (ATTN_T_MASK_KEEP | ATTN_T_MASK_ADD)) != 0;
    if (tensor->rank > slot->rank || (tensor->rank < slot->rank && !may_lack)) {
        return false;
    }
    const size_t lacking = slot->rank - tensor->rank;
    for (size_t i = 0; i < slot->rank; i++) {
        if (slot->shape[i] != (i < lacking ? 1 : tensor->shape[i - lacking])) {
            return false;
        }
    }
    return true;
}

static attn_status load_input(const attn_job *job, const attn_slot *slot,
                              const attn_safetensors *file)
{
    const attn_tensor *tensor;
    const attn_status status = attn_safetensors_get(file, slot->name, &tensor);
    if (status.code != ATTN_OK) {
        return attn_fail(status.code, "input: %s", status.message);
    }
    if (!has_shape(slot, tensor)) {
        char found[ATTN_SHAPE_TEXT_BYTES];
        char wanted[ATTN_SHAPE_TEXT_BYTES];
        return attn_fail(ATTN_E_SHAPE, "input \"%s\": shape %s, wanted %s", slot->name,
                         attn_shape_text(tensor->shape, tensor->rank, found),
                         attn_shape_text(slot->shape, slot->rank, wanted));
    }
    /* The job owns the memory behind its arguments. */
    void *data = (void *)(uintptr_t)attn_slot_get(slot, NULL, &job->args);
    switch (slot->dtype) {
    case ATTN_U8:
        return attn_tensor_read_u8(file, tensor, 0, slot->elements, data);
    case ATTN_I32: /* kv_lengths is the only one */
        return attn_tensor_read_i32(
            file, tensor, 0, slot->elements, (int32_t)attn_least_length(job->kernel),
            job->kernel->kv_len < INT32_MAX ? (int32_t)job->kernel->kv_len : INT32_MAX, data);
    default:
        return attn_tensor_read_f32(file, tensor, 0, slot->elements, data);
    }
}

attn_status attn_job_load_inputs(attn_job *job, const attn_safetensors *file, FILE *notes)
{
    attn_status status = attn_success();
    for (size_t i = 0; i < job->count && status.code == ATTN_OK; i++) {
        if (job->slots[i].role == ATTN_INPUT) {
            status = load_input(job, &job->slots[i], file);
        }
    }
    for (size_t t = 0; t < attn_safetensors_count(file) && status.code == ATTN_OK; t++) {
        const char *name = attn_safetensors_at(file, t)->name;
        bool is_read = false;
        for (size_t i = 0; i < job->count; i++) {
            is_read = is_read ||
                      (job->slots[i].role == ATTN_INPUT && strcmp(job->slots[i].name, name) == 0);
        }
        if (!is_read && notes != NULL) {
            fprintf(
                notes, "note: %s\n",
                attn_fail(0, "kernel \"%s\" does not read input \"%s\"", job->kernel->name, name)
                    .message);
        }
    }
    return status;
}

attn_status attn_job_load_weights(attn_job *job, const attn_safetensors *file,
                                  const attn_layer *layer)
{
    attn_weights_free(&job->weights);
    return attn_weights_load(file, layer, job->kernel, &job->weights);
}

attn_status attn_job_save(const attn_job *job, const char *path)
{
    attn_tensor_source outputs[ATTN_MAX_SLOTS];
    size_t count = 0;
    for (size_t i = 0; i < job->count; i++) {
        const attn_slot *slot = &job->slots[i];
        if (slot->role == ATTN_OUTPUT) {
            attn_tensor_source *output = &outputs[count++];
            *output = (attn_tensor_source){.name = slot->name,
                                           .dtype = slot->dtype,
                                           .rank = slot->rank,
                                           .data = attn_slot_get(slot, NULL, &job->args)};
            memcpy(output->shape, slot->shape, slot->rank * sizeof slot->shape[0]);
        }
    }
    return attn_safetensors_write(path, outputs, count);
}
