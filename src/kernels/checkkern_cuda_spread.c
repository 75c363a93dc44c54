#include "kernels/checkkern_cuda_spread.h"

#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"

/* ---- memory ---------------------------------------------------------------------------------------- */

/* Of each array: its bytes at most, and where it is. */
#define N_ARRAY 10
static void list_arrays(struct spread_arrays *a, void **at[N_ARRAY], size_t bytes[N_ARRAY])
{
    const struct {
        void **at;
        size_t bytes;
    } list[N_ARRAY] = {
        {(void **)&a->count, CUDA_PEERS_MAX * sizeof(int32_t)},
        {(void **)&a->place, SPREAD_ALL * sizeof(int32_t)},
        {(void **)&a->expert, SPREAD_MOST * SPREAD_USED * sizeof(int32_t)},
        {(void **)&a->local, SPREAD_ALL * SPREAD_USED * sizeof(int32_t)},
        {(void **)&a->x, SPREAD_MOST * SPREAD_N * sizeof(uint16_t)},
        {(void **)&a->x_all, SPREAD_ALL * SPREAD_N * sizeof(uint16_t)},
        {(void **)&a->weight, SPREAD_MOST * SPREAD_USED * sizeof(float)},
        {(void **)&a->out, SPREAD_MOST * SPREAD_N * sizeof(float)},
        {(void **)&a->load, SPREAD_EXPERTS * sizeof(uint64_t)},
        {(void **)&a->each, (size_t)SPREAD_ALL * SPREAD_USED * SPREAD_N * sizeof(float)},
    };
    for (int i = 0; i < N_ARRAY; i++) {
        at[i] = list[i].at;
        bytes[i] = list[i].bytes;
    }
}

bool spread_take_memory(struct spread_case *c, struct arena *arena)
{
    void **at[N_ARRAY];
    size_t bytes[N_ARRAY];
    for (int r = 0; r < c->group->size; r++) {
        list_arrays(&c->host[r], at, bytes);
        for (int i = 0; i < N_ARRAY; i++)
            *at[i] = arena_alloc(arena, bytes[i], 1);
        list_arrays(&c->gpu[r], at, bytes);
        for (int i = 0; i < N_ARRAY; i++)
            if (!(*at[i] = c->group->plugin->alloc(c->group->gpu[r], bytes[i])))
                return false;
    }
    return true;
}

void spread_drop_memory(struct spread_case *c)
{
    void **at[N_ARRAY];
    size_t bytes[N_ARRAY];
    for (int r = 0; r < c->group->size; r++) {
        list_arrays(&c->gpu[r], at, bytes);
        for (int i = 0; i < N_ARRAY; i++)
            if (*at[i])
                c->group->plugin->release(c->group->gpu[r], *at[i]);
    }
}

static void poison(void *at, size_t bytes, uint32_t word)
{
    for (size_t i = 0; i + sizeof(word) <= bytes; i += sizeof(word))
        memcpy((uint8_t *)at + i, &word, sizeof(word));
}

bool spread_write(void *arg, struct cuda_gpu *g, int r)
{
    struct spread_case *c = arg;
    void **from[N_ARRAY], **to[N_ARRAY];
    size_t bytes[N_ARRAY];
    bool ok = true;
    list_arrays(&c->host[r], from, bytes);
    list_arrays(&c->gpu[r], to, bytes);
    for (int i = 0; i < N_ARRAY; i++)
        ok = ok && c->group->plugin->write(g, *to[i], *from[i], bytes[i]);
    return ok;
}

bool spread_read_back(void *arg, struct cuda_gpu *g, int r)
{
    const struct spread_case *c = arg;
    const struct cuda_plugin *p = c->group->plugin;
    const struct spread_arrays *to = &c->host[r], *from = &c->gpu[r];
    return p->read(g, to->x_all, from->x_all, SPREAD_ALL * SPREAD_N * sizeof(uint16_t)) &&
           p->read(g, to->local, from->local, SPREAD_ALL * SPREAD_USED * sizeof(int32_t)) &&
           p->read(g, to->load, from->load, SPREAD_EXPERTS * sizeof(uint64_t)) &&
           p->read(g, to->out, from->out, SPREAD_MOST * SPREAD_N * sizeof(float));
}

/* ---- inputs ---------------------------------------------------------------------------------------- */

int spread_owner_of(const struct spread_case *c, int expert)
{
    int r = 0;
    while (expert >= c->first[r + 1])
        r++;
    return r;
}

/* Sizes that a graph is made for. */
void spread_choose_shape(struct spread_case *c)
{
    int size = c->group->size;
    c->most = checkkern_int(&c->seed, 1, SPREAD_MOST);
    c->n_all = checkkern_int(&c->seed, c->most, c->most * size);
    c->n = 8 * (checkkern_int(&c->seed, 0, 2) ? checkkern_int(&c->seed, 1, 40)
                                              : checkkern_int(&c->seed, 41, SPREAD_N / 8));
    c->n_used = checkkern_int(&c->seed, 1, SPREAD_USED);
    c->is_bf16 = checkkern_int(&c->seed, 0, 1);
    c->everywhere = !checkkern_int(&c->seed, 0, 4);
    for (int r = 0; r < size; r++) /* some ranks have no expert */
        c->first[r + 1] = c->first[r] + checkkern_int(&c->seed, 0, 3) * checkkern_int(&c->seed, 0, 3);
    if (c->first[size] == 0)
        for (int r = 0; r < size; r++)
            c->first[r + 1] = r + 1;
}

/* Rows of each rank, some none, and their places: any. */
void spread_choose_rows(struct spread_case *c)
{
    int size = c->group->size, left = c->n_all, order[SPREAD_ALL], next = 0;
    int32_t *count = c->host[0].count, *place = c->host[0].place;
    for (int r = 0; r < size; r++) {
        int most = c->most < left ? c->most : left;
        count[r] = checkkern_int(&c->seed, 0, 3) ? checkkern_int(&c->seed, 0, most) : 0;
        left -= count[r];
    }
    int n_real = c->n_all - left;
    for (int i = 0; i < n_real; i++)
        order[i] = i;
    for (int i = n_real - 1; i > 0; i--) {
        int j = checkkern_int(&c->seed, 0, i), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    for (int r = 0; r < size; r++)
        for (int i = 0; i < c->most; i++)
            place[r * c->most + i] = i < count[r] ? order[next++] : -1;
    for (int r = 1; r < size; r++) {
        memcpy(c->host[r].count, count, CUDA_PEERS_MAX * sizeof(*count));
        memcpy(c->host[r].place, place, SPREAD_ALL * sizeof(*place));
    }
}

static uint16_t any_bf16(uint64_t *seed)
{
    int kind = checkkern_int(seed, 0, 15); /* both zeros, too: a pair of them means "not there yet" */
    return kind < 2 ? 0 : kind < 4 ? 0x8000 : bf16_from_float(checkkern_float(seed));
}

size_t spread_product_bytes(const struct spread_case *c)
{
    return (size_t)c->n * (c->is_bf16 ? sizeof(uint16_t) : sizeof(float));
}

static void choose_product(struct spread_case *c, uint8_t *at)
{
    for (int i = 0; i < c->n; i++) {
        uint16_t narrow = any_bf16(&c->seed);
        float wide = narrow & 0x7fff ? checkkern_float(&c->seed) : bf16_to_float(narrow);
        if (c->is_bf16)
            memcpy(at + (size_t)i * sizeof(narrow), &narrow, sizeof(narrow));
        else
            memcpy(at + (size_t)i * sizeof(wide), &wide, sizeof(wide));
    }
}

/* Products only where the rank has the expert: all else is poison, as outputs are. */
void spread_choose_data(struct spread_case *c)
{
    int size = c->group->size;
    for (int r = 0; r < size; r++) {
        struct spread_arrays *h = &c->host[r];
        for (size_t i = 0; i < SPREAD_MOST * SPREAD_N; i++)
            h->x[i] = any_bf16(&c->seed);
        for (int i = 0; i < SPREAD_MOST * SPREAD_USED; i++) {
            h->expert[i] = checkkern_int(&c->seed, 0, c->first[size] - 1);
            h->weight[i] = checkkern_float(&c->seed);
        }
        poison(h->x_all, SPREAD_ALL * SPREAD_N * sizeof(uint16_t), SPREAD_POISON_16 << 16 | SPREAD_POISON_16);
        poison(h->local, SPREAD_ALL * SPREAD_USED * sizeof(int32_t), SPREAD_POISON_32);
        poison(h->out, SPREAD_MOST * SPREAD_N * sizeof(float), SPREAD_POISON_32);
        poison(h->each, (size_t)SPREAD_ALL * SPREAD_USED * SPREAD_N * sizeof(float), SPREAD_POISON_32);
        memset(h->load, 0, SPREAD_EXPERTS * sizeof(*h->load));
    }
    for (int r = 0; r < size; r++)
        for (int i = 0; i < c->host[0].count[r]; i++)
            for (int j = 0; j < c->n_used; j++) {
                int to = spread_owner_of(c, c->host[r].expert[i * c->n_used + j]);
                size_t slot = (size_t)c->host[0].place[r * c->most + i] * (size_t)c->n_used + (size_t)j;
                choose_product(c, c->host[to].each + slot * spread_product_bytes(c));
            }
    c->n_run = 0;
}
