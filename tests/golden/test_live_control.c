/* What is asked of an engine beside requests: updates that are refused or have to wait, pausing, aborting,
 * flushing, checks of the weights. */
#include <pthread.h>
#include <stdatomic.h>

#include "engine/live.h"
#include "golden/live_case.h"

/* ---- refusals ------------------------------------------------------------------------------------------ */

/* ---- refusals ---------------------------------------------------------------------------------------------
 */

struct background {
    struct nyb_engine *e;
    enum nyb_code code;
    struct nyb_update_result result;
    int finish_ms;
    pthread_t thread;
};

static void *run_background(void *arg)
{
    struct background *b = arg;
    struct nyb_update u;
    nyb_update_init(&u);
    u.folder = other;
    u.in_flight = NYB_IN_FLIGHT_FINISH;
    u.finish_ms = b->finish_ms;
    b->code = nyb_update_weights(b->e, &u, &b->result, NULL);
    return NULL;
}

/* An update in the background that waits for a request whose reader does not read. */
static struct nyb_stream *start_background(struct background *b, struct nyb_engine *e, int finish_ms)
{
    *b = (struct background){.e = e, .finish_ms = finish_ms};
    struct nyb_stream *s = submit_ids(e, NULL, 0, opening[0], 200, NULL);
    struct answer a = {0};
    assert_true(take(s, &a));
    assert_int_equal(pthread_create(&b->thread, NULL, run_background, b), 0);
    struct nyb_weights w = {.updating = false};
    for (int i = 0; i < 10000 && !w.updating; i++) {
        nyb_engine_weights(e, &w);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    assert_true(w.updating);
    return s;
}

static void test_live_second_update_and_stop_are_refused(void **state)
{
    (void)state;
    if (!other)
        skip();
    struct nyb_engine *e = open_engine(TALES, 4);
    struct background b;
    struct nyb_update u;
    struct nyb_update_result r;
    struct nyb_check_result c;
    struct nyb_err err;
    struct nyb_stream *s = start_background(&b, e, 0);
    nyb_update_init(&u);
    u.folder = other;
    assert_int_equal(nyb_update_weights(e, &u, &r, &err), NYB_E_CONFLICT);
    assert_int_equal(nyb_weights_check(e, NYB_CHECK_CHECKSUM, 1, &c, &err), NYB_E_CONFLICT);
    nyb_stop(e); /* while the first one waits */
    pthread_join(b.thread, NULL);
    assert_int_equal(b.code, NYB_E_CLOSED);
    assert_int_equal(b.result.state, NYB_WEIGHTS_OLD);
    assert_int_equal(nyb_update_weights(e, &u, &r, &err), NYB_E_CLOSED);
    assert_int_equal(nyb_pause(e, NYB_PAUSE_IN_PLACE, NULL, &err), NYB_E_CLOSED);
    nyb_stream_free(s);
    nyb_close(e);
}

static void test_live_finish_has_a_deadline(void **state)
{
    (void)state;
    if (!other)
        skip();
    struct nyb_engine *e = open_engine(TALES, 4);
    struct background b;
    struct nyb_stream *s = start_background(&b, e, 100);
    pthread_join(b.thread, NULL);
    assert_int_equal(b.code, NYB_OK);
    assert_int_equal(b.result.n_paused, 1);
    assert_true(b.result.wait_ns >= 100000000u);
    struct nyb_event ev = {.finish = NYB_FINISH_NONE};
    int n = 0;
    char last[NYB_VERSION_MAX] = "";
    while (nyb_next(s, &ev, 60000)) {
        n += ev.token >= 0;
        if (ev.weight_version)
            strcpy(last, ev.weight_version);
    }
    assert_int_equal(n, 199); /* one was read before */
    assert_string_equal(last, "1");
    nyb_stream_free(s);
    nyb_close(e);
}

static void refuse(struct nyb_engine *e, const struct nyb_update *u, enum nyb_code want, int64_t n_difference)
{
    struct nyb_update_result r;
    struct nyb_err err;
    assert_int_equal(nyb_update_weights(e, u, &r, &err), want);
    assert_int_equal(r.n_difference, n_difference);
    assert_int_equal(r.n_shown, n_difference < NYB_DIFFERENCES_MAX ? n_difference : NYB_DIFFERENCES_MAX);
    assert_int_equal(r.state, NYB_WEIGHTS_OLD);
    assert_string_equal(r.weight_version, "default");
    assert_true(err.message[0] != 0);
}

static void test_live_refusals_change_nothing(void **state)
{
    (void)state;
    if (!other)
        skip();
    struct nyb_engine *e = open_engine(TALES, 4), *a = open_engine(TALES, 4);
    char *bad = twin(TALES, "bad", "--perturb 5 --drop model.norm.weight"), version[200];
    struct nyb_update u;
    nyb_update_init(&u);
    refuse(e, &u, NYB_E_ARG, 0); /* neither folder nor upload */
    u.folder = bad;
    refuse(e, &u, NYB_E_ARG, 1);
    u.folder = "/nowhere/at/all";
    refuse(e, &u, NYB_E_ARG, 0);
    u.folder = other;
    memset(version, 'v', sizeof(version));
    version[199] = 0;
    u.weight_version = version;
    struct nyb_update_result r;
    struct nyb_err err;
    assert_int_equal(nyb_update_weights(e, &u, &r, &err), NYB_E_RANGE);
    assert_string_equal(err.where, "weight_version");
    u.weight_version = NULL;
    u.dry_run = true; /* what it would do, and nothing done */
    must(nyb_update_weights(e, &u, &r, &err), &err);
    assert_true(r.n_tensor > 100);
    assert_int_equal(r.state, NYB_WEIGHTS_OLD);
    assert_int_equal(r.generation, 0);
    assert_serves(e, a, "default");
    struct nyb_weights w;
    nyb_engine_weights(e, &w);
    assert_int_equal(w.updates, 0);
    free(bad);
    nyb_close(e);
    nyb_close(a);
}

/* ---- pausing ------------------------------------------------------------------------------------------- */

/* ---- pausing
 * ------------------------------------------------------------------------------------------------- */

static void test_live_pause(void **state)
{
    (void)state;
    struct nyb_engine *e = open_engine(TALES, 8), *alone = open_engine(TALES, 1);
    struct nyb_err err;
    struct nyb_stats before, after;
    for (int mode = 0; mode < NYB_PAUSE_COUNT; mode++) {
        struct nyb_stream *s[6];
        struct answer got[6] = {0};
        int n = 0;
        for (int i = 0; i < 5; i++) {
            s[i] = submit(e, i);
            assert_true(take(s[i], &got[i]));
        }
        must(nyb_pause(e, (enum nyb_pause_mode)mode, &n, &err), &err);
        assert_true(nyb_is_paused(e) && n <= 5);
        s[5] = submit(e, 5); /* waits */
        nyb_engine_stats(e, &before);
        nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
        nyb_engine_stats(e, &after);
        assert_int_equal(after.steps, before.steps);
        struct nyb_health h;
        nyb_engine_health(e, &h);
        assert_int_equal(h.state, NYB_ENGINE_PAUSED);
        assert_true(h.alive);
        if (mode != NYB_PAUSE_IN_PLACE)
            assert_int_equal(after.kv_blocks_used, 0);
        must(nyb_resume(e, &err), &err);
        assert_false(nyb_is_paused(e));
        for (int i = 0; i < 6; i++) {
            struct answer want = ask(alone, i);
            got[i] = finish(s[i], &got[i]);
            if (mode == NYB_PAUSE_ABORT && i < 5) {
                assert_true(got[i].finish == NYB_FINISH_ABORT || got[i].n == want.n);
                continue;
            }
            assert_int_equal(got[i].n, want.n);
            assert_same_ids(got[i].id, want.id, want.n);
        }
        assert_all_blocks_come_free(e);
    }
    assert_int_equal(nyb_pause(e, NYB_PAUSE_COUNT, NULL, &err), NYB_E_RANGE);
    nyb_close(e);
    nyb_close(alone);
}

static void test_live_abort_by_id_and_flush(void **state)
{
    (void)state;
    struct nyb_engine *e = open_engine(TALES, 8);
    struct nyb_err err;
    struct nyb_stream *s[4];
    int n = -1;
    must(nyb_pause(e, NYB_PAUSE_IN_PLACE, NULL, &err), &err);
    for (int i = 0; i < 4; i++)
        s[i] = submit_ids(e, NULL, 0, opening[0], 20, i == 3 ? NULL : i == 2 ? "b" : "a");
    must(nyb_abort(e, "nobody", &n, &err), &err);
    assert_int_equal(n, 0);
    must(nyb_abort(e, "a", &n, &err), &err);
    assert_int_equal(n, 2);
    must(nyb_resume(e, &err), &err);
    for (int i = 0; i < 4; i++)
        assert_int_equal(finish(s[i], NULL).finish, i < 2 ? NYB_FINISH_ABORT : NYB_FINISH_LENGTH);
    assert_true(ask(e, 0).cached > 0);
    must(nyb_flush_cache(e, &err), &err);
    assert_int_equal(ask(e, 0).cached, 0);
    assert_true(ask(e, 0).cached > 0);
    s[0] = submit(e, 0);
    must(nyb_abort(e, NULL, &n, &err), &err);
    nyb_stream_free(s[0]);
    assert_all_blocks_come_free(e);
    nyb_close(e);
}

static void test_live_snapshot_and_version(void **state)
{
    (void)state;
    if (!other)
        skip();
    struct nyb_engine *e = open_engine(TALES, 4);
    struct nyb_check_result c;
    struct nyb_err err;
    assert_int_equal(nyb_weights_check(e, NYB_CHECK_COMPARE, 1, &c, &err), NYB_E_NOT_FOUND);
    must(nyb_weights_check(e, NYB_CHECK_SNAPSHOT, 2, &c, &err), &err);
    must(nyb_weights_check(e, NYB_CHECK_COMPARE, 2, &c, &err), &err);
    assert_int_equal(c.n_differ, 0);
    update(e, other, NYB_IN_FLIGHT_RETRACT, NULL);
    must(nyb_weights_check(e, NYB_CHECK_COMPARE, 2, &c, &err), &err);
    assert_true(c.n_differ > 100);
    assert_int_equal(c.n_shown, NYB_DIFFERENCES_MAX);
    must(nyb_set_weight_version(e, "renamed", &err), &err);
    assert_string_equal(ask(e, 0).first, "renamed");
    assert_int_equal(nyb_set_weight_version(e, "", &err), NYB_E_RANGE);
    nyb_close(e);
}

/* ---- whose turn it is ---------------------------------------------------------------------------------- */

struct mover {
    struct live *live;
    atomic_bool ends;
    int n_moved;
};

static void *move_all_the_time(void *arg)
{
    struct mover *m = arg;
    while (!atomic_load(&m->ends)) {
        if (!live_take_to_move(m->live))
            continue;
        m->n_moved++;
        live_give(m->live);
    }
    return NULL;
}

/* Experts that move, however often, are no conflict; an update or a check is one, for moves too. */
static void test_moves_are_no_conflict(void **state)
{
    (void)state;
    struct nyb_err err;
    struct live l;
    assert_int_equal(live_open(&l, "folder", NULL, &err), NYB_OK);
    assert_true(live_take(&l));
    assert_false(live_take(&l));
    assert_false(live_take_to_move(&l));
    live_give(&l);
    struct mover m = {.live = &l};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, move_all_the_time, &m), 0);
    for (int i = 0; i < 3000; i++) {
        assert_true(live_take(&l));
        live_give(&l);
    }
    atomic_store(&m.ends, true);
    pthread_join(thread, NULL);
    assert_true(live_take_to_move(&l));
    live_give(&l);
    live_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_live_second_update_and_stop_are_refused),
        cmocka_unit_test(test_live_finish_has_a_deadline),
        cmocka_unit_test(test_live_refusals_change_nothing),
        cmocka_unit_test(test_live_pause),
        cmocka_unit_test(test_live_abort_by_id_and_flush),
        cmocka_unit_test(test_live_snapshot_and_version),
        cmocka_unit_test(test_moves_are_no_conflict),
    };
    return cmocka_run_group_tests(tests, make_other, drop_other);
}
