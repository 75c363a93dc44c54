/* Weights replaced under running requests, through the public interface: afterwards every answer is the one
 * of a fresh start, and whoever was in flight gets what the mode promises. Also pausing, aborting, flushing.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/live.h"
#include "nybble.h"
#include "unit/ckpt_files.h"

#define TALES NYBBLE_SOURCE_DIR "/models/tales-24m-moe-nvfp4"

enum { N_STREAM = 32, MAX_OUT = 40, N_PROMPT = 5 };

static const char *const opening[N_PROMPT] = {
    "Once upon a time there was a little girl who lived in a castle by the sea, and every morning",
    "The old king had three sons, and the youngest", "Once upon a time", "\"Who are you?\" asked the fox.",
    "In the middle of the forest stood a house. Nobody knew who had built it"};

static char *workshop, *twin; /* twin: other values, same shapes; NULL: python3 is not there */

static int make_twin(void **state)
{
    (void)state;
    workshop = folder_make();
    twin = path_join(workshop, "twin");
    char *line =
        mem_printf("python3 '%s/tests/tools/twin.py' '%s' '%s' --perturb 3", NYBBLE_SOURCE_DIR, TALES, twin);
    if (system("python3 -c ''") != 0) {
        free(twin);
        twin = NULL;
    } else {
        assert_int_equal(system(line), 0);
    }
    free(line);
    return 0;
}

static int drop_twin(void **state)
{
    (void)state;
    free(twin);
    folder_drop(workshop);
    return 0;
}

static void must(enum nyb_code code, const struct nyb_err *err)
{
    if (code != NYB_OK)
        fail_msg("%s: %s", err->where, err->message);
}

static struct nyb_engine *open_engine(const char *folder, int seqs)
{
    struct nyb_options o;
    struct nyb_engine *e;
    struct nyb_err err;
    nyb_options_init(&o);
    o.model = folder;
    o.threads = 2;
    o.max_model_len = 256;
    o.max_num_seqs = seqs;
    o.max_num_batched_tokens = 64;
    must(nyb_open(&e, &o, &err), &err);
    return e;
}

/* ---- requests ----------------------------------------------------------------------------------------- */

struct answer {
    int32_t id[MAX_OUT];
    int n, n_old, cached; /* n_old: tokens of the version that made the first one */
    enum nyb_finish finish;
    char first[NYB_VERSION_MAX], last[NYB_VERSION_MAX];
};

static struct nyb_stream *submit_ids(struct nyb_engine *e, const int32_t *ids, size_t n, const char *text,
                                     int max_tokens, const char *id)
{
    struct nyb_stream *stream;
    struct nyb_err err;
    struct nyb_sampling s;
    nyb_sampling_init(&s);
    s.temperature = 0;
    s.ignore_eos = true;
    s.max_tokens = max_tokens;
    const struct nyb_request r = {.prompt = ids, .n_prompt = n, .text = text, .sampling = &s, .id = id};
    must(nyb_submit(e, &r, &stream, &err), &err);
    return stream;
}

static struct nyb_stream *submit(struct nyb_engine *e, int i)
{
    return submit_ids(e, NULL, 0, opening[i % N_PROMPT], MAX_OUT - i % 3, NULL);
}

/* One event; false after the last. */
static bool take(struct nyb_stream *s, struct answer *a)
{
    struct nyb_event ev;
    if (!nyb_next(s, &ev, 60000))
        return false;
    if (ev.weight_version) {
        if (a->n == 0)
            strcpy(a->first, ev.weight_version);
        strcpy(a->last, ev.weight_version);
        assert_non_null(ev.first_weight_version);
    }
    if (ev.token >= 0) {
        a->n_old += !strcmp(a->first, a->last);
        a->id[a->n++] = ev.token;
    }
    a->finish = ev.finish;
    a->cached = ev.usage.cached_tokens;
    return ev.finish == NYB_FINISH_NONE;
}

static struct answer finish(struct nyb_stream *s, const struct answer *so_far)
{
    struct answer a = so_far ? *so_far : (struct answer){0};
    while (take(s, &a))
        ;
    nyb_stream_free(s);
    return a;
}

static struct answer ask(struct nyb_engine *e, int i)
{
    return finish(submit(e, i), NULL);
}

static void assert_same_ids(const int32_t *a, const int32_t *b, int n)
{
    assert_memory_equal(a, b, (size_t)n * sizeof(*a));
}

static void assert_all_blocks_come_free(struct nyb_engine *e)
{
    struct nyb_stats s = {.kv_blocks_used = -1};
    for (int i = 0; i < 5000 && s.kv_blocks_used != 0; i++) {
        nyb_engine_stats(e, &s);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    assert_int_equal(s.kv_blocks_used, 0);
    assert_int_equal(s.running + s.waiting + s.stalled, 0);
}

static void checksum(struct nyb_engine *e, char text[33])
{
    struct nyb_check_result c;
    struct nyb_err err;
    must(nyb_weights_check(e, NYB_CHECK_CHECKSUM, 2, &c, &err), &err);
    memcpy(text, c.checksum, 33);
}

static struct nyb_update_result update(struct nyb_engine *e, const char *folder, enum nyb_in_flight mode,
                                       const char *version)
{
    struct nyb_update u;
    struct nyb_update_result r;
    struct nyb_err err;
    nyb_update_init(&u);
    u.folder = folder;
    u.in_flight = mode;
    u.weight_version = version;
    must(nyb_update_weights(e, &u, &r, &err), &err);
    assert_int_equal(r.state, NYB_WEIGHTS_NEW);
    return r;
}

/* ---- what is served afterwards --------------------------------------------------------------------------
 */

static void assert_serves(struct nyb_engine *e, struct nyb_engine *fresh, const char *version)
{
    char a[33], b[33];
    checksum(e, a);
    checksum(fresh, b);
    assert_string_equal(a, b);
    for (int i = 0; i < N_PROMPT; i++) {
        struct answer x = ask(e, i), y = ask(fresh, i);
        assert_int_equal(x.n, y.n);
        assert_same_ids(x.id, y.id, x.n);
        assert_string_equal(x.first, version);
        assert_string_equal(x.last, version);
    }
}

static void test_live_update_equals_a_fresh_start(void **state)
{
    (void)state;
    if (!twin)
        skip();
    struct nyb_engine *e = open_engine(TALES, 4), *a = open_engine(TALES, 4), *b = open_engine(twin, 4);
    assert_serves(e, a, "default");
    assert_true(ask(e, 0).cached > 0); /* of the first time it was asked */
    struct nyb_update_result r = update(e, twin, NYB_IN_FLIGHT_RETRACT, "step-7");
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
    if (!twin)
        skip();
    struct nyb_engine *e = open_engine(TALES, 4), *b = open_engine(twin, 4);
    struct nyb_update u;
    struct nyb_update_result r;
    struct nyb_err err;
    nyb_update_init(&u);
    u.folder = twin;
    u.staging = NYB_STAGING_OFF;
    must(nyb_update_weights(e, &u, &r, &err), &err);
    assert_false(r.staged);
    assert_int_equal(r.staged_bytes, 0);
    assert_serves(e, b, "1");
    nyb_close(e);
    nyb_close(b);
}

/* ---- in flight ------------------------------------------------------------------------------------------
 */

/* Stream i ended well, and its first n tokens (all, if n is negative) are those of a, alone and never
 * updated. */
static void assert_begins_as(struct nyb_engine *a, int i, const struct answer *got, int n)
{
    struct answer want = ask(a, i);
    assert_int_equal(got->finish, NYB_FINISH_LENGTH);
    assert_int_equal(got->n, want.n);
    assert_same_ids(got->id, want.id, n < 0 ? want.n : n);
}

/* Run an update under 32 streams that have all begun. */
static void run_under_streams(struct nyb_engine *e, enum nyb_in_flight mode, struct answer *out,
                              struct nyb_update_result *r)
{
    struct nyb_stream *s[N_STREAM];
    memset(out, 0, N_STREAM * sizeof(*out));
    for (int i = 0; i < N_STREAM; i++)
        s[i] = submit(e, i);
    for (int i = 0; i < N_STREAM; i++)
        for (int k = 0; k < 1 + i % 4; k++)
            assert_true(take(s[i], &out[i]));
    *r = update(e, twin, mode, "B");
    struct answer late = ask(e, 1);
    assert_string_equal(late.first, "B");
    for (int i = 0; i < N_STREAM; i++)
        out[i] = finish(s[i], &out[i]);
    assert_all_blocks_come_free(e);
}

static void test_live_finish_first(void **state)
{
    (void)state;
    if (!twin)
        skip();
    struct nyb_engine *e = open_engine(TALES, N_STREAM), *a = open_engine(TALES, 1);
    static struct answer got[N_STREAM];
    struct nyb_update_result r;
    run_under_streams(e, NYB_IN_FLIGHT_FINISH, got, &r);
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
    if (!twin)
        skip();
    struct nyb_engine *e = open_engine(TALES, N_STREAM), *a = open_engine(TALES, 1),
                      *b = open_engine(twin, 1);
    static struct answer got[N_STREAM];
    struct nyb_update_result r;
    run_under_streams(e, NYB_IN_FLIGHT_RETRACT, got, &r);
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
    if (!twin)
        skip();
    struct nyb_engine *e = open_engine(TALES, N_STREAM), *a = open_engine(TALES, 1),
                      *b = open_engine(twin, 4);
    static struct answer got[N_STREAM];
    struct nyb_update_result r;
    run_under_streams(e, NYB_IN_FLIGHT_CONTINUE, got, &r);
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
    if (!twin)
        skip();
    struct nyb_engine *e = open_engine(TALES, N_STREAM);
    static struct answer got[N_STREAM];
    struct nyb_update_result r;
    run_under_streams(e, NYB_IN_FLIGHT_ABORT, got, &r);
    int n_abort = 0;
    for (int i = 0; i < N_STREAM; i++) {
        n_abort += got[i].finish == NYB_FINISH_ABORT;
        assert_int_equal(got[i].n, got[i].n_old);
    }
    assert_int_equal(n_abort, r.n_paused);
    assert_true(n_abort > 0);
    nyb_close(e);
}

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
    u.folder = twin;
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
    if (!twin)
        skip();
    struct nyb_engine *e = open_engine(TALES, 4);
    struct background b;
    struct nyb_update u;
    struct nyb_update_result r;
    struct nyb_check_result c;
    struct nyb_err err;
    struct nyb_stream *s = start_background(&b, e, 0);
    nyb_update_init(&u);
    u.folder = twin;
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
    if (!twin)
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
    if (!twin)
        skip();
    struct nyb_engine *e = open_engine(TALES, 4), *a = open_engine(TALES, 4);
    char *bad = path_join(workshop, "bad"), version[200];
    char *line = mem_printf("python3 '%s/tests/tools/twin.py' '%s' '%s' --perturb 5 --drop model.norm.weight",
                            NYBBLE_SOURCE_DIR, TALES, bad);
    assert_int_equal(system(line), 0);
    struct nyb_update u;
    nyb_update_init(&u);
    refuse(e, &u, NYB_E_ARG, 0); /* neither folder nor upload */
    u.folder = bad;
    refuse(e, &u, NYB_E_ARG, 1);
    u.folder = "/nowhere/at/all";
    refuse(e, &u, NYB_E_ARG, 0);
    u.folder = twin;
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
    free(line);
    nyb_close(e);
    nyb_close(a);
}

/* ---- often
 * ------------------------------------------------------------------------------------------------- */

static void test_live_hundred_updates_leave_memory_flat(void **state)
{
    (void)state;
    if (!twin)
        skip();
    struct nyb_engine *e = open_engine(TALES, 4);
    uint64_t worst_ns = 0;
    long least[10] = {0}; /* of ten updates each: what an allocator keeps for a moment is no growth */
    for (int i = 0; i < 100; i++) {
        struct nyb_stream *s = submit(e, i);
        struct nyb_update_result r = update(e, i % 2 ? TALES : twin, (enum nyb_in_flight)(i % 3), NULL);
        worst_ns = r.stall_ns > worst_ns ? r.stall_ns : worst_ns;
        assert_int_equal(finish(s, NULL).finish, NYB_FINISH_LENGTH);
        long now = test_resident_kib();
        if (i % 10 == 0 || now < least[i / 10])
            least[i / 10] = now;
    }
    print_message(
        "resident %ld KiB in updates 11 to 20, %ld in the last ten; the longest stall was %.2f ms\n",
        least[1], least[9], (double)worst_ns * 1e-6);
#ifndef __SANITIZE_ADDRESS__                 /* which keeps freed memory aside */
    assert_true(least[9] < least[1] + 4096); /* some 2 MB are KV blocks that are used for the first time */
#endif
    assert_all_blocks_come_free(e);
    nyb_close(e);
}

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
    if (!twin)
        skip();
    struct nyb_engine *e = open_engine(TALES, 4);
    struct nyb_check_result c;
    struct nyb_err err;
    assert_int_equal(nyb_weights_check(e, NYB_CHECK_COMPARE, 1, &c, &err), NYB_E_NOT_FOUND);
    must(nyb_weights_check(e, NYB_CHECK_SNAPSHOT, 2, &c, &err), &err);
    must(nyb_weights_check(e, NYB_CHECK_COMPARE, 2, &c, &err), &err);
    assert_int_equal(c.n_differ, 0);
    update(e, twin, NYB_IN_FLIGHT_RETRACT, NULL);
    must(nyb_weights_check(e, NYB_CHECK_COMPARE, 2, &c, &err), &err);
    assert_true(c.n_differ > 100);
    assert_int_equal(c.n_shown, NYB_DIFFERENCES_MAX);
    must(nyb_set_weight_version(e, "renamed", &err), &err);
    assert_string_equal(ask(e, 0).first, "renamed");
    assert_int_equal(nyb_set_weight_version(e, "", &err), NYB_E_RANGE);
    nyb_close(e);
}

/* ---- whose turn it is ---------------------------------------------------------------------------- */

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
        cmocka_unit_test(test_live_update_equals_a_fresh_start),
        cmocka_unit_test(test_live_in_place_update_equals_a_fresh_start),
        cmocka_unit_test(test_live_finish_first),
        cmocka_unit_test(test_live_retract),
        cmocka_unit_test(test_live_continue),
        cmocka_unit_test(test_live_abort),
        cmocka_unit_test(test_live_second_update_and_stop_are_refused),
        cmocka_unit_test(test_live_finish_has_a_deadline),
        cmocka_unit_test(test_live_refusals_change_nothing),
        cmocka_unit_test(test_live_hundred_updates_leave_memory_flat),
        cmocka_unit_test(test_live_pause),
        cmocka_unit_test(test_live_abort_by_id_and_flush),
        cmocka_unit_test(test_live_snapshot_and_version),
        cmocka_unit_test(test_moves_are_no_conflict),
    };
    return cmocka_run_group_tests(tests, make_twin, drop_twin);
}
