#include "checkpoint/safetensors.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/crew.h"
#include "base/file.h"
#include "base/json_split.h"
#include "base/mem.h"

/* What a failing check needs to say where it failed. */
struct parse {
    const char *path;
    uint64_t data_start; /* in the file */
    uint64_t data_bytes;
    struct nyb_err *err;
};

#define LFS_SEEN     32 /* bytes that tell a pointer of Git LFS */
#define METADATA     "__metadata__"
#define FAIL(p, ...) err_at((p)->err, NYB_E_FORMAT, (p)->path, -1, __VA_ARGS__)

static enum nyb_code parse_shape(const struct parse *p, struct ckpt_tensor *t, const json_t *shape)
{
    if (!json_is_array(shape))
        return FAIL(p, "tensor '%s' has no shape, expected a list of integers", t->name);
    if (json_array_size(shape) > CKPT_MAX_DIM)
        return FAIL(p, "tensor '%s' has %zu dimensions, expected at most %d", t->name, json_array_size(shape),
                    CKPT_MAX_DIM);

    uint64_t bytes = dtype_size(t->dtype);
    t->n_dim = (int)json_array_size(shape);
    for (int i = 0; i < t->n_dim; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return FAIL(p, "tensor '%s': dimension %d is not a non-negative integer", t->name, i);
        t->dim[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(bytes, (uint64_t)t->dim[i], &bytes))
            return FAIL(p, "tensor '%s': its shape has more elements than 64 bits can count", t->name);
    }
    t->bytes = bytes;
    return NYB_OK;
}

static enum nyb_code parse_offsets(const struct parse *p, struct ckpt_tensor *t, const json_t *offsets)
{
    uint64_t at[2];

    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return FAIL(p, "tensor '%s' has no data_offsets, expected [begin, end]", t->name);
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_array_get(offsets, (size_t)i);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return FAIL(p, "tensor '%s': data_offsets are not non-negative integers", t->name);
        at[i] = (uint64_t)json_integer_value(v);
    }
    if (at[0] > at[1])
        return FAIL(p, "tensor '%s' ends at byte %llu, before it begins at byte %llu", t->name,
                    (unsigned long long)at[1], (unsigned long long)at[0]);
    if (at[1] > p->data_bytes)
        return FAIL(
            p,
            "tensor '%s' ends at byte %llu of the data, but the file holds only %llu: it is truncated or "
            "its header is wrong",
            t->name, (unsigned long long)at[1], (unsigned long long)p->data_bytes);
    if (at[1] - at[0] != t->bytes)
        return FAIL(p, "tensor '%s' takes %llu bytes, but its shape and dtype %s need %llu", t->name,
                    (unsigned long long)(at[1] - at[0]), dtype_name(t->dtype), (unsigned long long)t->bytes);
    t->offset = p->data_start + at[0];
    return NYB_OK;
}

static enum nyb_code parse_tensor(const struct parse *p, struct ckpt_tensor *t, const json_t *entry)
{
    if (!json_is_object(entry))
        return FAIL(p, "tensor '%s' is not described by an object with dtype, shape and data_offsets",
                    t->name);

    const json_t *text = json_object_get(entry, "dtype");
    const char *dtype = json_string_value(text);
    if (!dtype || strlen(dtype) != json_string_length(text))
        return FAIL(p, "tensor '%s' has no dtype", t->name);
    t->dtype = dtype_parse(dtype);
    if (t->dtype == DTYPE_COUNT)
        return err_at(p->err, NYB_E_UNSUPPORTED, p->path, -1,
                      "tensor '%s' has dtype '%.64s', which is not known", t->name, dtype);
    TRY(parse_shape(p, t, json_object_get(entry, "shape")));
    return parse_offsets(p, t, json_object_get(entry, "data_offsets"));
}

static enum nyb_code check_metadata(const struct parse *p, const json_t *metadata)
{
    const char *key;
    json_t *value;

    if (json_is_null(metadata))
        return NYB_OK;
    if (!json_is_object(metadata))
        return FAIL(p, "__metadata__ of the header is not an object of strings");
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value))
            return FAIL(p, "__metadata__ of the header: '%.64s' is not a string", key);
    }
    return NYB_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct ckpt_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) /* empty tensors before the one that begins where they lie */
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Tensors must fill the data part from its first byte to its last. */
static enum nyb_code check_layout(const struct parse *p, struct safetensors *st)
{
    uint64_t end = p->data_start;
    const char *before = NULL;

    bool sorted = true; /* as most files are */
    for (int i = 1; i < st->n_tensor; i++)
        sorted &= by_offset(&st->tensor[i - 1], &st->tensor[i]) < 0;
    if (!sorted)
        qsort(st->tensor, (size_t)st->n_tensor, sizeof *st->tensor, by_offset);
    for (int i = 0; i < st->n_tensor; i++) {
        const struct ckpt_tensor *t = &st->tensor[i];
        if (t->offset < end)
            return FAIL(p, "tensors '%s' and '%s' overlap", before, t->name);
        if (t->offset > end)
            return FAIL(p, "%llu bytes before tensor '%s' belong to no tensor",
                        (unsigned long long)(t->offset - end), t->name);
        end = t->offset + t->bytes;
        before = t->name;
    }
    if (end - p->data_start != p->data_bytes)
        return FAIL(p, "the file is %llu bytes longer than its tensors need",
                    (unsigned long long)(p->data_bytes - (end - p->data_start)));
    return NYB_OK;
}

/* The tensors of a header, or of a part of it. */
static enum nyb_code parse_tensors(const struct parse *p, struct safetensors *st, json_t *root)
{
    const char *key;
    json_t *value;
    size_t name_bytes = 0;

    if (!json_is_object(root))
        return FAIL(p, "the header is not a JSON object");
    if (json_object_size(root) > INT_MAX)
        return FAIL(p, "the header lists %zu tensors, more than can be handled", json_object_size(root));
    json_object_foreach(root, key, value) name_bytes += strlen(key) + 1;

    st->tensor = mem_try_alloc(json_object_size(root) + 1, sizeof *st->tensor);
    st->names = mem_try_alloc(name_bytes + 1, 1);
    if (!st->tensor || !st->names)
        return err_at(p->err, NYB_E_MEMORY, p->path, -1, "no memory for a list of %zu tensors",
                      json_object_size(root));

    char *name = st->names;
    json_object_foreach(root, key, value)
    {
        if (!strcmp(key, METADATA)) {
            TRY(check_metadata(p, value));
            continue;
        }
        struct ckpt_tensor *t = &st->tensor[st->n_tensor++];
        t->name = strcpy(name, key);
        name += strlen(key) + 1;
        TRY(parse_tensor(p, t, value));
    }
    st->name_bytes = (size_t)(name - st->names);
    return NYB_OK;
}

/* ---- headers in pieces --------------------------------------------------------------------------- */

struct pieces {
    const struct parse *parse;
    struct json_split split;
    struct safetensors *st; /* (split.n) */
    atomic_int n_metadata;
    atomic_bool failed;
};

static void parse_piece(void *arg, int i)
{
    struct pieces *s = arg;
    json_t *root = atomic_load(&s->failed) ? NULL : json_split_read(&s->split, i);
    if (json_object_get(root, METADATA))
        atomic_fetch_add(&s->n_metadata, 1);
    if (!root || parse_tensors(s->parse, &s->st[i], root) != NYB_OK)
        atomic_store(&s->failed, true);
    json_decref(root);
}

/* Two tensors of one name: which JSON does not allow. The seats have a seed that a file cannot know: names
 * could be made that all want the same seat. */
static bool any_twice(const struct safetensors *st)
{
    uint64_t seed;
    size_t n = 16;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = clock_ns();
    while (n < 2 * (size_t)st->n_tensor)
        n *= 2;
    int *seat = mem_try_alloc(n, sizeof *seat); /* a tensor's number + 1 */
    bool twice = !seat;
    for (int i = 0; !twice && i < st->n_tensor; i++) {
        const char *name = st->tensor[i].name;
        size_t at = XXH3_64bits_withSeed(name, strlen(name), seed) % n;
        for (; seat[at] && !twice; at = (at + 1) % n)
            twice = !strcmp(st->tensor[seat[at] - 1].name, name);
        seat[at] = i + 1;
    }
    free(seat);
    return twice;
}

/* Of the pieces, in order. */
static bool join(struct safetensors *st, const struct pieces *s)
{
    size_t n_tensor = 0, name_bytes = 0;
    for (int i = 0; i < s->split.n; i++) {
        n_tensor += (size_t)s->st[i].n_tensor;
        name_bytes += s->st[i].name_bytes;
    }
    if (n_tensor > INT_MAX / 4)
        return false;
    st->tensor = mem_try_alloc(n_tensor + 1, sizeof *st->tensor);
    st->names = mem_try_alloc(name_bytes + 1, 1);
    if (!st->tensor || !st->names)
        return false;
    for (int i = 0; i < s->split.n; i++) {
        const struct safetensors *part = &s->st[i];
        char *names = st->names + st->name_bytes;
        memcpy(names, part->names, part->name_bytes);
        for (int t = 0; t < part->n_tensor; t++) {
            struct ckpt_tensor *to = &st->tensor[st->n_tensor++];
            *to = part->tensor[t];
            to->name = names + (part->tensor[t].name - part->names);
        }
        st->name_bytes += part->name_bytes;
    }
    return !any_twice(st);
}

/* False where the header is short, or has to be read whole for its error. */
static bool parse_pieces(const struct parse *p, struct safetensors *st, const char *json, size_t len,
                         int n_thread)
{
    struct pieces s = {.parse = p};
    if (len < 2 * JSON_SPLIT_BYTES || !json_split(&s.split, json, len, JSON_SPLIT_BYTES))
        return false;
    s.st = mem_alloc((size_t)s.split.n, sizeof *s.st);
    crew_run(s.split.n, n_thread, parse_piece, &s);
    bool ok = !atomic_load(&s.failed) && atomic_load(&s.n_metadata) <= 1 && join(st, &s);
    st->n_piece = s.split.n;
    for (int i = 0; i < s.split.n; i++)
        safetensors_free(&s.st[i]);
    free(s.st);
    json_split_free(&s.split);
    if (!ok)
        safetensors_free(st);
    return ok;
}

static enum nyb_code parse_whole(const struct parse *p, struct safetensors *st, const char *json, size_t len)
{
    json_t *root = NULL;
    enum nyb_code code = json_parse(&root, json, len, p->path, p->err);
    if (code == NYB_OK)
        code = parse_tensors(p, st, root);
    json_decref(root);
    return code;
}

enum nyb_code safetensors_parse(struct safetensors *st, const char *json, size_t len, uint64_t data_bytes,
                                const char *path, int n_thread, struct nyb_err *err)
{
    struct parse p = {path, 8 + (uint64_t)len, data_bytes, err}, quiet = p;
    enum nyb_code code = NYB_OK;

    *st = (struct safetensors){0};
    quiet.err = NULL;
    if (!parse_pieces(&quiet, st, json, len, n_thread))
        code = parse_whole(&p, st, json, len);
    if (code == NYB_OK)
        code = check_layout(&p, st);
    if (code != NYB_OK)
        safetensors_free(st);
    return code;
}

static uint64_t header_length(const uint8_t raw[8])
{
    uint64_t n = 0;
    for (int i = 0; i < 8; i++)
        n |= (uint64_t)raw[i] << (8 * i);
    return n;
}

uint64_t safetensors_header_bytes(int fd)
{
    uint8_t raw[8];
    if (pread(fd, raw, sizeof raw, 0) != (ssize_t)sizeof raw)
        return 0;
    uint64_t n = header_length(raw);
    return n <= SAFETENSORS_HEADER_MAX ? n : 0;
}

enum nyb_code safetensors_read(struct safetensors *st, int fd, const char *path, uint64_t size, int n_thread,
                               struct nyb_err *err)
{
    uint8_t raw[8], start[LFS_SEEN];
    uint64_t len = 0;

    *st = (struct safetensors){0};
    if (size < sizeof raw)
        return err_at(err, NYB_E_FORMAT, path, 0,
                      "the file has %llu bytes, too few for the header length of a safetensors file",
                      (unsigned long long)size);
    TRY(file_read_at(fd, path, 0, raw, sizeof raw, err));
    len = header_length(raw);
    if (len > size - sizeof raw && size >= sizeof start) {
        TRY(file_read_at(fd, path, 0, start, sizeof start, err));
        if (file_is_lfs_pointer(start, sizeof start))
            return err_at(err, NYB_E_FORMAT, path, -1, FILE_IS_LFS_POINTER);
    }
    if (len > size - sizeof raw)
        return err_at(err, NYB_E_FORMAT, path, 0, "the header claims %llu bytes, but the file has only %llu",
                      (unsigned long long)len, (unsigned long long)size);
    if (len > SAFETENSORS_HEADER_MAX)
        return err_at(err, NYB_E_FORMAT, path, 0, "the header claims %llu bytes, expected at most %u",
                      (unsigned long long)len, SAFETENSORS_HEADER_MAX);

    char *json = mem_try_alloc((size_t)len + 1, 1);
    if (!json)
        return err_at(err, NYB_E_MEMORY, path, 0, "no memory for a header of %llu bytes",
                      (unsigned long long)len);
    enum nyb_code code = file_read_at(fd, path, sizeof raw, json, (size_t)len, err);
    if (code == NYB_OK)
        code = safetensors_parse(st, json, (size_t)len, size - sizeof raw - len, path, n_thread, err);
    free(json);
    return code;
}

void safetensors_free(struct safetensors *st)
{
    free(st->tensor);
    free(st->names);
    *st = (struct safetensors){0};
}
