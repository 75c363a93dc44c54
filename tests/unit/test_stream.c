/* The reader's end over a model that recites: after position p comes the script's token p + 1. The text, the
 * stop strings and the usage that come out are known beforehand. Uses the tokenizer of the embedded model. */
#include "test.h"

#include <math.h>
#include <sched.h>
#include <time.h>

#include "engine/instance.h"

#define MODEL   NYBBLE_SOURCE_DIR "/models/tales-24m-moe-nvfp4"
#define MAX_LEN 120

static const char *const story =
    "Once upon a time there was a caf\xc3\xa9 by the sea, and the fish \xf0\x9f\x90\x9f "
    "said: stop here, old man. Then they all went home and slept until morning.";

struct reciter {
    int32_t script[MAX_LEN + 1];
    int n_script, vocab;
    atomic_bool closed; /* forward waits while it is set */
};

struct house {
    struct nyb_engine e;
    struct reciter r;
};

static enum nyb_code reserve(void *self, int n_block, struct nyb_err *err)
{
    (void)self;
    (void)n_block;
    (void)err;
    return NYB_OK;
}

static enum nyb_code forward(void *self, const struct batch *b, float *logits, struct nyb_err *err)
{
    struct reciter *r = self;
    (void)err;
    while (atomic_load(&r->closed))
        sched_yield();
    for (int i = 0; i < b->n_out; i++) {
        float *row = logits + (size_t)i * (size_t)r->vocab;
        int next = b->pos[b->out_row[i]] + 1;
        for (int v = 0; v < r->vocab; v++)
            row[v] = 0;
        row[next < r->n_script ? r->script[next] : 0] = 20; /* then end-of-text, 0 */
    }
    return NYB_OK;
}

static const int32_t eos[] = {0};

static int open_house(void **state)
{
    struct house *h = calloc(1, sizeof(*h));
    struct nyb_err err;
    assert_non_null(h);
    assert_int_equal(tok_open(&h->e.tokenizer, MODEL, &err), NYB_OK);
    h->r.vocab = tok_vocab_size(h->e.tokenizer);
    struct tok_ids ids = {0};
    assert_int_equal(tok_encode(h->e.tokenizer, story, strlen(story), false, &ids, &err), NYB_OK);
    assert_true(ids.n > 20 && ids.n < MAX_LEN);
    memcpy(h->r.script, ids.id, ids.n * sizeof(*ids.id));
    h->r.n_script = (int)ids.n;
    tok_ids_free(&ids);
    params_context_init(&h->e.defaults);
    h->e.defaults.vocab = h->r.vocab;
    h->e.defaults.max_len = MAX_LEN;
    h->e.defaults.eos = eos;
    h->e.defaults.n_eos = 1;
    h->e.info.vocab_size = h->r.vocab;
    const struct runner runner = {.self = &h->r, .vocab = h->r.vocab, .reserve = reserve, .forward = forward};
    const struct step_options o = {.max_num_seqs = 4,
                                   .max_num_batched_tokens = 32,
                                   .max_len = MAX_LEN,
                                   .max_live = 8,
                                   .max_logprobs = 20,
                                   .n_block = 64,
                                   .prefix_cache = true};
    assert_int_equal(engine_open(&h->e.engine, &runner, &o, 60000, &err), NYB_OK);
    *state = h;
    return 0;
}

static int close_house(void **state)
{
    struct house *h = *state;
    engine_close(h->e.engine);
    tok_close(h->e.tokenizer);
    free(h);
    return 0;
}

struct answer {
    char text[2048], stop[64]; /* stop: the event's stop_string, or empty */
    int32_t id[MAX_LEN];
    int n;
    struct nyb_event last;
};

static struct nyb_stream *submit(struct house *h, const struct nyb_sampling *s)
{
    struct nyb_stream *stream;
    struct nyb_err err;
    const struct nyb_request r = {.prompt = h->r.script, .n_prompt = 4, .sampling = s};
    assert_int_equal(nyb_submit(&h->e, &r, &stream, &err), NYB_OK);
    return stream;
}

static void read_all(struct nyb_stream *stream, struct answer *a)
{
    size_t len = 0;
    memset(a, 0, sizeof(*a));
    do {
        assert_true(nyb_next(stream, &a->last, 10000));
        assert_int_equal(strlen(a->last.text), a->last.text_bytes);
        assert_true(len + a->last.text_bytes < sizeof(a->text));
        memcpy(a->text + len, a->last.text, a->last.text_bytes + 1);
        len += a->last.text_bytes;
        if (a->last.token >= 0)
            a->id[a->n++] = a->last.token;
        assert_int_equal(a->last.usage.completion_tokens, a->n);
    } while (a->last.finish == NYB_FINISH_NONE);
    if (a->last.stop_string)
        snprintf(a->stop, sizeof(a->stop), "%s", a->last.stop_string);
    struct nyb_event more;
    assert_false(nyb_next(stream, &more, -1));
}

static struct answer ask(struct house *h, const struct nyb_sampling *s)
{
    struct answer a;
    struct nyb_stream *stream = submit(h, s);
    read_all(stream, &a);
    nyb_stream_free(stream);
    return a;
}

static struct nyb_sampling greedy(void)
{
    struct nyb_sampling s;
    nyb_sampling_init(&s);
    s.temperature = 0;
    return s;
}

/* The script's text from its 5th token on. */
static const char *rest(struct house *h)
{
    char *head;
    size_t n;
    assert_int_equal(nyb_detokenize(&h->e, h->r.script, 4, true, &head, &n, NULL), NYB_OK);
    nyb_free(head);
    return story + n;
}

/* Cancels are obeyed a moment later. */
static void assert_all_blocks_come_free(struct house *h)
{
    struct nyb_stats s = {.kv_blocks_used = -1};
    for (int i = 0; i < 2000 && s.kv_blocks_used != 0; i++) {
        engine_stats(h->e.engine, &s);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    assert_int_equal(s.kv_blocks_used, 0);
}

static void test_stream_gives_the_text_up_to_the_end_token(void **state)
{
    struct house *h = *state;
    struct nyb_sampling s = greedy();
    struct answer a = ask(h, &s);
    assert_string_equal(a.text, rest(h));
    assert_int_equal(a.n, h->r.n_script - 4 + 1); /* the end token is there, but not in the text */
    assert_int_equal(a.id[a.n - 1], 0);
    assert_int_equal(a.last.finish, NYB_FINISH_STOP);
    assert_int_equal(a.last.stop_token, -1);
    assert_string_equal(a.stop, "");
    assert_int_equal(a.last.usage.prompt_tokens, 4);
    assert_string_equal(nyb_finish_name(a.last.finish), "stop");
}

static void test_stream_length_flushes_the_text(void **state)
{
    struct house *h = *state;
    for (int n = 1; n < h->r.n_script - 4; n++) {
        struct nyb_sampling s = greedy();
        s.max_tokens = n;
        struct answer a = ask(h, &s);
        char *want;
        assert_int_equal(a.n, n);
        assert_int_equal(a.last.finish, NYB_FINISH_LENGTH);
        assert_int_equal(nyb_detokenize(&h->e, a.id, (size_t)n, false, &want, NULL, NULL), NYB_OK);
        assert_string_equal(a.text, want); /* a half character at the end included */
        nyb_free(want);
    }
}

static void test_stream_stop_string(void **state)
{
    struct house *h = *state;
    const char *stop[] = {"never", ", old man"};
    struct nyb_sampling s = greedy();
    s.stop = stop;
    s.n_stop = 2;
    const char *at = strstr(rest(h), ", old man");
    assert_non_null(at);
    size_t want = (size_t)(at - rest(h));
    struct answer a = ask(h, &s);
    assert_int_equal(strlen(a.text), want);
    assert_memory_equal(a.text, rest(h), want);
    assert_int_equal(a.last.finish, NYB_FINISH_STOP);
    assert_string_equal(a.stop, ", old man");
    s.include_stop = true;
    a = ask(h, &s);
    assert_int_equal(strlen(a.text), want + strlen(", old man"));
    assert_memory_equal(a.text, rest(h), strlen(a.text));
    assert_all_blocks_come_free(h);
}

static void test_stream_min_tokens_holds_back_stops(void **state)
{
    struct house *h = *state;
    const char *stop[] = {"e"};
    struct nyb_sampling s = greedy();
    s.stop = stop;
    s.n_stop = 1;
    int first = ask(h, &s).n;
    s.min_tokens = first + 5;
    struct answer a = ask(h, &s);
    assert_true(a.n > first + 5);
    assert_string_equal(a.stop, "e");
}

static void test_stream_stop_token(void **state)
{
    struct house *h = *state;
    struct nyb_sampling s = greedy();
    s.stop_token = &h->r.script[10];
    s.n_stop_token = 1;
    struct answer a = ask(h, &s);
    assert_int_equal(a.last.finish, NYB_FINISH_STOP);
    assert_int_equal(a.last.stop_token, h->r.script[10]);
    assert_int_equal(a.id[a.n - 1], h->r.script[10]);
    assert_true(a.n <= 7);
}

static void test_stream_bad_words_do_not_appear(void **state)
{
    struct house *h = *state;
    const char *bad[] = {"time"};
    struct nyb_sampling s = greedy();
    s.max_tokens = 30;
    assert_non_null(strstr(story + strlen("Once"), " time"));
    struct nyb_stream *stream;
    const struct nyb_request r = {.text = "Once", .sampling = &s};
    struct answer with, without;
    assert_int_equal(nyb_submit(&h->e, &r, &stream, NULL), NYB_OK);
    read_all(stream, &with);
    nyb_stream_free(stream);
    s.bad_words = bad;
    s.n_bad_words = 1;
    assert_int_equal(nyb_submit(&h->e, &r, &stream, NULL), NYB_OK);
    read_all(stream, &without);
    nyb_stream_free(stream);
    assert_non_null(strstr(with.text, "time"));
    assert_null(strstr(without.text, "time"));
}

static void test_stream_logprobs(void **state)
{
    struct house *h = *state;
    struct nyb_sampling s = greedy();
    s.logprobs = 3;
    s.prompt_logprobs = 1;
    s.max_tokens = 2;
    struct nyb_stream *stream = submit(h, &s);
    struct nyb_event ev;
    int n;
    assert_true(nyb_next(stream, &ev, 10000));
    assert_int_equal(ev.n_logprob, 4);
    assert_int_equal(ev.logprob[0].token, ev.token);
    assert_int_equal(ev.logprob[1].token, ev.token);
    assert_int_equal(ev.logprob[0].rank, 1);
    float want = (float)-log1p(exp(-20.0) * (h->r.vocab - 1));
    assert_true(fabsf(ev.logprob[0].logprob - want) < 1e-5f);
    assert_true(fabsf(ev.logprob[2].logprob - want + 20) < 1e-4f);
    assert_null(nyb_stream_prompt_logprobs(stream, 0, &n));
    assert_null(nyb_stream_prompt_logprobs(stream, 4, &n));
    for (size_t i = 1; i < 4; i++) {
        const struct nyb_logprob *lp = nyb_stream_prompt_logprobs(stream, i, &n);
        assert_int_equal(n, 2);
        assert_true(lp[0].token == h->r.script[i] && lp[1].token == h->r.script[i] && lp[0].rank == 1);
    }
    nyb_stream_free(stream);
    assert_all_blocks_come_free(h);
}

static void test_stream_waits_no_longer_than_asked(void **state)
{
    struct house *h = *state;
    struct nyb_sampling s = greedy();
    struct nyb_event ev;
    struct nyb_times t;
    atomic_store(&h->r.closed, true);
    struct nyb_stream *stream = submit(h, &s);
    assert_false(nyb_next(stream, &ev, 0));
    assert_false(nyb_next(stream, &ev, 5));
    atomic_store(&h->r.closed, false);
    assert_true(nyb_next(stream, &ev, 10000));
    nyb_stream_times(stream, &t);
    assert_true(t.submitted_ns <= t.scheduled_ns && t.scheduled_ns <= ev.time_ns);
    nyb_stream_free(stream);
    assert_all_blocks_come_free(h);
}

static void test_stream_cancel_ends_with_abort(void **state)
{
    struct house *h = *state;
    struct nyb_sampling s = greedy();
    struct answer a;
    atomic_store(&h->r.closed, true);
    struct nyb_stream *stream = submit(h, &s);
    nyb_cancel(stream);
    nyb_cancel(stream);
    atomic_store(&h->r.closed, false);
    read_all(stream, &a);
    assert_int_equal(a.last.finish, NYB_FINISH_ABORT);
    assert_int_equal(a.last.token, -1);
    assert_true(a.n <= 1);
    nyb_stream_free(stream);
    assert_all_blocks_come_free(h);
}

static void test_stream_refuses_bad_requests(void **state)
{
    struct house *h = *state;
    struct nyb_stream *stream;
    struct nyb_err err;
    const int32_t wrong[] = {1, h->r.vocab};
    struct nyb_sampling s = greedy();
    struct nyb_request r = {.sampling = &s};
    assert_int_equal(nyb_submit(&h->e, &r, &stream, &err), NYB_E_ARG);
    assert_null(stream);
    r.text = "";
    assert_int_equal(nyb_submit(&h->e, &r, &stream, &err), NYB_E_ARG);
    r.prompt = wrong;
    r.n_prompt = 2;
    assert_int_equal(nyb_submit(&h->e, &r, &stream, &err), NYB_E_RANGE);
    assert_non_null(strstr(err.message, "position 1"));
    r.n_prompt = 1;
    static const int priority[] = {-1001, 1001, -1000, 1000}; /* the last two are fine */
    for (int i = 0; i < 4; i++) {
        r.priority = priority[i];
        assert_int_equal(nyb_submit(&h->e, &r, &stream, &err), i < 2 ? NYB_E_RANGE : NYB_OK);
        if (i < 2)
            assert_string_equal(err.where, "priority");
        nyb_stream_free(stream);
    }
    r.priority = 0;
    static const int constraint[] = {-1, NYB_CONSTRAINT_TAGS + 1};
    for (int i = 0; i < 2; i++) {
        s.constraint = (enum nyb_constraint)constraint[i];
        assert_int_equal(nyb_submit(&h->e, &r, &stream, &err), NYB_E_RANGE);
        assert_string_equal(err.where, "constraint");
    }
    /* a constraint needs a tokenizer, an end, and a text */
    const int32_t stop[] = {1};
    s.constraint = NYB_CONSTRAINT_REGEX;
    assert_null(h->e.constraints);
    assert_int_equal(nyb_submit(&h->e, &r, &stream, &err), NYB_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "no tokenizer"));
    h->e.constraints = constraint_cache_open(h->e.tokenizer, h->r.vocab);
    assert_int_equal(nyb_submit(&h->e, &r, &stream, &err), NYB_E_ARG);
    assert_non_null(strstr(err.message, "no text"));
    int n_eos = h->e.defaults.n_eos;
    h->e.defaults.n_eos = 0;
    assert_int_equal(nyb_submit(&h->e, &r, &stream, &err), NYB_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "give a stop token"));
    s.stop_token = stop;
    s.n_stop_token = 1;
    assert_int_equal(nyb_submit(&h->e, &r, &stream, &err), NYB_E_ARG);
    s.constraint_text = "(";
    assert_int_equal(nyb_submit(&h->e, &r, &stream, &err), NYB_E_ARG);
    assert_string_equal(err.where, "constraint");
    s.n_stop_token = 0;
    h->e.defaults.n_eos = n_eos;
    constraint_cache_close(h->e.constraints);
    h->e.constraints = NULL;
    s.constraint = NYB_CONSTRAINT_NONE;
    s.top_p = 0;
    assert_int_equal(nyb_submit(&h->e, &r, &stream, &err), NYB_E_RANGE);
    r.n_prompt = 0;
    r.prompt = NULL;
    s.top_p = NAN;
    r.text = "bad \xff utf-8";
    assert_int_not_equal(nyb_submit(&h->e, &r, &stream, &err), NYB_OK);
    struct nyb_stats stats;
    engine_stats(h->e.engine, &stats);
    assert_int_equal(stats.running + stats.waiting, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stream_gives_the_text_up_to_the_end_token, open_house,
                                        close_house),
        cmocka_unit_test_setup_teardown(test_stream_length_flushes_the_text, open_house, close_house),
        cmocka_unit_test_setup_teardown(test_stream_stop_string, open_house, close_house),
        cmocka_unit_test_setup_teardown(test_stream_min_tokens_holds_back_stops, open_house, close_house),
        cmocka_unit_test_setup_teardown(test_stream_stop_token, open_house, close_house),
        cmocka_unit_test_setup_teardown(test_stream_bad_words_do_not_appear, open_house, close_house),
        cmocka_unit_test_setup_teardown(test_stream_logprobs, open_house, close_house),
        cmocka_unit_test_setup_teardown(test_stream_waits_no_longer_than_asked, open_house, close_house),
        cmocka_unit_test_setup_teardown(test_stream_cancel_ends_with_abort, open_house, close_house),
        cmocka_unit_test_setup_teardown(test_stream_refuses_bad_requests, open_house, close_house),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
