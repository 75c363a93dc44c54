#include "model/readback.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/model_state.h"
#include "model/ranks.h"

/* What is asked for; the name follows, ended by a zero byte. */
struct question {
    uint64_t max;
};

/* The part of the parameter that a rank has. A vector has one column. */
struct part {
    int32_t has, matrix, type;
    int32_t row, n, column, k;
    int32_t n_whole, k_whole;
};

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

static struct part describe(const struct slot *s)
{
    if (!s)
        return (struct part){0};
    bool matrix = s->kind == SLOT_MATRIX;
    return (struct part){.has = 1,
                         .matrix = matrix,
                         .type = matrix ? (int32_t)s->weight->type : 0,
                         .row = s->row,
                         .n = s->n,
                         .column = s->column,
                         .k = s->k,
                         .n_whole = s->n_whole,
                         .k_whole = s->k_whole};
}

/* Of row i of a part: how many of its columns are among the first n values of the parameter. */
static size_t columns_wanted(const struct part *p, int i, size_t n)
{
    size_t at = (size_t)(p->row + i) * (size_t)p->k_whole + (size_t)p->column;
    size_t left = at < n ? n - at : 0;
    return left < (size_t)p->k ? left : (size_t)p->k;
}

static size_t values_wanted(const struct part *p, size_t n)
{
    size_t total = 0;
    for (int i = 0; p->has && i < p->n; i++) {
        size_t wanted = columns_wanted(p, i, n);
        if (!wanted)
            break;
        total += wanted;
    }
    return total;
}

/* This rank's of the first n values, one row of its part after the other; count of them. */
static void take_values(const struct slot *s, const struct part *p, size_t n, float *to, size_t count)
{
    if (!p->matrix && count)
        memcpy(to, *s->vector, count * sizeof(*to));
    if (!p->matrix)
        return;
    float *row = mem_alloc((size_t)p->k + 1, sizeof(*row));
    for (int i = 0; count; i++) {
        size_t wanted = columns_wanted(p, i, n);
        weight_row_to_float(s->weight, i, row);
        memcpy(to, row, wanted * sizeof(*row));
        to += wanted;
        count -= wanted;
    }
    free(row);
}

/* And back: into the whole parameter's first n. */
static void put_values(const struct part *p, size_t n, const float *from, size_t count, float *to)
{
    for (int i = 0; count; i++) {
        size_t wanted = columns_wanted(p, i, n);
        memcpy(to + (size_t)(p->row + i) * (size_t)p->k_whole + (size_t)p->column, from,
               wanted * sizeof(*to));
        from += wanted;
        count -= wanted;
    }
}

/* A rank that has the same part as an earlier one need not give it. */
static bool is_copy(const struct part *all, int rank)
{
    for (int r = 0; r < rank; r++)
        if (!memcmp(&all[r], &all[rank], sizeof(all[r])))
            return true;
    return false;
}

/* Every rank: to, on rank 0, gets the first n values. */
static bool exchange(const struct model *m, const struct slot *s, const struct part *all, size_t n, float *to)
{
    struct comm *comm = m->comm;
    int rank = comm_rank(comm);
    bool here = true;
    for (int r = 0; r < comm_size(comm) && here; r++) {
        size_t count = is_copy(all, r) ? 0 : values_wanted(&all[r], n);
        if (!count)
            continue;
        float *own = mem_alloc(count, sizeof(*own));
        if (r == rank)
            take_values(s, &all[r], n, own, count);
        if (r > 0)
            here = ranks_collect(comm, r, own, own, count * sizeof(*own));
        if (rank == 0 && here)
            put_values(&all[r], n, own, count, to);
        free(own);
    }
    return here;
}

/* Whichever rank has some of it. */
static const struct part *first_part(const struct part *all, int n_rank)
{
    for (int r = 0; r < n_rank; r++)
        if (all[r].has)
            return &all[r];
    return NULL;
}

static size_t values_of(const struct part *p, uint64_t max)
{
    size_t all = (size_t)p->n_whole * (size_t)p->k_whole;
    return all < max ? all : (size_t)max;
}

void readback_follow(struct model *m, const uint8_t *data, size_t bytes)
{
    struct question q;
    struct part all[COMM_RANK_MAX];
    ASSERT(bytes > sizeof(q) && data[bytes - 1] == 0);
    memcpy(&q, data, sizeof(q));
    const struct slot *s = find_slot(&m->weights.slots, (const char *)data + sizeof(q));
    const struct part own = describe(s);
    if (!ranks_gather(m, &own, sizeof(own), all)) /* a lost rank shows in comm_status */
        return;
    const struct part *some = first_part(all, comm_size(m->comm));
    if (some)
        (void)exchange(m, s, all, values_of(some, q.max), NULL);
}

static void ask(struct model *m, const char *name, size_t max)
{
    const struct question q = {max};
    struct buf b = {0};
    buf_add(&b, &q, sizeof(q));
    buf_add(&b, name, strlen(name) + 1);
    ranks_do(m, TASK_READBACK, b.data, b.len);
    buf_free(&b);
}

enum nyb_code readback_values(struct readback *out, struct model *m, const char *name, size_t max,
                              struct nyb_err *err)
{
    struct part all[COMM_RANK_MAX];
    const struct slot *s = find_slot(&m->weights.slots, name);
    const struct part own = describe(s);
    *out = (struct readback){0};
    if (m->device)
        return err_at(err, NYB_E_UNSUPPORTED, "name", -1, "weights on a GPU cannot be read back by name");
    max = max < READBACK_MAX ? max : READBACK_MAX;
    ask(m, name, max);
    if (!ranks_gather(m, &own, sizeof(own), all))
        return comm_status(m->comm, err);
    const struct part *some = first_part(all, comm_size(m->comm));
    if (!some)
        return err_at(err, NYB_E_NOT_FOUND, "name", -1, "there is no parameter \"%.200s\"", name);
    out->n = values_of(some, max);
    out->rows = some->n_whole;
    out->columns = some->matrix ? some->k_whole : 0;
    out->type = some->matrix ? weight_type_name((enum weight_type)some->type) : "F32";
    out->value = mem_alloc(out->n ? out->n : 1, sizeof(*out->value));
    if (exchange(m, s, all, out->n, out->value))
        return NYB_OK;
    free(out->value);
    out->value = NULL;
    return comm_status(m->comm, err);
}
