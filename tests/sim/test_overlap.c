/* Two micro-batches over mock stages and a mock network, for every choice of which stages of a layer exchange
 * something. None of the schedules depends on when the network answers, so all ranks have the same one and
 * cannot deadlock; none lets the second half read what the first has not written; no half waits while it
 * could hide behind the other; and no buffer is used outside its life or by the other half. */
#include "base/mem.h"
#include "comm/backend.h"
#include "model/overlap.h"
#include "test.h"

#define LAYERS 3
#define STAGES 5
#define ROWS   3

struct sim {
    bool in_flight[COMM_CHANNELS];
    int n_started[COMM_CHANNELS];
    int written[LAYERS]; /* KV: halves that have stored theirs, in order */
    int attended[LAYERS];
    int n_stage; /* that ran */
    const struct micro_batch *mb[2];
    float *kept[2]; /* the layer's buffer of each half */
    float mark[2];  /* what its rows hold              */
};

static struct sim sim;

/* ---- the mock network ---------------------------------------------------------------------------- */

static void net_start(struct comm *c, int channel, const struct comm_part *part, bool same)
{
    (void)c, (void)part, (void)same;
    assert_false(sim.in_flight[channel]); /* one exchange at a time on a channel */
    sim.in_flight[channel] = true;
    sim.n_started[channel]++;
}

/* The other half's exchange is under way meanwhile, unless there is none left. */
static bool net_wait(struct comm *c, int channel, struct comm_part *in, bool idle)
{
    (void)c, (void)in, (void)idle;
    assert_true(sim.in_flight[channel]);
    assert_true(sim.in_flight[1 - channel] || sim.mb[1 - channel]->layer == LAYERS);
    sim.in_flight[channel] = false;
    return true;
}

static const struct comm_backend net = {.name = "mock", .start = net_start, .wait = net_wait};

/* ---- mock stages --------------------------------------------------------------------------------- */

static int half_of(const struct micro_batch *mb)
{
    return mb == sim.mb[0] ? 0 : 1;
}

/* What this half put into its layer's memory is still there: nobody else has written to it or freed it. */
static void check_kept(const struct micro_batch *mb)
{
    int h = half_of(mb);
    assert_non_null(sim.kept[h]);
    for (int i = 0; i < ROWS; i++)
        assert_true(sim.kept[h][i] == sim.mark[h]);
}

static void ran(struct micro_batch *mb)
{
    float *scratch = arena_alloc(&mb->scratch, ROWS, sizeof(float));
    for (int i = 0; i < ROWS; i++)
        scratch[i] = -1;
    sim.n_stage++;
    if (sim.kept[half_of(mb)])
        check_kept(mb);
}

/* The first stage of a layer: nothing of the layer before is left. */
static void begin_layer(struct micro_batch *mb)
{
    int h = half_of(mb);
    assert_int_equal(mb->room.used, 0);
    sim.kept[h] = arena_alloc(&mb->room, ROWS, sizeof(float));
    sim.mark[h] = (float)(100 * h + mb->layer + 1);
    for (int i = 0; i < ROWS; i++)
        sim.kept[h][i] = sim.mark[h];
}

static void store(struct micro_batch *mb)
{
    assert_int_equal(sim.written[mb->layer], half_of(mb)); /* the first half first */
    sim.written[mb->layer]++;
    ran(mb);
}

static void attend(struct micro_batch *mb)
{
    assert_true(sim.written[mb->layer] > half_of(mb)); /* own keys, and all before them */
    sim.attended[mb->layer]++;
    ran(mb);
}

static void end_layer(struct micro_batch *mb)
{
    ran(mb);
    sim.kept[half_of(mb)] = NULL; /* freed by the runner */
}

static void (*const work[STAGES])(struct micro_batch *mb) = {begin_layer, store, attend, ran, end_layer};

static void compute(struct micro_batch *mb)
{
    work[mb->stage](mb);
}

static void send(struct micro_batch *mb)
{
    comm_publish_start(mb->pass->comm, mb->channel, "", 0);
}

static void receive(struct micro_batch *mb)
{
    struct comm_part in[COMM_RANK_MAX];
    assert_true(comm_exchange_wait(mb->pass->comm, mb->channel, in));
    work[mb->stage](mb);
}

static struct stage stages[STAGES + 1]; /* the last ends the list */

static void make_stages(unsigned exchanging)
{
    for (int i = 0; i < STAGES; i++)
        stages[i] = exchanging >> i & 1 ? (struct stage){"exchange", LANE_COMM, send, receive, true}
                                        : (struct stage){"compute", LANE_COMPUTE, compute, NULL, true};
}

static const struct stage *stages_of(const struct model_config *c, int layer)
{
    (void)c, (void)layer;
    return stages;
}

/* ---- all schedules ------------------------------------------------------------------------------- */

static void run_schedule(struct comm *c, unsigned exchanging)
{
    const struct model_config config = {.n_layer = LAYERS};
    struct pass pass = {.config = &config, .stages = stages_of, .comm = c};
    struct micro_batch half[2] = {{.pass = &pass, .channel = 0}, {.pass = &pass, .channel = 1}};
    memset(&sim, 0, sizeof(sim));
    make_stages(exchanging);
    for (int h = 0; h < 2; h++) {
        arena_init(&half[h].room, 4096);
        arena_init(&half[h].scratch, 4096);
        sim.mb[h] = &half[h];
    }
    overlap_run(&half[0], &half[1]);
    for (int h = 0; h < 2; h++) {
        assert_int_equal(half[h].layer, LAYERS);
        assert_false(sim.in_flight[h]);
        assert_int_equal(sim.n_started[h], __builtin_popcount(exchanging) * LAYERS);
        assert_int_equal(half[h].room.used, 0); /* nothing outlives its layer */
        assert_int_equal(half[h].scratch.used, 0);
        arena_free(&half[h].room);
        arena_free(&half[h].scratch);
    }
    for (int l = 0; l < LAYERS; l++) {
        assert_int_equal(sim.written[l], 2);
        assert_int_equal(sim.attended[l], 2);
    }
    assert_int_equal(sim.n_stage, 2 * LAYERS * (STAGES - 1)); /* the first only makes its buffer */
}

static void test_every_schedule_ends_and_keeps_its_buffers(void **state)
{
    (void)state;
    struct comm *c = comm_new(&net, NULL, 0, 2, 4096);
    for (unsigned exchanging = 0; exchanging < 1u << STAGES; exchanging++)
        run_schedule(c, exchanging);
    free(c);
}

/* ---- cutting ------------------------------------------------------------------------------------- */

/* Each row is in one half, with the sequence and the position that it had. */
static void check_cut(const int *length, int n_seq, int cut)
{
    int32_t start[9] = {0}, pos[64], tok[64], table[8 * 3];
    struct arena arena;
    struct batch half[2];
    arena_init(&arena, 4096);
    for (int s = 0; s < n_seq; s++) {
        start[s + 1] = start[s] + length[s];
        for (int i = 0; i < length[s]; i++) {
            pos[start[s] + i] = 10 * s + i;
            tok[start[s] + i] = s;
        }
        for (int i = 0; i < 3; i++)
            table[s * 3 + i] = s * 100 + i;
    }
    const struct batch b = {.n_seq = n_seq,
                            .n_tok = start[n_seq],
                            .n_block_max = 3,
                            .tok = tok,
                            .pos = pos,
                            .slot = pos,
                            .seq_start = start,
                            .block_table = table};
    overlap_cut(&b, cut, half, &arena);
    assert_int_equal(half[0].n_tok, cut);
    assert_int_equal(half[0].n_tok + half[1].n_tok, b.n_tok);
    for (int h = 0; h < 2; h++) {
        const struct batch *p = &half[h];
        assert_int_equal(p->seq_start[0], 0);
        assert_int_equal(p->seq_start[p->n_seq], p->n_tok);
        for (int s = 0; s < p->n_seq; s++)
            for (int i = p->seq_start[s]; i < p->seq_start[s + 1]; i++) {
                assert_int_equal(p->block_table[s * 3], p->tok[i] * 100); /* its own sequence's blocks */
                assert_int_equal(p->pos[i], pos[(h ? cut : 0) + i]);
            }
    }
    arena_free(&arena);
}

static void test_a_cut_keeps_rows_with_their_sequences(void **state)
{
    (void)state;
    static const int one[] = {7}, some[] = {3, 1, 5, 1}, decode[] = {1, 1, 1, 1, 1};
    for (int cut = 1; cut < 7; cut++)
        check_cut(one, 1, cut);
    for (int cut = 1; cut < 10; cut++)
        check_cut(some, 4, cut);
    for (int cut = 1; cut < 5; cut++)
        check_cut(decode, 5, cut);
}

/* ---- choosing ------------------------------------------------------------------------------------ */

/* Share of steps that are cut, when a row takes off_ns without and on_ns with overlap. */
static double share_cut(uint64_t off_ns, uint64_t on_ns)
{
    const struct overlap_options option = {.mode = OVERLAP_AUTO};
    static int32_t start[2] = {0, 200};
    const struct batch b = {.n_seq = 1, .n_tok = 200, .seq_start = start};
    struct overlap o;
    int n_cut = 0, n = 2000;
    overlap_init(&o, &option);
    for (int i = 0; i < n; i++) {
        int cut = overlap_choose(&o, &b, 2);
        n_cut += cut > 0;
        overlap_learn(&o, &b, cut, 200 * (cut ? on_ns : off_ns));
    }
    return (double)n_cut / n;
}

static void test_overlap_is_used_where_it_pays(void **state)
{
    (void)state;
    assert_true(share_cut(1000, 700) > 0.97);
    assert_true(share_cut(1000, 1500) < 0.03); /* so that even twice the time costs less than 2 % of a run */
    assert_true(share_cut(1000, 1000) < 0.03);
}

/* Time of n steps left to itself, by that of as many without overlap; step i of both is held up as `noise`
 * says. */
static double cost(double off_ns, double on_ns, double (*noise)(int i), int n)
{
    const struct overlap_options option = {.mode = OVERLAP_AUTO};
    static int32_t start[2] = {0, 200};
    const struct batch b = {.n_seq = 1, .n_tok = 200, .seq_start = start};
    struct overlap o;
    double left_to_itself = 0, without = 0;
    overlap_init(&o, &option);
    for (int i = 0; i < n; i++) {
        int cut = overlap_choose(&o, &b, 2);
        double ns = (cut ? on_ns : off_ns) * noise(i);
        overlap_learn(&o, &b, cut, (uint64_t)(200 * ns));
        left_to_itself += ns;
        without += off_ns * noise(i);
    }
    return left_to_itself / without;
}

static double quiet(int i)
{
    (void)i;
    return 1;
}

/* Now and then a step takes thrice as long, when something else has the core. */
static double spikes(int i)
{
    return (unsigned)i * 2654435761u % 100 < 6 ? 3 : 1;
}

/* A machine that is busy every other 90 steps. */
static double tides(int i)
{
    return i / 90 % 2 ? 1.7 : 1;
}

static double noisy(int i)
{
    return spikes(i) * tides(i) * (1 + 0.04 * ((double)((unsigned)i * 40503u % 1000) / 500 - 1));
}

static void test_left_to_itself_it_is_never_much_slower_than_off(void **state)
{
    (void)state;
    static double (*const noise[])(int i) = {quiet, spikes, tides, noisy};
    static const double on[] = {1010, 1030, 1080, 1200, 1500, 3000, 10000};
    for (size_t k = 0; k < COUNT_OF(noise); k++) {
        for (size_t i = 0; i < COUNT_OF(on); i++) {
            double c = cost(1000, on[i], noise[k], 20000);
            if (c > 1.02)
                fail_msg("noise %zu, %g ns instead of 1000 with overlap: %.4f of the time without", k, on[i],
                         c);
        }
        /* and what it gains is not lost to the noise */
        assert_true(cost(1000, 700, noise[k], 20000) < 0.72);
    }
}

static void test_small_steps_and_single_ranks_are_not_cut(void **state)
{
    (void)state;
    const struct overlap_options option = {.mode = OVERLAP_AUTO, .prefill_min = 100};
    static int32_t start[2] = {0, 99};
    struct batch b = {.n_seq = 1, .n_tok = 99, .seq_start = start};
    struct overlap o;
    overlap_init(&o, &option);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(overlap_choose(&o, &b, 2), 0);
        overlap_learn(&o, &b, 0, 1000);
    }
    b.n_tok = 400;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(overlap_choose(&o, &b, 1), 0);
        overlap_learn(&o, &b, 0, 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_schedule_ends_and_keeps_its_buffers),
        cmocka_unit_test(test_a_cut_keeps_rows_with_their_sequences),
        cmocka_unit_test(test_overlap_is_used_where_it_pays),
        cmocka_unit_test(test_left_to_itself_it_is_never_much_slower_than_off),
        cmocka_unit_test(test_small_steps_and_single_ranks_are_not_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
