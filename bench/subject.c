/* What both ways of finding a kernel share; see subject.h. */
#include "subject.h"

#include <stdio.h>

int subject_from_kernel(subject *s, const attn_kernel *kernel, const ref_case *c, char *message,
                        size_t message_size)
{
    const ref_sizes sizes = ref_case_sizes(c);
    if (kernel->abi != ATTN_KERNEL_ABI) {
        snprintf(message, message_size, "the kernel has ABI %u, this program knows %d",
                 (unsigned)kernel->abi, ATTN_KERNEL_ABI);
        return -1;
    }
    if (kernel->y_elements != sizes.y || kernel->weights_elements != sizes.weights) {
        snprintf(message, message_size,
                 "the kernel writes %zu + %zu elements, the case has %zu + %zu", kernel->y_elements,
                 kernel->weights_elements, sizes.y, sizes.weights);
        return -1;
    }
    snprintf(s->name, sizeof s->name, "%s", kernel->name);
    snprintf(s->isa, sizeof s->isa, "%s", kernel->isa);
    s->packed_bytes = kernel->packed_bytes;
    s->workspace_bytes = kernel->workspace_bytes;
    s->alignment = kernel->alignment;
    s->forward = kernel->forward;
    return 0;
}
