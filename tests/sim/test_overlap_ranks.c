/* Two-batch overlap where ranks differ in which halves they have rows in, as under expert parallelism: every
 * rank begins the same exchanges, on the same channels, in the same order, and waits for them in the same
 * order. Then nobody can wait for what another begins only later. */
#include "base/mem.h"
#include "comm/backend.h"
#include "model/overlap.h"
#include "test.h"

#define LAYERS 3
#define STAGES 5
#define EVENTS (2 * 2 * LAYERS * (STAGES + 8))

/* What a stage may be. Only one that all take part in may exchange anything. */
enum kind { COMPUTE_ALL, COMPUTE_ROWS, EXCHANGE_ALL, STOP_ROWS, KIND_COUNT };

struct trace {
    int n;
    struct {
        bool wait;
        int channel;
    } event[EVENTS];
};

static struct trace *now;
static bool in_flight[COMM_CHANNELS];

/* ---- a network that answers at once and remembers ------------------------------------------------ */

static void note(bool wait, int channel)
{
    assert_true(now->n < EVENTS);
    now->event[now->n].wait = wait;
    now->event[now->n++].channel = channel;
}

static void net_start(struct comm *c, int channel, const struct comm_part *part, bool same)
{
    (void)c, (void)part, (void)same;
    assert_false(in_flight[channel]);
    in_flight[channel] = true;
    note(false, channel);
}

static bool net_wait(struct comm *c, int channel, struct comm_part *in, bool idle)
{
    (void)c, (void)in, (void)idle;
    assert_true(in_flight[channel]);
    in_flight[channel] = false;
    note(true, channel);
    return true;
}

static const struct comm_backend net = {.name = "mock", .start = net_start, .wait = net_wait};

/* ---- stages -------------------------------------------------------------------------------------- */

static void work(struct micro_batch *mb)
{
    (void)mb;
}

static void send(struct micro_batch *mb)
{
    comm_publish_start(mb->pass->comm, mb->channel, "", 0);
}

static void receive(struct micro_batch *mb)
{
    struct comm_part in[COMM_RANK_MAX];
    assert_true(comm_exchange_wait(mb->pass->comm, mb->channel, in));
}

static struct stage stages[2][64];

static const struct stage *stages_of(const struct model_config *c, int layer)
{
    (void)c;
    return stages[layer % 2];
}

static struct stage stage_of(enum kind kind)
{
    switch (kind) {
    case COMPUTE_ALL:
        return (struct stage){"compute", LANE_COMPUTE, work, NULL, true};
    case COMPUTE_ROWS:
        return (struct stage){"compute", LANE_COMPUTE, work, NULL, false};
    case EXCHANGE_ALL:
        return (struct stage){"exchange", LANE_COMM, send, receive, true};
    default:
        return (struct stage){"sum here", LANE_COMM, work, work, false};
    }
}

/* One rank's step, with these numbers of rows in its halves. */
static void run_rank(struct comm *c, const int n_tok[2], struct trace *trace)
{
    const struct model_config config = {.n_layer = LAYERS};
    struct pass pass = {.config = &config, .stages = stages_of, .comm = c};
    struct micro_batch half[2] = {{.pass = &pass, .channel = 0, .n_tok = n_tok[0]},
                                  {.pass = &pass, .channel = 1, .n_tok = n_tok[1]}};
    *trace = (struct trace){0};
    now = trace;
    for (int h = 0; h < 2; h++) {
        arena_init(&half[h].room, 4096);
        arena_init(&half[h].scratch, 4096);
    }
    overlap_run(&half[0], &half[1]);
    for (int h = 0; h < 2; h++) {
        assert_int_equal(half[h].layer, LAYERS);
        assert_false(in_flight[h]);
        arena_free(&half[h].room);
        arena_free(&half[h].scratch);
    }
}

static void check_ranks(void)
{
    static const int rows[4][2] = {{3, 3}, {0, 3}, {3, 0}, {0, 0}};
    struct comm *c = comm_new(&net, NULL, 0, 4, 4096);
    struct trace first, other;
    run_rank(c, rows[0], &first);
    for (int i = 1; i < 4; i++) {
        run_rank(c, rows[i], &other);
        assert_int_equal(other.n, first.n);
        assert_memory_equal(&other, &first, sizeof(first));
    }
    free(c);
}

/* ---- tests --------------------------------------------------------------------------------------- */

static void test_all_ranks_have_one_schedule(void **state)
{
    (void)state;
    int all = 1;
    for (int i = 0; i < STAGES; i++)
        all *= KIND_COUNT;
    for (int code = 0; code < all; code++) {
        memset(stages, 0, sizeof(stages));
        for (int i = 0, rest = code; i < STAGES; i++, rest /= KIND_COUNT) {
            stages[0][i] = stage_of((enum kind)(rest % KIND_COUNT));
            stages[1][STAGES - 1 - i] = stages[0][i]; /* layers need not be alike */
        }
        check_ranks();
    }
}

/* The real lists: what they exchange is what every rank takes part in. */
static void copy_list(const struct stage *from, struct stage *to)
{
    for (; from->start; from++, to++) {
        bool exchanges = from->lane == LANE_COMM && from->done;
        if (exchanges)
            assert_true(from->rowless);
        *to = stage_of(exchanges ? EXCHANGE_ALL : from->rowless ? COMPUTE_ALL : COMPUTE_ROWS);
    }
}

static void test_layers_of_shared_out_experts_have_one_schedule(void **state)
{
    (void)state;
    static bool is_moe[2] = {false, true};
    struct model_config c = {.n_layer = 2, .layer_is_moe = is_moe};
    shard_set_experts(&c.shard, 1, 3, 4, 2);
    memset(stages, 0, sizeof(stages));
    copy_list(layer_stages(&c, 0), stages[0]);
    copy_list(layer_stages(&c, 1), stages[1]);
    check_ranks();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_ranks_have_one_schedule),
        cmocka_unit_test(test_layers_of_shared_out_experts_have_one_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
