#include "model/readback.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/model_state.h"

static bool is_named(const struct slot *s, const char *name)
{
    size_t n = strlen(s->name);
    if (strncmp(s->name, name, n))
        return false;
    return !name[n] || (s->kind == SLOT_MATRIX && !strcmp(name + n, ".weight"));
}

static const struct slot *find_slot(const struct slots *slots, const char *name)
{
    for (int i = 0; i < slots->n; i++)
        if (is_named(&slots->slot[i], name))
            return &slots->slot[i];
    return NULL;
}

static void take_rows(struct readback *out, const struct slot *s)
{
    float *row = mem_alloc((size_t)s->k, sizeof(*row));
    for (size_t at = 0, i = 0; at < out->n; at += (size_t)s->k, i++) {
        size_t n = out->n - at < (size_t)s->k ? out->n - at : (size_t)s->k;
        weight_row_to_float(s->weight, (int)i, row);
        memcpy(out->value + at, row, n * sizeof(*row));
    }
    free(row);
}

enum nyb_code readback_values(struct readback *out, const struct model *m, const char *name, size_t max,
                              struct nyb_err *err)
{
    *out = (struct readback){0};
    const struct slot *s = find_slot(&m->weights.slots, name);
    if (!s)
        return err_at(err, NYB_E_NOT_FOUND, "name", -1, "there is no parameter \"%.200s\"", name);
    if (s->n != s->n_whole || s->k != s->k_whole)
        return err_at(err, NYB_E_UNSUPPORTED, "name", -1,
                      "\"%.200s\" is shared by the ranks: this one has %d of %d rows and %d of %d columns",
                      name, s->n, s->n_whole, s->k, s->k_whole);
    bool matrix = s->kind == SLOT_MATRIX;
    size_t all = (size_t)s->n * (matrix ? (size_t)s->k : 1);
    out->n = all < max ? all : max;
    out->rows = s->n;
    out->columns = matrix ? s->k : 0;
    out->type = matrix ? weight_type_name(s->weight->type) : "F32";
    out->value = mem_try_alloc(out->n ? out->n : 1, sizeof(*out->value));
    if (!out->value)
        return err_at(err, NYB_E_MEMORY, "name", -1, "there is no memory for %zu values", out->n);
    if (matrix)
        take_rows(out, s);
    else
        memcpy(out->value, *s->vector, out->n * sizeof(*out->value));
    return NYB_OK;
}
