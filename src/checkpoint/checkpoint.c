#include "checkpoint/checkpoint.h"

#include <limits.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/crew.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/headers.h"

#define UNUSED_SHOWN 4 /* names in the line about unused tensors */

static int by_name(const void *a, const void *b)
{
    const struct ckpt_tensor *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->file > y->file) - (x->file < y->file);
}

/* Append the tensors of file number `file`. Their names move into the arena. */
static enum nyb_code add_tensors(struct ckpt *c, struct headers *h, int file, struct nyb_err *err)
{
    struct ckpt_file *f = &c->file[file];
    struct safetensors st;

    TRY(headers_take(h, f, &st, err));
    if (st.n_tensor > INT_MAX - c->n_tensor) {
        safetensors_free(&st);
        return err_at(err, NYB_E_FORMAT, f->path, -1, "the checkpoint has too many tensors");
    }

    size_t n = (size_t)c->n_tensor + (size_t)st.n_tensor;
    c->tensor = mem_grow(c->tensor, n + 1, sizeof *c->tensor);
    for (int i = 0; i < st.n_tensor; i++) {
        struct ckpt_tensor *t = &c->tensor[c->n_tensor++];
        *t = st.tensor[i];
        t->file = file;
        t->name = arena_strdup(c->arena, t->name);
        c->tensor_bytes += t->bytes;
    }
    safetensors_free(&st);
    return NYB_OK;
}

static enum nyb_code check_duplicates(const struct ckpt *c, struct nyb_err *err)
{
    for (int i = 1; i < c->n_tensor; i++) {
        const struct ckpt_tensor *a = &c->tensor[i - 1], *b = &c->tensor[i];
        if (!strcmp(a->name, b->name))
            return err_at(err, NYB_E_FORMAT, b->name, -1, "this tensor is in two files: %s and %s",
                          c->file[a->file].path, c->file[b->file].path);
    }
    return NYB_OK;
}

/* ---- the index ----------------------------------------------------------------------------------- */

struct map_check {
    const struct ckpt *c;
    const struct index_set *set;
    atomic_uchar *seen; /* (n_tensor) */
    atomic_bool failed;
};

/* Every tensor that the index names must be in the file where it says, and be named once. */
static enum nyb_code check_map(struct map_check *m, const json_t *map, struct nyb_err *err)
{
    const struct ckpt *c = m->c;
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)map, key, value)
    {
        const char *shard = json_string_value(value);
        const struct ckpt_tensor *t = ckpt_find(c, key);
        if (!t)
            return err_at(err, NYB_E_FORMAT, key, -1,
                          "%s places this tensor in '%s', but no file of %s has it", INDEX_FILE_NAME, shard,
                          c->folder);
        const char *path = c->file[t->file].path;
        if (strcmp(strrchr(path, '/') + 1, shard))
            return err_at(err, NYB_E_FORMAT, key, -1, "%s places this tensor in '%s', but it is in %s",
                          INDEX_FILE_NAME, shard, path);
        if (atomic_exchange_explicit(&m->seen[t - c->tensor], 1, memory_order_relaxed))
            return err_at(err, NYB_E_FORMAT, key, -1, "%s is not valid JSON: duplicate object key",
                          INDEX_FILE_NAME);
    }
    return NYB_OK;
}

static void check_part(void *arg, int i)
{
    struct map_check *m = arg;
    if (check_map(m, m->set->map[i], NULL) != NYB_OK)
        atomic_store(&m->failed, true);
}

static enum nyb_code check_index(const struct ckpt *c, const struct index_set *set, int n_thread,
                                 struct nyb_err *err)
{
    struct map_check m = {.c = c, .set = set};
    m.seen = mem_alloc((size_t)c->n_tensor, sizeof *m.seen);
    crew_run(set->n_map, n_thread, check_part, &m);
    enum nyb_code code = NYB_OK;
    if (atomic_load(&m.failed)) { /* once more, for the first error */
        memset(m.seen, 0, (size_t)c->n_tensor * sizeof *m.seen);
        for (int i = 0; code == NYB_OK && i < set->n_map; i++)
            code = check_map(&m, set->map[i], err);
    }
    free(m.seen);
    return code;
}

static enum nyb_code sort_tensors(struct ckpt *c, struct nyb_err *err)
{
    if (c->n_tensor == 0)
        return err_at(err, NYB_E_FORMAT, c->file[0].path, -1, "holds no tensors");
    qsort(c->tensor, (size_t)c->n_tensor, sizeof *c->tensor, by_name);
    return check_duplicates(c, err);
}

static enum nyb_code open_all(struct ckpt *c, struct headers *h, const struct index_set *set, int n_thread,
                              struct nyb_err *err)
{
    c->file = mem_alloc((size_t)set->n_file, sizeof *c->file);
    for (int i = 0; i < set->n_file; i++) {
        c->file[i] = (struct ckpt_file){.path = path_join(c->folder, set->file[i]), .fd = -1};
        c->n_file++;
        TRY(add_tensors(c, h, i, err));
    }
    TRY(sort_tensors(c, err));
    return set->n_map > 0 ? check_index(c, set, n_thread, err) : NYB_OK;
}

static struct ckpt *make(const char *folder)
{
    struct ckpt *c = mem_alloc(1, sizeof *c);
    c->folder = mem_strdup(folder);
    c->arena = mem_alloc(1, sizeof(struct arena));
    arena_init(c->arena, 256 << 10);
    return c;
}

enum nyb_code ckpt_open_fd(struct ckpt **out, int fd, const char *name, struct nyb_err *err)
{
    struct ckpt *c = make(name);
    c->file = mem_alloc(1, sizeof *c->file);
    c->file[0] = (struct ckpt_file){.path = mem_strdup(name), .fd = fd};
    c->n_file = 1;
    struct headers *none;
    headers_start(&none, name, &(struct index_set){0}, 0);
    enum nyb_code code = add_tensors(c, none, 0, err);
    headers_stop(none);
    if (code == NYB_OK)
        code = sort_tensors(c, err);
    if (code != NYB_OK) {
        ckpt_close(c);
        c = NULL;
    }
    *out = c;
    return code;
}

enum nyb_code ckpt_open(struct ckpt **out, const char *folder, int n_thread, struct nyb_err *err)
{
    struct index_set set, likely;
    struct headers *h;
    struct ckpt *c = make(folder);

    *out = NULL;
    index_guess(&likely, folder);
    headers_start(&h, folder, &likely, n_thread);
    enum nyb_code code = index_read(&set, folder, n_thread, err);
    if (code == NYB_OK) {
        code = open_all(c, h, &set, n_thread, err);
        index_free(&set);
    }
    headers_stop(h);
    index_free(&likely);
#ifdef __GLIBC__
    malloc_trim(0); /* the JSON of a large header leaves 100 MB behind, which the weights will need */
#endif
    if (code != NYB_OK) {
        ckpt_close(c);
        return code;
    }
    *out = c;
    return NYB_OK;
}

void ckpt_close(struct ckpt *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n_file; i++) {
        if (c->file[i].fd >= 0)
            close(c->file[i].fd);
        free(c->file[i].path);
    }
    free(c->file);
    free(c->tensor);
    free(c->folder);
    arena_free(c->arena);
    free(c->arena);
    free(c);
}

static struct ckpt_tensor *find(const struct ckpt *c, const char *name)
{
    int low = 0, high = c->n_tensor;
    while (low < high) {
        int mid = low + (high - low) / 2;
        int order = strcmp(name, c->tensor[mid].name);
        if (order == 0)
            return &c->tensor[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

const struct ckpt_tensor *ckpt_find(const struct ckpt *c, const char *name)
{
    return find(c, name);
}

const struct ckpt_tensor *ckpt_take(struct ckpt *c, const char *name)
{
    struct ckpt_tensor *t = find(c, name);
    if (t)
        atomic_store_explicit(&t->used, 1, memory_order_relaxed);
    return t;
}

enum nyb_code ckpt_read(const struct ckpt *c, const struct ckpt_tensor *t, uint64_t offset, void *dst,
                        size_t len, struct nyb_err *err)
{
    ASSERT(offset <= t->bytes && len <= t->bytes - offset);
    const struct ckpt_file *f = &c->file[t->file];
    return file_read_at(f->fd, f->path, t->offset + offset, dst, len, err);
}

enum nyb_code ckpt_read_scalar(const struct ckpt *c, const struct ckpt_tensor *t, float *out,
                               struct nyb_err *err)
{
    uint8_t raw[8];

    if (t->n_dim > 1 || (t->n_dim == 1 && t->dim[0] != 1))
        return err_at(err, NYB_E_FORMAT, t->name, -1,
                      "in %s: has %d dimensions and %llu bytes, expected one number of shape [] or [1]",
                      c->file[t->file].path, t->n_dim, (unsigned long long)t->bytes);
    if (!dtype_is_float(t->dtype))
        return err_at(err, NYB_E_FORMAT, t->name, -1, "in %s: has dtype %s, expected F32, F16, BF16 or F64",
                      c->file[t->file].path, dtype_name(t->dtype));
    TRY(ckpt_read(c, t, 0, raw, (size_t)t->bytes, err));
    *out = dtype_to_float(t->dtype, raw);
    return NYB_OK;
}

void ckpt_log_unused(const struct ckpt *c)
{
    struct buf names = {0};
    int n = 0;

    for (int i = 0; i < c->n_tensor; i++) {
        if (atomic_load_explicit(&c->tensor[i].used, memory_order_relaxed))
            continue;
        if (n++ < UNUSED_SHOWN)
            buf_printf(&names, "%s%.160s", n > 1 ? ", " : "", c->tensor[i].name);
    }
    if (n > 0)
        log_info("%d of %d tensors are not used by this model: %s%s", n, c->n_tensor, names.data,
                 n > UNUSED_SHOWN ? ", ..." : "");
    buf_free(&names);
}
