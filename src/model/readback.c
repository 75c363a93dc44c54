#include "model/readback.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "model/logical.h"
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

/* ---- this rank's values -------------------------------------------------------------------------- */

/* A panel of a matrix, as it is read and as this process would serve it, and one of its rows. */
struct panel {
    struct fill_piece piece;
    struct weight weight;
    float *row;
};

static void panel_close(struct panel *b)
{
    free(b->piece.rows);
    free(b->piece.scales);
    free(b->weight.data);
    free(b->row);
}

static enum nyb_code panel_open(struct panel *b, const struct slot *s, struct nyb_err *err)
{
    const struct weight *w = s->weight;
    size_t rows = WEIGHT_PANEL * weight_row_bytes(w->type, w->k), k = (size_t)w->k;
    *b = (struct panel){.piece = {.slot = s}, .weight = *w};
    b->weight.data = mem_try_aligned(weight_data_bytes(w->type, WEIGHT_PANEL, w->k));
    b->piece.rows = mem_try_aligned(rows);
    b->piece.scales = mem_try_aligned(WEIGHT_PANEL * k / FP4_GROUP + 1);
    b->row = mem_try_alloc(k, sizeof(*b->row));
    if (b->weight.data && b->piece.rows && b->piece.scales && b->row)
        return NYB_OK;
    panel_close(b);
    return err_set(err, NYB_E_MEMORY, "no memory for %d rows of %d weights", WEIGHT_PANEL, w->k);
}

/* Rows from `row` on: in the layout of this process wherever they lie, so that all have the same values. */
static enum nyb_code panel_read(struct panel *b, int row, struct nyb_err *err)
{
    int left = b->piece.slot->n - row;
    b->piece.row = row;
    b->piece.n_row = b->weight.n = left < WEIGHT_PANEL ? left : WEIGHT_PANEL;
    TRY(logical_read(&b->piece, err));
    weight_write(&b->weight, 0, b->weight.n, b->piece.rows, b->piece.scales);
    return NYB_OK;
}

static enum nyb_code take_rows(const struct slot *s, const struct part *p, size_t n, float *to, size_t count,
                               struct nyb_err *err)
{
    struct panel b;
    enum nyb_code code = panel_open(&b, s, err);
    if (code != NYB_OK)
        return code;
    for (int i = 0; count && code == NYB_OK; i++) {
        size_t wanted = columns_wanted(p, i, n);
        if (i % WEIGHT_PANEL == 0)
            code = panel_read(&b, i, err);
        if (code != NYB_OK)
            break;
        weight_row_to_float(&b.weight, i % WEIGHT_PANEL, b.row);
        memcpy(to, b.row, wanted * sizeof(*to));
        to += wanted;
        count -= wanted;
    }
    panel_close(&b);
    return code;
}

static enum nyb_code take_vector(const struct slot *s, float *to, size_t count, struct nyb_err *err)
{
    float *all = mem_try_alloc((size_t)s->n, sizeof(*all));
    const struct fill_piece piece = {.slot = s, .n_row = 1, .rows = (uint8_t *)all};
    if (!all)
        return err_set(err, NYB_E_MEMORY, "no memory for %d weights", s->n);
    enum nyb_code code = logical_read(&piece, err);
    if (code == NYB_OK)
        memcpy(to, all, count * sizeof(*to));
    free(all);
    return code;
}

/* Of the first n values of the parameter, one row of the part after the other; count of them. */
static enum nyb_code take_values(const struct slot *s, const struct part *p, size_t n, float *to,
                                 size_t count, struct nyb_err *err)
{
    if (!count)
        return NYB_OK;
    return p->matrix ? take_rows(s, p, n, to, count, err) : take_vector(s, to, count, err);
}

/* ---- of all ranks -------------------------------------------------------------------------------- */

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

/* How a rank's reading has ended. */
struct outcome {
    int32_t code;
    struct nyb_err err;
};

/* The first rank's that has failed, on all of them. */
static enum nyb_code agree(const struct model *m, const struct outcome *own, struct nyb_err *err)
{
    size_t n = (size_t)comm_size(m->comm);
    struct outcome *all = mem_alloc(n, sizeof(*all));
    enum nyb_code code = ranks_gather(m, own, sizeof(*own), all) ? NYB_OK : comm_status(m->comm, err);
    for (size_t r = 0; r < n && code == NYB_OK; r++) {
        code = (enum nyb_code)all[r].code;
        if (code != NYB_OK && err)
            *err = all[r].err;
    }
    free(all);
    return code;
}

static size_t values_given(const struct part *all, int rank, size_t n)
{
    return is_copy(all, rank) ? 0 : values_wanted(&all[rank], n);
}

/* Every rank: to, on rank 0, gets the first n values. */
static enum nyb_code exchange(const struct model *m, const struct slot *s, const struct part *all, size_t n,
                              float *to, struct nyb_err *err)
{
    struct comm *comm = m->comm;
    int rank = comm_rank(comm);
    size_t n_own = values_given(all, rank, n);
    float *own = mem_alloc(n_own + 1, sizeof(*own));
    struct outcome outcome = {0};
    outcome.code = (int32_t)take_values(s, &all[rank], n, own, n_own, &outcome.err);
    enum nyb_code code = agree(m, &outcome, err);
    for (int r = 0; r < comm_size(comm) && code == NYB_OK; r++) {
        size_t count = values_given(all, r, n);
        if (!count)
            continue;
        float *from = rank == 0 && r > 0 ? mem_alloc(count, sizeof(*from)) : own;
        if (r > 0 && !ranks_collect(comm, r, own, from, count * sizeof(*from)))
            code = comm_status(comm, err);
        if (rank == 0 && code == NYB_OK)
            put_values(&all[r], n, from, count, to);
        if (from != own)
            free(from);
    }
    free(own);
    return code;
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
        (void)exchange(m, s, all, values_of(some, q.max), NULL, NULL);
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
    enum nyb_code code = exchange(m, s, all, out->n, out->value, err);
    if (code == NYB_OK)
        return code;
    free(out->value);
    out->value = NULL;
    return code;
}
