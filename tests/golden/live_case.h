/* An engine and a few requests, through the public interface, and a second checkpoint for it. */
#ifndef NYB_TEST_LIVE_CASE_H
#define NYB_TEST_LIVE_CASE_H

#include <time.h>

#include "golden/workshop.h"
#include "nybble.h"

enum { MAX_OUT = 40, N_PROMPT = 5 };

static const char *const opening[N_PROMPT] = {
    "Once upon a time there was a little girl who lived in a castle by the sea, and every morning",
    "The old king had three sons, and the youngest", "Once upon a time", "\"Who are you?\" asked the fox.",
    "In the middle of the forest stood a house. Nobody knew who had built it"};

static char *other; /* other values, same shapes; NULL: python3 is not there */

static inline int make_other(void **state)
{
    make_workshop(state);
    other = twins_are_possible() ? twin(TALES, "other", "--perturb 3") : NULL;
    return 0;
}

static inline int drop_other(void **state)
{
    free(other);
    return drop_workshop(state);
}

static inline void must(enum nyb_code code, const struct nyb_err *err)
{
    if (code != NYB_OK)
        fail_msg("%s: %s", err->where, err->message);
}

static inline struct nyb_engine *open_engine(const char *folder, int seqs)
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

/* ---- requests ------------------------------------------------------------------------------------------ */

struct answer {
    int32_t id[MAX_OUT];
    int n, n_old, cached; /* n_old: tokens of the version that made the first one */
    enum nyb_finish finish;
    char first[NYB_VERSION_MAX], last[NYB_VERSION_MAX];
};

static inline struct nyb_stream *submit_ids(struct nyb_engine *e, const int32_t *ids, size_t n,
                                            const char *text, int max_tokens, const char *id)
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

static inline struct nyb_stream *submit(struct nyb_engine *e, int i)
{
    return submit_ids(e, NULL, 0, opening[i % N_PROMPT], MAX_OUT - i % 3, NULL);
}

/* One event; false after the last. */
static inline bool take(struct nyb_stream *s, struct answer *a)
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

static inline struct answer finish(struct nyb_stream *s, const struct answer *so_far)
{
    struct answer a = so_far ? *so_far : (struct answer){0};
    while (take(s, &a))
        ;
    nyb_stream_free(s);
    return a;
}

static inline struct answer ask(struct nyb_engine *e, int i)
{
    return finish(submit(e, i), NULL);
}

static inline void assert_same_ids(const int32_t *a, const int32_t *b, int n)
{
    assert_memory_equal(a, b, (size_t)n * sizeof(*a));
}

static inline void assert_all_blocks_come_free(struct nyb_engine *e)
{
    struct nyb_stats s = {.kv_blocks_used = -1};
    for (int i = 0; i < 5000 && s.kv_blocks_used != 0; i++) {
        nyb_engine_stats(e, &s);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    assert_int_equal(s.kv_blocks_used, 0);
    assert_int_equal(s.running + s.waiting + s.stalled, 0);
}

static inline void checksum(struct nyb_engine *e, char text[33])
{
    struct nyb_check_result c;
    struct nyb_err err;
    must(nyb_weights_check(e, NYB_CHECK_CHECKSUM, 2, &c, &err), &err);
    memcpy(text, c.checksum, 33);
}

static inline struct nyb_update_result update(struct nyb_engine *e, const char *folder,
                                              enum nyb_in_flight mode, const char *version)
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

static inline void assert_serves(struct nyb_engine *e, struct nyb_engine *fresh, const char *version)
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

#endif
