/* Rows to the ranks of their experts and back, beside a plain reference: every choice gets the product of its
 * own row and its own expert, whatever the routing, the encoding and the number of rounds. Ranks are forked
 * processes of this test. */
#include <math.h>
#include <unistd.h>

#include "base/mem.h"
#include "comm/dispatch.h"
#include "model/ep.h"
#include "test.h"

#define HIDDEN 64
#define TOP_K  4
#define ROWS   40 /* of one rank, at most */

/* cmocka's asserts jump to the parent's runner, so ranks beyond 0 check with this. */
#define CHECK(cond)                                                                           \
    do {                                                                                      \
        if (!(cond)) {                                                                        \
            fprintf(stderr, "rank %d: %s:%d: %s\n", comm_rank(c), __FILE__, __LINE__, #cond); \
            return false;                                                                     \
        }                                                                                     \
    } while (0)

enum routing { RANDOM, ALL_TO_ONE, NONE_TO_ONE, HOME_ONLY, ROUTING_COUNT };

/* One flight, known to every rank from the seed alone. */
struct plan {
    int size, n_expert;
    int n_row[COMM_RANK_MAX];
    enum routing routing;
    uint64_t seed;
};

static void make_plan(struct plan *p, int size, uint64_t seed)
{
    *p = (struct plan){.size = size, .n_expert = 3 * size, .seed = seed};
    p->routing = (enum routing)(test_random(&seed) % ROUTING_COUNT);
    for (int r = 0; r < size; r++)
        p->n_row[r] = test_random(&seed) % 4 ? (int)(test_random(&seed) % (ROWS + 1)) : 0;
    if (test_random(&seed) % 8 == 0)
        for (int r = 0; r < size; r++)
            p->n_row[r] = 0;
}

static uint64_t row_seed(const struct plan *p, int rank, int row)
{
    return p->seed * 1000003 + (uint64_t)rank * 4099 + (uint64_t)row;
}

static void make_row(const struct plan *p, int rank, int row, float *x)
{
    uint64_t seed = row_seed(p, rank, row);
    for (int i = 0; i < HIDDEN; i++)
        x[i] = 8 * test_random_float(&seed);
}

/* TOP_K experts, none twice unless there are too few. */
static void choose(const struct plan *p, int rank, int row, struct dispatch_place *place)
{
    uint64_t seed = row_seed(p, rank, row) ^ 0x5a5a;
    for (int s = 0; s < TOP_K; s++) {
        int to = (int)(test_random(&seed) % (uint64_t)p->size), slot = (int)(test_random(&seed) % 3);
        if (p->routing == ALL_TO_ONE)
            to = p->size - 1;
        if (p->routing == NONE_TO_ONE && to == p->size - 1)
            to = 0;
        if (p->routing == HOME_ONLY)
            to = rank;
        place[s] = (struct dispatch_place){(int16_t)to, (int16_t)slot};
    }
}

/* An expert as simple as can be: a product of a row tells which row and which expert it is of. */
static float product(float x, int rank, int slot, int column)
{
    return x * (float)(1 + rank * 3 + slot) + (float)column;
}

/* ---- one rank's part ------------------------------------------------------------------------------- */

static bool receives_what_was_sent(struct comm *c, const struct plan *p, const struct dispatch_codec *codec,
                                   const struct dispatch_flight *f)
{
    int own = comm_rank(c), pairs = 0;
    float x[HIDDEN], expected[HIDDEN];
    uint8_t bytes[HIDDEN * sizeof(float) + 64];
    for (int r = 0; r < p->size; r++)
        for (int i = 0; i < p->n_row[r]; i++) {
            struct dispatch_place place[TOP_K];
            choose(p, r, i, place);
            for (int s = 0; s < TOP_K; s++)
                pairs += place[s].rank == own;
        }
    CHECK(f->n_pair == pairs);
    /* in rounds; within one by rank and row */
    int at = 0, row = -1;
    for (int begin = 0; begin < f->most_rows; begin += f->d->round_rows)
        for (int r = 0; r < p->size; r++)
            for (int i = begin; i < begin + f->d->round_rows && i < p->n_row[r]; i++) {
                struct dispatch_place place[TOP_K];
                bool here = false;
                choose(p, r, i, place);
                for (int s = 0; s < TOP_K; s++) {
                    if (place[s].rank != own)
                        continue;
                    row += !here;
                    here = true;
                    CHECK(f->pair_slot[at] == place[s].slot && f->pair_row[at] == row);
                    at++;
                }
                if (!here)
                    continue;
                make_row(p, r, i, x);
                codec->encode(bytes, x, HIDDEN);
                codec->decode(expected, bytes, HIDDEN);
                CHECK(!memcmp(f->row + (size_t)row * HIDDEN, expected, sizeof(expected)));
            }
    CHECK(row + 1 == f->n_received && at == f->n_pair);
    return true;
}

static bool collects_its_products(struct comm *c, const struct dispatch_codec *codec,
                                  const struct dispatch_flight *f)
{
    float x[HIDDEN];
    uint8_t bytes[HIDDEN * sizeof(float) + 64];
    for (int i = 0; i < f->n_row; i++) {
        codec->encode(bytes, f->x + (size_t)i * HIDDEN, HIDDEN);
        codec->decode(x, bytes, HIDDEN);
        for (int s = 0; s < TOP_K; s++) {
            const struct dispatch_place *place = &f->place[i * TOP_K + s];
            const float *got = f->product + ((size_t)i * TOP_K + (size_t)s) * HIDDEN;
            for (int k = 0; k < HIDDEN; k++)
                CHECK(got[k] == product(x[k], place->rank, place->slot, k));
        }
    }
    return true;
}

static bool fly(struct comm *c, struct pool *pool, struct arena *room, const struct plan *p,
                const struct dispatch *d)
{
    int rank = comm_rank(c), n = p->n_row[rank];
    float x[ROWS * HIDDEN];
    struct dispatch_place place[ROWS * TOP_K];
    struct dispatch_flight f = {
        .d = d, .pool = pool, .room = room, .channel = (int)(p->seed % COMM_CHANNELS)};
    arena_reset(room);
    for (int i = 0; i < n; i++) {
        make_row(p, rank, i, x + (size_t)i * HIDDEN);
        choose(p, rank, i, place + (size_t)i * TOP_K);
    }
    for (int r = 0; r < p->size; r++) {
        f.most_rows = p->n_row[r] > f.most_rows ? p->n_row[r] : f.most_rows;
        f.sum_rows += p->n_row[r];
    }
    f.n_row = n;
    f.x = x;
    f.place = place;
    dispatch_send(&f);
    CHECK(dispatch_receive(&f));
    CHECK(receives_what_was_sent(c, p, d->codec, &f));
    float *part = arena_alloc(room, (size_t)f.n_pair + 1, HIDDEN * sizeof(float));
    int32_t *part_row = arena_alloc(room, (size_t)f.n_pair + 1, sizeof(*part_row));
    for (int i = 0; i < f.n_pair; i++) { /* products in another order than asked for */
        part_row[i] = f.n_pair - 1 - i;
        for (int k = 0; k < HIDDEN; k++)
            part[(size_t)part_row[i] * HIDDEN + (size_t)k] =
                product(f.row[(size_t)f.pair_row[i] * HIDDEN + (size_t)k], rank, f.pair_slot[i], k);
    }
    dispatch_reply(&f, part, part_row);
    CHECK(dispatch_collect(&f));
    return collects_its_products(c, d->codec, &f);
}

/* ---- tests --------------------------------------------------------------------------------------- */

/* Of the many rounds that small slots make, ranks that share cores wait in each. */
static uint64_t n_plan(struct comm *c)
{
    return comm_slot_bytes(c) < 1 << 20 ? 15 : 60;
}

static bool fly_often(struct comm *c, struct pool *pool, enum dispatch_type type)
{
    struct dispatch d;
    struct arena room;
    struct plan p;
    bool fine = true;
    CHECK(dispatch_init(&d, c, ep_codec(type), HIDDEN, TOP_K));
    arena_init(&room, 1 << 16);
    for (uint64_t seed = 1; seed <= n_plan(c) && fine; seed++) {
        make_plan(&p, comm_size(c), seed);
        fine = fly(c, pool, &room, &p, &d);
    }
    arena_free(&room);
    return fine;
}

static bool fly_all(struct comm *c)
{
    struct nyb_err err;
    struct pool *pool;
    bool fine = pool_open(&pool, 1, &err) == NYB_OK;
    for (int type = DISPATCH_F32; type <= DISPATCH_NVFP4 && fine; type++)
        fine = fly_often(c, pool, (enum dispatch_type)type);
    pool_close(pool);
    return fine;
}

static void run_ranks(int size, size_t slot_bytes)
{
    const struct comm_options o = {.slot_bytes = slot_bytes, .timeout_ms = 20000};
    struct nyb_err err = {0};
    struct comm *c;
    if (size == 1 ? comm_open_self(&c, &err) != NYB_OK : comm_fork(&c, size, &o, &err) != NYB_OK)
        fail_msg("%s", err.message);
    bool ok = fly_all(c), child = comm_rank(c) != 0;
    if (!ok)
        comm_fail(c, "a check of rank %d failed", comm_rank(c));
    ok = comm_barrier(c) && ok; /* the last word of everybody */
    comm_close(c);
    if (child)
        _exit(!ok);
    assert_true(ok);
}

static void test_one_rank(void **state)
{
    (void)state;
    run_ranks(1, 0);
}

static void test_ranks_in_one_round(void **state)
{
    (void)state;
    run_ranks(2, 1 << 20);
    run_ranks(4, 1 << 20);
}

static void test_ranks_in_many_rounds(void **state)
{
    (void)state;
    run_ranks(3, 16 << 10); /* five rows a round */
    run_ranks(5, 8 << 10);  /* one               */
}

static void test_a_row_that_does_not_fit(void **state)
{
    (void)state;
    const struct comm_options o = {.slot_bytes = 4096, .timeout_ms = 20000};
    struct dispatch d;
    struct nyb_err err;
    struct comm *c;
    assert_int_equal(comm_fork(&c, 2, &o, &err), NYB_OK);
    bool fits = dispatch_init(&d, c, ep_codec(DISPATCH_F32), 1024, 8), child = comm_rank(c) != 0;
    comm_close(c);
    if (child)
        _exit(0);
    assert_false(fits);
}

/* What an encoding loses is what its format allows. */
static void test_encodings_keep_what_they_can(void **state)
{
    (void)state;
    static const double most[] = {0, 0x1p-8, 0.0715, 0.34}; /* of the largest element of a group or row */
    uint64_t seed = 3;
    for (int type = DISPATCH_F32; type <= DISPATCH_NVFP4; type++) {
        const struct dispatch_codec *codec = ep_codec((enum dispatch_type)type);
        float x[HIDDEN], y[HIDDEN];
        uint8_t bytes[HIDDEN * sizeof(float) + 64];
        assert_true(codec->bytes(HIDDEN) <= sizeof(bytes) && codec->bytes(HIDDEN) % 4 == 0);
        for (int round = 0; round < 200; round++) {
            double largest = 0, worst = 0;
            for (int i = 0; i < HIDDEN; i++) {
                x[i] = round ? 100 * test_random_float(&seed) : 0;
                largest = fmax(largest, fabs((double)x[i]));
            }
            codec->encode(bytes, x, HIDDEN);
            codec->decode(y, bytes, HIDDEN);
            for (int i = 0; i < HIDDEN; i++)
                worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
            assert_true(worst <= most[type] * largest);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_ranks_in_one_round),
        cmocka_unit_test(test_ranks_in_many_rounds),
        cmocka_unit_test(test_a_row_that_does_not_fit),
        cmocka_unit_test(test_encodings_keep_what_they_can),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
