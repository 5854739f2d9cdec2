/* Reader of safetensors files.
 *
 * The header is split into its entries here and each entry is parsed by jansson: a whole tree of a
 * legal 100 MB header would take gigabytes, one entry takes a few hundred bytes. Uniqueness of names
 * and the layout of the data are checked by sorting, so that the time stays linear but for the
 * sorts. Nothing is allocated, read or indexed by a number that has not been checked. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bytes.h"
#include "checked.h"
#include "file.h"
#include "safetensors_file.h"

#define PREFIX_BYTES 8
#define MAX_NESTING 3          /* header, tensor, shape */
#define MAX_ARRAY_ITEMS 16     /* shapes and offsets are the only arrays */
#define MAX_OBJECT_ITEMS 65536 /* __metadata__ is the only large object inside */

/* ---- dtypes ---- */

static const struct {
    const char *name;
    attn_dtype dtype;
    unsigned bits;
} DTYPES[] = {
    {"BOOL", ATTN_BOOL, 8},
    {"U8", ATTN_U8, 8},
    {"I8", ATTN_I8, 8},
    {"I16", ATTN_I16, 16},
    {"U16", ATTN_U16, 16},
    {"F16", ATTN_F16, 16},
    {"BF16", ATTN_BF16, 16},
    {"I32", ATTN_I32, 32},
    {"U32", ATTN_U32, 32},
    {"F32", ATTN_F32, 32},
    {"I64", ATTN_I64, 64},
    {"U64", ATTN_U64, 64},
    {"F64", ATTN_F64, 64},
    {"C64", ATTN_OTHER_DTYPE, 64},
    {"F8_E4M3", ATTN_OTHER_DTYPE, 8},
    {"F8_E5M2", ATTN_OTHER_DTYPE, 8},
    {"F8_E8M0", ATTN_OTHER_DTYPE, 8},
    {"F8_E4M3FNUZ", ATTN_OTHER_DTYPE, 8},
    {"F8_E5M2FNUZ", ATTN_OTHER_DTYPE, 8},
    {"F6_E2M3", ATTN_OTHER_DTYPE, 6},
    {"F6_E3M2", ATTN_OTHER_DTYPE, 6},
    {"F4", ATTN_OTHER_DTYPE, 4},
};

/* ---- header: its entries ---- */

typedef struct cursor {
    const char *text;
    size_t n, at;
} cursor;

static void skip_space(cursor *in)
{
    while (in->at < in->n && strchr(" \t\r\n", in->text[in->at]) != NULL &&
           in->text[in->at] != '\0') {
        in->at++;
    }
}

static bool take(cursor *in, char wanted)
{
    skip_space(in);
    if (in->at < in->n && in->text[in->at] == wanted) {
        in->at++;
        return true;
    }
    return false;
}

/* One pass over the header before anything is parsed: brackets no deeper and lists no longer than a
 * header can need. Bounds the recursion and the memory of the JSON library. */
static attn_status check_nesting(const char *text, size_t n)
{
    size_t items[MAX_NESTING + 1] = {0};
    bool is_array[MAX_NESTING + 1] = {false};
    size_t depth = 0;
    bool in_string = false;
    for (size_t at = 0; at < n; at++) {
        const char c = text[at];
        if (in_string) {
            at += c == '\\';
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > MAX_NESTING) {
                return attn_fail(ATTN_E_FORMAT, "header byte %zu: nested too deeply", at);
            }
            items[depth] = 1;
            is_array[depth] = c == '[';
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        } else if (c == ',' && depth > 1) {
            items[depth]++;
            if (items[depth] > (is_array[depth] ? MAX_ARRAY_ITEMS : MAX_OBJECT_ITEMS)) {
                return attn_fail(ATTN_E_FORMAT, "header byte %zu: too many items", at);
            }
        }
    }
    return attn_success();
}

/* The JSON value at the cursor. On failure *value is NULL. */
static attn_status parse_value(cursor *in, json_t **value)
{
    json_error_t error;
    skip_space(in);
    *value = json_loadb(in->text + in->at, in->n - in->at,
                        JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK, &error);
    if (*value == NULL) {
        const size_t at = in->at + (error.position > 0 ? (size_t)error.position : 0);
        if (json_error_code(&error) == json_error_duplicate_key) {
            return attn_fail(ATTN_E_FORMAT, "header byte %zu: duplicate key: %s", at, error.text);
        }
        return attn_fail(ATTN_E_FORMAT, "header byte %zu: not JSON: %s", at, error.text);
    }
    in->at += (size_t)error.position;
    return attn_success();
}

static attn_status parse_shape(attn_tensor *tensor, const json_t *shape)
{
    if (!json_is_array(shape) || json_array_size(shape) > ATTN_MAX_RANK) {
        return attn_fail(ATTN_E_FORMAT, "tensor \"%s\": shape is no list of at most %d numbers",
                         tensor->name, ATTN_MAX_RANK);
    }
    tensor->rank = json_array_size(shape);
    tensor->elements = 1;
    for (size_t i = 0; i < tensor->rank; i++) {
        const json_t *size = json_array_get(shape, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return attn_fail(ATTN_E_FORMAT, "tensor \"%s\": shape[%zu] is no integer >= 0",
                             tensor->name, i);
        }
        tensor->shape[i] = (uint64_t)json_integer_value(size);
        if (!attn_mul_u64(tensor->elements, tensor->shape[i], &tensor->elements)) {
            return attn_fail(ATTN_E_FORMAT, "tensor \"%s\": the product of the shape overflows",
                             tensor->name);
        }
    }
    return attn_success();
}

static attn_status parse_range(attn_tensor *tensor, const json_t *range, unsigned bits)
{
    const json_t *begin = json_array_get(range, 0);
    const json_t *end = json_array_get(range, 1);
    if (json_array_size(range) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin)) {
        return attn_fail(ATTN_E_FORMAT,
                         "tensor \"%s\": data_offsets are not two ascending integers >= 0",
                         tensor->name);
    }
    tensor->begin = (uint64_t)json_integer_value(begin);
    tensor->end = (uint64_t)json_integer_value(end);
    const uint64_t found = tensor->end - tensor->begin;
    uint64_t wanted;
    if (!attn_mul_u64(tensor->elements, bits, &wanted)) {
        return attn_fail(ATTN_E_FORMAT, "tensor \"%s\": its size overflows", tensor->name);
    }
    if (wanted % 8 != 0 || wanted / 8 != found) {
        char shape[ATTN_SHAPE_TEXT_BYTES];
        return attn_fail(
            ATTN_E_FORMAT, "tensor \"%s\": %s %s needs %llu%s bytes, data_offsets give %llu",
            tensor->name, tensor->dtype_name, attn_shape_text(tensor->shape, tensor->rank, shape),
            (unsigned long long)(wanted / 8), wanted % 8 != 0 ? " and a fraction" : "",
            (unsigned long long)found);
    }
    return attn_success();
}

static attn_status parse_tensor(attn_tensor *tensor, const json_t *entry)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (dtype == NULL) {
        return attn_fail(ATTN_E_FORMAT, "tensor \"%s\": no object with a dtype", tensor->name);
    }
    unsigned bits = 0;
    for (size_t i = 0; i < sizeof DTYPES / sizeof DTYPES[0]; i++) {
        if (strcmp(dtype, DTYPES[i].name) == 0) {
            tensor->dtype = DTYPES[i].dtype;
            tensor->dtype_name = DTYPES[i].name;
            bits = DTYPES[i].bits;
        }
    }
    if (bits == 0) {
        return attn_fail(ATTN_E_DTYPE, "tensor \"%s\": unknown dtype \"%.40s\"", tensor->name,
                         dtype);
    }
    const attn_status status = parse_shape(tensor, json_object_get(entry, "shape"));
    return status.code != ATTN_OK
               ? status
               : parse_range(tensor, json_object_get(entry, "data_offsets"), bits);
}

static attn_status check_metadata(json_t *entry)
{
    const char *key;
    json_t *value;
    if (!json_is_object(entry)) {
        return attn_fail(ATTN_E_FORMAT, "__metadata__ is no object");
    }
    json_object_foreach(entry, key, value)
    {
        if (!json_is_string(value)) {
            return attn_fail(ATTN_E_FORMAT, "__metadata__: \"%.80s\" is no string", key);
        }
    }
    return attn_success();
}

static attn_status add_tensor(attn_safetensors *file, const char *name, const json_t *entry)
{
    if (file->count == file->room) {
        const size_t room = file->room == 0 ? 16 : 2 * file->room;
        attn_tensor *grown =
            room > SIZE_MAX / sizeof *grown ? NULL : realloc(file->tensors, room * sizeof *grown);
        if (grown == NULL) {
            return attn_fail(ATTN_E_MEMORY, "out of memory: %zu tensors", room);
        }
        file->tensors = grown;
        file->room = room;
    }
    attn_tensor *tensor = &file->tensors[file->count];
    memset(tensor, 0, sizeof *tensor);
    tensor->name = name;
    const attn_status status = parse_tensor(tensor, entry);
    file->count += status.code == ATTN_OK;
    return status;
}

/* One `"name": {…}` at the cursor. *names is where the next name is stored. */
static attn_status parse_entry(attn_safetensors *file, cursor *in, char **names, bool *has_metadata)
{
    json_t *key = NULL;
    json_t *value = NULL;
    skip_space(in);
    if (in->at == in->n || in->text[in->at] != '"') {
        return attn_fail(ATTN_E_FORMAT, "header byte %zu: not JSON: a name should stand here",
                         in->at);
    }
    attn_status status = parse_value(in, &key);
    if (status.code == ATTN_OK && !take(in, ':')) {
        status =
            attn_fail(ATTN_E_FORMAT, "header byte %zu: not JSON: ':' should stand here", in->at);
    }
    if (status.code == ATTN_OK) {
        status = parse_value(in, &value);
    }
    if (status.code == ATTN_OK && strcmp(json_string_value(key), "__metadata__") == 0) {
        status = *has_metadata ? attn_fail(ATTN_E_FORMAT, "duplicate key \"__metadata__\"")
                               : check_metadata(value);
        *has_metadata = true;
    } else if (status.code == ATTN_OK) {
        /* Decoded text is never longer than its JSON form with the quotes: `names` has room. */
        char *name = *names;
        strcpy(name, json_string_value(key));
        *names += strlen(name) + 1;
        status = add_tensor(file, name, value);
    }
    json_decref(key);
    json_decref(value);
    return status;
}

static attn_status parse_entries(attn_safetensors *file, const char *text, size_t n)
{
    cursor in = {text, n, 0};
    if (n == 0 || text[0] != '{') {
        return attn_fail(ATTN_E_FORMAT, "the header does not start with '{'");
    }
    in.at = 1;
    char *names = file->names;
    bool has_metadata = false;
    bool more = !take(&in, '}');
    while (more) {
        const attn_status status = parse_entry(file, &in, &names, &has_metadata);
        if (status.code != ATTN_OK) {
            return status;
        }
        more = take(&in, ',');
        if (!more && !take(&in, '}')) {
            return attn_fail(ATTN_E_FORMAT,
                             "header byte %zu: not JSON: ',' or '}' should stand here", in.at);
        }
    }
    skip_space(&in);
    if (in.at != n) {
        return attn_fail(ATTN_E_FORMAT, "header byte %zu: something behind the closing '}'", in.at);
    }
    return attn_success();
}

/* ---- header: the whole ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const attn_tensor *)a)->name, ((const attn_tensor *)b)->name);
}

static int by_range(const void *a, const void *b)
{
    const attn_tensor *left = *(const attn_tensor *const *)a;
    const attn_tensor *right = *(const attn_tensor *const *)b;
    if (left->begin != right->begin) {
        return left->begin < right->begin ? -1 : 1;
    }
    return left->end < right->end ? -1 : left->end > right->end;
}

static attn_status check_names(attn_safetensors *file)
{
    if (file->count > 1) {
        qsort(file->tensors, file->count, sizeof file->tensors[0], by_name);
    }
    for (size_t i = 1; i < file->count; i++) {
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0) {
            return attn_fail(ATTN_E_FORMAT, "duplicate key \"%s\"", file->tensors[i].name);
        }
    }
    return attn_success();
}

/* The tensors must tile the data: from 0, without gap or overlap, to the end of the file. */
static attn_status check_layout(const attn_safetensors *file)
{
    const attn_tensor **order = malloc((file->count + 1) * sizeof *order);
    if (order == NULL) {
        return attn_fail(ATTN_E_MEMORY, "out of memory");
    }
    for (size_t i = 0; i < file->count; i++) {
        order[i] = &file->tensors[i];
    }
    if (file->count > 1) {
        qsort(order, file->count, sizeof order[0], by_range);
    }
    attn_status status = attn_success();
    uint64_t end = 0;
    for (size_t i = 0; i < file->count && status.code == ATTN_OK; i++) {
        if (order[i]->begin != end) {
            status = attn_fail(ATTN_E_FORMAT, "tensor \"%s\" starts at data byte %llu, %s %llu",
                               order[i]->name, (unsigned long long)order[i]->begin,
                               order[i]->begin < end ? "inside the one that ends at"
                                                     : "leaving a gap behind",
                               (unsigned long long)end);
        }
        end = order[i]->end;
    }
    const uint64_t have = file->file_bytes - file->data_start;
    if (status.code == ATTN_OK && end > have) {
        const attn_tensor *last = order[file->count - 1];
        status = attn_fail(ATTN_E_FORMAT,
                           "incomplete file: tensor \"%s\" ends at data byte %llu, need %llu bytes "
                           "of data, have %llu",
                           last->name, (unsigned long long)last->end, (unsigned long long)end,
                           (unsigned long long)have);
    } else if (status.code == ATTN_OK && end < have) {
        status = attn_fail(ATTN_E_FORMAT,
                           "%llu bytes behind the last tensor: data end at %llu, "
                           "the file has %llu",
                           (unsigned long long)(have - end), (unsigned long long)end,
                           (unsigned long long)have);
    }
    free(order);
    return status;
}

/* Other things that are often found under a name ending in .safetensors. */
static const struct {
    const char *start;
    const char *what;
} FOREIGN[] = {
    {"version ", "a git-LFS pointer, not the real file: fetch it with git lfs pull"},
    {"PK\3\4", "a zip archive, such as PyTorch writes, not safetensors"},
    {"GGUF", "a GGUF file, not safetensors"},
    {"<!DOCTYP", "a web page, not safetensors"},
    {"<html", "a web page, not safetensors"},
};

/* Length of the header from the first bytes of the file. */
static attn_status check_prefix(const unsigned char *prefix, uint64_t file_bytes,
                                uint64_t *header_bytes)
{
    for (size_t i = 0; i < sizeof FOREIGN / sizeof FOREIGN[0]; i++) {
        const size_t n = strlen(FOREIGN[i].start);
        if (file_bytes >= n && memcmp(prefix, FOREIGN[i].start, n) == 0) {
            return attn_fail(ATTN_E_FORMAT, "this is %s", FOREIGN[i].what);
        }
    }
    if (file_bytes < PREFIX_BYTES) {
        return attn_fail(ATTN_E_FORMAT, "file too short: %llu bytes, a header length has 8",
                         (unsigned long long)file_bytes);
    }
    const uint64_t n = attn_le64(prefix);
    if (n < 2) {
        return attn_fail(ATTN_E_FORMAT, "header length %llu: not even {}", (unsigned long long)n);
    }
    if (n > file_bytes - PREFIX_BYTES) {
        return attn_fail(ATTN_E_FORMAT,
                         "header length %llu exceeds the file%s: incomplete file, have %llu bytes",
                         (unsigned long long)n,
                         n > ATTN_MAX_HEADER_BYTES ? " (and the limit of 100000000)" : "",
                         (unsigned long long)file_bytes);
    }
    if (n > ATTN_MAX_HEADER_BYTES) {
        return attn_fail(ATTN_E_FORMAT, "header length %llu exceeds the limit of %d",
                         (unsigned long long)n, ATTN_MAX_HEADER_BYTES);
    }
    *header_bytes = n;
    return attn_success();
}

static attn_status read_bytes(const attn_safetensors *file, uint64_t offset, void *out, size_t n)
{
    if (file->base == NULL) {
        return attn_file_read(file->fd, offset, out, n);
    }
    memcpy(out, file->base + offset, n);
    return attn_success();
}

/* Fills a file whose source (fd or base, file_bytes) is set. */
static attn_status load_header(attn_safetensors *file)
{
    unsigned char prefix[PREFIX_BYTES] = {0};
    uint64_t n = 0;
    attn_status status = attn_success();
    if (file->file_bytes > 0) {
        status =
            read_bytes(file, 0, prefix,
                       file->file_bytes < PREFIX_BYTES ? (size_t)file->file_bytes : PREFIX_BYTES);
    }
    if (status.code == ATTN_OK) {
        status = check_prefix(prefix, file->file_bytes, &n);
    }
    if (status.code != ATTN_OK) {
        return status;
    }
    file->data_start = PREFIX_BYTES + n;
    char *text = malloc((size_t)n);
    file->names = malloc((size_t)n);
    if (text == NULL || file->names == NULL) {
        status =
            attn_fail(ATTN_E_MEMORY, "out of memory: header of %llu bytes", (unsigned long long)n);
    }
    if (status.code == ATTN_OK) {
        status = read_bytes(file, PREFIX_BYTES, text, (size_t)n);
    }
    if (status.code == ATTN_OK) {
        status = check_nesting(text, (size_t)n);
    }
    if (status.code == ATTN_OK) {
        status = parse_entries(file, text, (size_t)n);
    }
    if (status.code == ATTN_OK) {
        status = check_names(file);
    }
    if (status.code == ATTN_OK) {
        status = check_layout(file);
    }
    free(text);
    return status;
}

/* ---- opening and closing ---- */

static attn_status new_file(attn_safetensors **file)
{
    *file = calloc(1, sizeof **file);
    if (*file == NULL) {
        return attn_fail(ATTN_E_MEMORY, "out of memory");
    }
    (*file)->fd = -1;
    return attn_success();
}

/* The mapping outlives the descriptor. An empty file cannot be mapped and need not be. */
static attn_status map_file(attn_safetensors *file)
{
    if (file->file_bytes > SIZE_MAX) {
        return attn_fail(ATTN_E_MEMORY, "the file exceeds the address space");
    }
    void *base = mmap(NULL, (size_t)file->file_bytes, PROT_READ, MAP_PRIVATE, file->fd, 0);
    if (base == MAP_FAILED) {
        return attn_fail(ATTN_E_IO, "cannot map the file: %s", strerror(errno));
    }
    file->base = base;
    file->is_mapped = true;
    attn_file_close(file->fd);
    file->fd = -1;
    return attn_success();
}

attn_status attn_safetensors_open(const char *path, attn_open_mode mode, attn_safetensors **file)
{
    *file = NULL;
    attn_safetensors *opened;
    attn_status status = new_file(&opened);
    if (status.code != ATTN_OK) {
        return status;
    }
    status = attn_file_open(path, &opened->fd, &opened->file_bytes); /* names the path */
    if (status.code != ATTN_OK) {
        attn_safetensors_close(opened);
        return status;
    }
    if (mode == ATTN_OPEN_MAP && opened->file_bytes > 0) {
        status = map_file(opened);
    }
    if (status.code == ATTN_OK) {
        status = load_header(opened);
    }
    if (status.code != ATTN_OK) {
        attn_safetensors_close(opened);
        return attn_fail(status.code, "%s: %s", path, status.message);
    }
    *file = opened;
    return attn_success();
}

attn_status attn_safetensors_open_memory(const void *bytes, size_t n, attn_safetensors **file)
{
    *file = NULL;
    if (bytes == NULL) {
        return attn_fail(ATTN_E_NULL, "attn_safetensors_open_memory: NULL");
    }
    attn_safetensors *opened;
    attn_status status = new_file(&opened);
    if (status.code != ATTN_OK) {
        return status;
    }
    opened->base = bytes;
    opened->file_bytes = n;
    status = load_header(opened);
    if (status.code != ATTN_OK) {
        attn_safetensors_close(opened);
        return status;
    }
    *file = opened;
    return attn_success();
}

void attn_safetensors_close(attn_safetensors *file)
{
    if (file == NULL) {
        return;
    }
    if (file->is_mapped) {
        /* mmap gave a writable type; the pages themselves are read-only. */
        munmap((void *)(uintptr_t)file->base, (size_t)file->file_bytes);
    }
    attn_file_close(file->fd);
    free(file->tensors);
    free(file->names);
    free(file);
}
