/* The one kernel this program is linked with; see subject.h. Compile with -DLINKED_KERNEL=NAME_kernel
 * and, for a kernel that packs, -DLINKED_PACK=NAME_pack. */
#include <string.h>

#include "subject.h"

extern const attn_kernel LINKED_KERNEL;
#ifdef LINKED_PACK
extern int LINKED_PACK(const attn_weights *weights, void *packed);
#endif

int subject_open(subject *s, const subject_options *options, char *message, size_t message_size)
{
    memset(s, 0, sizeof *s);
#ifdef LINKED_PACK
    s->pack = LINKED_PACK;
#endif
    return subject_from_kernel(s, &LINKED_KERNEL, options->problem, message, message_size);
}
