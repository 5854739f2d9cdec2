/* The header of a safetensors file: from JSON text to checked tensor descriptions.
 *
 * The header is split into its entries here and each entry is parsed by jansson: a whole tree of a
 * legal 100 MB header would take gigabytes, one entry takes a few hundred bytes. Knows nothing of
 * the file around it: the caller checks that names are unique and that ranges tile the data. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "safetensors_file.h"

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

/* ---- JSON text ---- */

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

/* ---- one entry ---- */

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
        const size_t bytes = json_string_length(key) + 1;
        memcpy(name, json_string_value(key), bytes);
        *names += bytes;
        status = add_tensor(file, name, value);
    }
    json_decref(key);
    json_decref(value);
    return status;
}

/* ---- all entries ---- */

attn_status attn_safetensors_parse(attn_safetensors *file, const char *text, size_t n)
{
    const attn_status nesting = check_nesting(text, n);
    if (nesting.code != ATTN_OK) {
        return nesting;
    }
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
