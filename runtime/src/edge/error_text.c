/* Constant sentences for status codes: all a device without stdio needs to report an error. */
#include "attngen/status.h"

const char *attn_error_text(int code)
{
    switch (code) {
    case ATTN_OK:
        return "success";
    case ATTN_E_NULL:
        return "a pointer that is needed is NULL";
    case ATTN_E_ALIGN:
        return "packed weights or workspace are not aligned as the kernel wants";
    case ATTN_E_LENGTH:
        return "a kv_lengths entry is outside [0, kv_len]";
    case ATTN_E_PART:
        return "phase or part out of range";
    case ATTN_E_NONFINITE:
        return "packing: folding a finite weight overflows, or a dropped bias is not finite";
    case ATTN_E_ARGUMENT:
        return "invalid argument";
    case ATTN_E_IO:
        return "input or output error";
    case ATTN_E_MEMORY:
        return "out of memory, or a size beyond the address space";
    case ATTN_E_FORMAT:
        return "damaged, truncated or foreign data";
    case ATTN_E_MISSING:
        return "no such tensor, symbol or family";
    case ATTN_E_SHAPE:
        return "a tensor has another shape than wanted";
    case ATTN_E_DTYPE:
        return "a tensor has a dtype that cannot be converted";
    case ATTN_E_RANGE:
        return "a value is outside its range";
    case ATTN_E_CPU:
        return "the CPU or its operating system lacks a feature the kernel needs";
    case ATTN_E_ABI:
        return "made for another version of the kernel interface";
    case ATTN_E_LAYOUT:
        return "packed weights of another kernel";
    case ATTN_E_CHECKSUM:
        return "packed weights are corrupted: the checksum differs";
    case ATTN_E_SYSTEM:
        return "a thread or process could not be started, or failed";
    case ATTN_E_BYTE_ORDER:
        return "little-endian data cannot be used in place on a big-endian host";
    default:
        return "unknown error";
    }
}
