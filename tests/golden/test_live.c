/* Weights replaced under running requests, through the public interface: afterwards every answer is the one
 * of a fresh start, and whoever was in flight gets what the mode promises. */
#include "golden/live_case.h"

#define N_STREAM 32

/* ---- what is served afterwards ------------------------------------------------------------------------- */

static void test_live_update_equals_a_fresh_start(void **state)
{
    (void)state;
    if (!other)
        skip();
    struct nyb_engine *e = open_engine(TALES, 4), *a = open_engine(TALES, 4), *b = open_engine(other, 4);
    assert_serves(e, a, "default");
    assert_true(ask(e, 0).cached > 0); /* of the first time it was asked */
    struct nyb_update_result r = update(e, other, NYB_IN_FLIGHT_RETRACT, "step-7");
    assert_string_equal(r.weight_version, "step-7");
    assert_int_equal(r.generation, 1);
    assert_true(r.n_tensor > 100 && r.read_bytes > 1000000 && r.prepare_ns > 0 && r.stall_ns > 0);
    print_message("%d tensors, %.1f MB: prepare %.1f ms, stage %.1f ms, no steps for %.2f ms\n", r.n_tensor,
                  (double)r.read_bytes * 1e-6, (double)r.prepare_ns * 1e-6, (double)r.stage_ns * 1e-6,
                  (double)r.stall_ns * 1e-6);
    assert_int_equal(ask(e, 0).cached, 0); /* old KV matches nothing */
    assert_serves(e, b, "step-7");
    r = update(e, TALES, NYB_IN_FLIGHT_CONTINUE, NULL);
    assert_int_equal(r.generation, 2);
    assert_serves(e, a, "2");
    struct nyb_weights w;
    nyb_engine_weights(e, &w);
    assert_int_equal(w.updates, 2);
    assert_string_equal(w.version, "2");
    assert_false(w.updating || w.inconsistent);
    nyb_close(e);
    nyb_close(a);
    nyb_close(b);
}

static void test_live_in_place_update_equals_a_fresh_start(void **state)
{
    (void)state;
    if (!other)
        skip();
    struct nyb_engine *e = open_engine(TALES, 4), *b = open_engine(other, 4);
    struct nyb_update u;
    struct nyb_update_result r;
    struct nyb_err err;
    nyb_update_init(&u);
    u.folder = other;
    u.staging = NYB_STAGING_OFF;
    must(nyb_update_weights(e, &u, &r, &err), &err);
    assert_false(r.staged);
    assert_int_equal(r.staged_bytes, 0);
    assert_serves(e, b, "1");
    nyb_close(e);
    nyb_close(b);
}

/* ---- in flight ----------------------------------------------------------------------------------------- */

/* Stream i ended well, and its first n tokens (all, if n is negative) are those of a, alone and never
 * updated. */
static void assert_begins_as(struct nyb_engine *a, int i, const struct answer *got, int n)
{
    struct answer want = ask(a, i);
    assert_int_equal(got->finish, NYB_FINISH_LENGTH);
    assert_int_equal(got->n, want.n);
    assert_same_ids(got->id, want.id, n < 0 ? want.n : n);
}

/* Did the exchange come while streams went on? */
static bool met_streams(enum nyb_in_flight mode, const struct answer *got, const struct nyb_update_result *r)
{
    if (mode == NYB_IN_FLIGHT_FINISH)
        return r->wait_ns > 0;
    if (mode == NYB_IN_FLIGHT_ABORT)
        return r->n_paused > 0;
    for (int i = 0; i < N_STREAM; i++)
        if (!strcmp(got[i].last, "B"))
            return true;
    return false;
}

/* An engine whose update ran under 32 streams that had all begun. Weights are staged while the streams go on;
 * where that took so long that all had ended before the exchange (a busy machine), it is done again with
 * another engine. */
static struct nyb_engine *run_under_streams(enum nyb_in_flight mode, struct answer *out,
                                            struct nyb_update_result *r)
{
    for (int attempt = 0; attempt < 10; attempt++) {
        struct nyb_engine *e = open_engine(TALES, N_STREAM);
        struct nyb_stream *s[N_STREAM];
        memset(out, 0, N_STREAM * sizeof(*out));
        for (int i = 0; i < N_STREAM; i++)
            s[i] = submit(e, i);
        for (int i = 0; i < N_STREAM; i++)
            for (int k = 0; k < 1 + i % 4; k++)
                assert_true(take(s[i], &out[i]));
        *r = update(e, other, mode, "B");
        struct answer late = ask(e, 1);
        assert_string_equal(late.first, "B");
        for (int i = 0; i < N_STREAM; i++)
            out[i] = finish(s[i], &out[i]);
        assert_all_blocks_come_free(e);
        if (met_streams(mode, out, r))
            return e;
        nyb_close(e);
    }
    fail_msg("ten updates found no stream under way");
    return NULL;
}

static void test_live_finish_first(void **state)
{
    (void)state;
    if (!other)
        skip();
    struct nyb_engine *a = open_engine(TALES, 1);
    static struct answer got[N_STREAM];
    struct nyb_update_result r;
    struct nyb_engine *e = run_under_streams(NYB_IN_FLIGHT_FINISH, got, &r);
    assert_int_equal(r.n_paused, 0);
    assert_true(r.wait_ns > 0);
    for (int i = 0; i < N_STREAM; i++) {
        assert_begins_as(a, i, &got[i], -1);
        assert_string_equal(got[i].last, "default");
    }
    nyb_close(e);
    nyb_close(a);
}

/* The tokens of the old weights, then what the new ones make of the prompt with those behind it. */
static void assert_goes_on_as(struct nyb_engine *b, int i, const struct answer *got)
{
    int32_t ids[256];
    size_t n;
    struct nyb_stream *probe = submit(b, i);
    const int32_t *prompt = nyb_stream_prompt(probe, &n);
    memcpy(ids, prompt, n * sizeof(*ids));
    nyb_stream_free(probe);
    memcpy(ids + n, got->id, (size_t)got->n_old * sizeof(*ids));
    int left = got->n - got->n_old;
    struct answer want = finish(submit_ids(b, ids, n + (size_t)got->n_old, NULL, left, NULL), NULL);
    assert_int_equal(want.n, left);
    assert_same_ids(got->id + got->n_old, want.id, left);
}

static void test_live_retract(void **state)
{
    (void)state;
    if (!other)
        skip();
    struct nyb_engine *a = open_engine(TALES, 1), *b = open_engine(other, 1);
    static struct answer got[N_STREAM];
    struct nyb_update_result r;
    struct nyb_engine *e = run_under_streams(NYB_IN_FLIGHT_RETRACT, got, &r);
    int n_crossed = 0;
    for (int i = 0; i < N_STREAM; i++) {
        assert_begins_as(a, i, &got[i], got[i].n_old);
        assert_string_equal(got[i].first, "default");
        n_crossed += got[i].n_old < got[i].n;
        if (got[i].n_old < got[i].n)
            assert_goes_on_as(b, i, &got[i]);
    }
    print_message("retracted %d, of which %d got tokens of both versions\n", r.n_paused, n_crossed);
    assert_true(n_crossed > 0 && r.n_paused >= n_crossed);
    nyb_close(e);
    nyb_close(a);
    nyb_close(b);
}

static void test_live_continue(void **state)
{
    (void)state;
    if (!other)
        skip();
    struct nyb_engine *a = open_engine(TALES, 1), *b = open_engine(other, 4);
    static struct answer got[N_STREAM];
    struct nyb_update_result r;
    struct nyb_engine *e = run_under_streams(NYB_IN_FLIGHT_CONTINUE, got, &r);
    int n_crossed = 0;
    for (int i = 0; i < N_STREAM; i++) {
        assert_begins_as(a, i, &got[i], got[i].n_old);
        n_crossed += !strcmp(got[i].last, "B");
    }
    assert_true(n_crossed > 0);
    assert_serves(e, b, "B"); /* mixed KV has not got into the prefix cache */
    nyb_close(e);
    nyb_close(a);
    nyb_close(b);
}

static void test_live_abort(void **state)
{
    (void)state;
    if (!other)
        skip();
    static struct answer got[N_STREAM];
    struct nyb_update_result r;
    struct nyb_engine *e = run_under_streams(NYB_IN_FLIGHT_ABORT, got, &r);
    int n_abort = 0;
    for (int i = 0; i < N_STREAM; i++) {
        n_abort += got[i].finish == NYB_FINISH_ABORT;
        assert_int_equal(got[i].n, got[i].n_old);
    }
    assert_int_equal(n_abort, r.n_paused);
    assert_true(n_abort > 0);
    nyb_close(e);
}

/* ---- often --------------------------------------------------------------------------------------------- */

static void test_live_many_updates_leave_memory_flat(void **state)
{
    (void)state;
    if (!other)
        skip();
    struct nyb_engine *e = open_engine(TALES, 4);
    uint64_t worst_ns = 0;
    long least[10] = {0}; /* of ten updates each: what an allocator keeps for a moment is no growth */
    int last = test_is_long() ? 9 : 5;
    for (int i = 0; i < 10 * (last + 1); i++) {
        struct nyb_stream *s = submit(e, i);
        struct nyb_update_result r = update(e, i % 2 ? TALES : other, (enum nyb_in_flight)(i % 3), NULL);
        worst_ns = r.stall_ns > worst_ns ? r.stall_ns : worst_ns;
        assert_int_equal(finish(s, NULL).finish, NYB_FINISH_LENGTH);
        long now = test_resident_kib();
        if (i % 10 == 0 || now < least[i / 10])
            least[i / 10] = now;
    }
    print_message(
        "resident %ld KiB in updates 11 to 20, %ld in the last ten; the longest stall was %.2f ms\n",
        least[1], least[last], (double)worst_ns * 1e-6);
#ifndef __SANITIZE_ADDRESS__                    /* which keeps freed memory aside */
    assert_true(least[last] < least[1] + 4096); /* some 2 MB are KV blocks that are used for the first time */
#endif
    assert_all_blocks_come_free(e);
    nyb_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_live_update_equals_a_fresh_start),
        cmocka_unit_test(test_live_in_place_update_equals_a_fresh_start),
        cmocka_unit_test(test_live_finish_first),
        cmocka_unit_test(test_live_retract),
        cmocka_unit_test(test_live_continue),
        cmocka_unit_test(test_live_abort),
        cmocka_unit_test(test_live_many_updates_leave_memory_flat),
    };
    return cmocka_run_group_tests(tests, make_other, drop_other);
}
