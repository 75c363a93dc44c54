#include "cli/golden.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"

struct tensors {
    struct safetensors st;
    int fd;
    char *path;
};

static const struct ckpt_tensor *find(const struct tensors *t, const char *name)
{
    for (int i = 0; i < t->st.n_tensor; i++)
        if (!strcmp(t->st.tensor[i].name, name))
            return &t->st.tensor[i];
    return NULL;
}

/* A tensor of the given dtype and dimensions (cols 0: one-dimensional) into fresh memory. */
static enum nyb_code read_tensor(const struct tensors *t, const char *name, enum dtype dtype, int64_t rows,
                                 int64_t cols, void *out, struct nyb_err *err)
{
    const struct ckpt_tensor *x = find(t, name);
    if (!x)
        return err_at(err, NYB_E_FORMAT, t->path, -1, "tensor '%s' is missing", name);
    bool fits =
        x->dtype == dtype && x->dim[0] == rows && (cols ? x->n_dim == 2 && x->dim[1] == cols : x->n_dim == 1);
    if (!fits)
        return err_at(err, NYB_E_FORMAT, t->path, -1, "tensor '%s' is not %s of (%lld, %lld)", name,
                      dtype_name(dtype), (long long)rows, (long long)cols);
    void *data = mem_alloc(x->bytes, 1);
    *(void **)out = data;
    return file_read_at(t->fd, t->path, x->offset, data, x->bytes, err);
}

static enum nyb_code read_all(struct golden *g, const struct tensors *t, struct nyb_err *err)
{
    const struct ckpt_tensor *ids = find(t, "ids");
    if (!ids || ids->n_dim != 1 || ids->dim[0] < 1 || ids->dim[0] > 1 << 20)
        return err_at(err, NYB_E_FORMAT, t->path, -1, "tensor 'ids' is missing or not a list");
    g->n_tok = (int)ids->dim[0];
    TRY(read_tensor(t, "ids", DTYPE_I32, g->n_tok, 0, &g->ids, err));
    for (int i = 0; i < g->n_tok; i++)
        if (g->ids[i] < 0 || g->ids[i] >= g->vocab)
            return err_at(err, NYB_E_FORMAT, t->path, -1, "id %d is outside the vocabulary of %d", g->ids[i],
                          g->vocab);
    TRY(read_tensor(t, "logits", DTYPE_F32, g->n_tok, g->vocab, &g->logits, err));
    if (find(t, "logits_w4a4"))
        TRY(read_tensor(t, "logits_w4a4", DTYPE_F32, g->n_tok, g->vocab, &g->logits_w4a4, err));
    g->hidden = mem_alloc((size_t)g->n_hidden, sizeof(*g->hidden));
    for (int i = 0; i < g->n_hidden; i++) {
        char name[32];
        snprintf(name, sizeof(name), "hidden.%d", i);
        TRY(read_tensor(t, name, DTYPE_F32, g->n_tok, g->hidden_size, &g->hidden[i], err));
    }
    return NYB_OK;
}

static enum nyb_code read_safetensors(struct golden *g, char *path, struct nyb_err *err)
{
    struct tensors t = {.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    struct stat st;
    if (t.fd < 0)
        return err_at(err, NYB_E_IO, path, -1, "cannot open: %s", strerror(errno));
    if (fstat(t.fd, &st) || !S_ISREG(st.st_mode)) { /* opening a pipe did not wait for its other end */
        close(t.fd);
        return err_at(err, NYB_E_IO, path, -1, "is not a regular file");
    }
    enum nyb_code code = safetensors_read(&t.st, t.fd, path, (uint64_t)st.st_size, 0, err);
    if (code == NYB_OK) {
        code = read_all(g, &t, err);
        safetensors_free(&t.st);
    }
    close(t.fd);
    return code;
}

static enum nyb_code read_ids(const json_t *list, const char *key, const char *path, int vocab, int32_t **out,
                              int *n, struct nyb_err *err)
{
    const json_t *array = json_object_get(list, key);
    if (!json_is_array(array) || json_array_size(array) == 0 || json_array_size(array) > 1 << 20)
        return err_at(err, NYB_E_FORMAT, path, -1, "\"%s\" is missing or not a list of ids", key);
    *n = (int)json_array_size(array);
    *out = mem_alloc((size_t)*n, sizeof(int32_t));
    for (int i = 0; i < *n; i++) {
        const json_t *id = json_array_get(array, (size_t)i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab)
            return err_at(err, NYB_E_FORMAT, path, -1, "\"%s\"[%d] is not an id below %d", key, i, vocab);
        (*out)[i] = (int32_t)json_integer_value(id);
    }
    return NYB_OK;
}

/* Some files repeat the prompt at the head of the greedy ids. */
static void strip_prompt(struct golden_case *c)
{
    if (c->n_greedy <= c->n_prompt || memcmp(c->greedy, c->prompt, (size_t)c->n_prompt * sizeof(int32_t)))
        return;
    c->n_greedy -= c->n_prompt;
    memmove(c->greedy, c->greedy + c->n_prompt, (size_t)c->n_greedy * sizeof(int32_t));
}

static enum nyb_code read_case(struct golden_case *c, const json_t *from, const char *path, int vocab,
                               struct nyb_err *err)
{
    TRY(read_ids(from, "prompt_ids", path, vocab, &c->prompt, &c->n_prompt, err));
    TRY(read_ids(from, "greedy_ids", path, vocab, &c->greedy, &c->n_greedy, err));
    const json_t *margin = json_object_get(from, "greedy_margin");
    if (json_array_size(margin) == (size_t)c->n_greedy) {
        c->margin = mem_alloc((size_t)c->n_greedy, sizeof(double));
        for (int i = 0; i < c->n_greedy; i++)
            c->margin[i] = json_number_value(json_array_get(margin, (size_t)i));
    }
    strip_prompt(c);
    return NYB_OK;
}

static enum nyb_code read_json(struct golden *g, const char *path, struct nyb_err *err)
{
    json_t *root;
    TRY(json_read_file(&root, path, err));
    const json_t *list = json_object_get(root, "greedy");
    size_t n = json_is_array(list) ? json_array_size(list) : 1;
    enum nyb_code code =
        n <= 1024 ? NYB_OK : err_at(err, NYB_E_FORMAT, path, -1, "%zu cases; at most 1024", n);
    g->cases = mem_alloc(n, sizeof(*g->cases));
    for (size_t i = 0; code == NYB_OK && i < n; i++)
        code = read_case(&g->cases[g->n_case++], json_is_array(list) ? json_array_get(list, i) : root, path,
                         g->vocab, err);
    json_decref(root);
    return code;
}

enum nyb_code golden_read(struct golden *g, const char *folder, int vocab, int hidden_size, int n_layer,
                          struct nyb_err *err)
{
    *g = (struct golden){.vocab = vocab, .hidden_size = hidden_size, .n_hidden = n_layer + 1};
    char *tensors = path_join(folder, "golden.safetensors"), *json = path_join(folder, "golden.json");
    enum nyb_code code = NYB_OK;
    if (!file_exists(tensors) && !file_exists(json))
        code = err_at(err, NYB_E_NOT_FOUND, folder, -1,
                      "neither golden.safetensors nor golden.json is there to verify against");
    if (code == NYB_OK && file_exists(tensors))
        code = read_safetensors(g, tensors, err);
    if (code == NYB_OK && file_exists(json))
        code = read_json(g, json, err);
    free(tensors);
    free(json);
    if (code != NYB_OK)
        golden_free(g);
    return code;
}

void golden_free(struct golden *g)
{
    for (int i = 0; g->hidden && i < g->n_hidden; i++)
        free(g->hidden[i]);
    for (int i = 0; i < g->n_case; i++) {
        free(g->cases[i].prompt);
        free(g->cases[i].greedy);
        free(g->cases[i].margin);
    }
    free(g->cases);
    free(g->hidden);
    free(g->ids);
    free(g->logits);
    free(g->logits_w4a4);
    *g = (struct golden){0};
}
