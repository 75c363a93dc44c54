/* Stop strings against a brute-force reading of the rule: the first to be complete, then the first in the
 * list. */
#include "test.h"

#include "base/buf.h"
#include "text/stop.h"

struct expected {
    int matched;
    size_t out; /* bytes of the text that come out */
};

static bool ends_with(const char *text, size_t len, const struct stop_string *s)
{
    return len >= s->len && !memcmp(text + len - s->len, s->text, s->len);
}

static struct expected oracle(const char *text, size_t len, const struct stop_string *s, size_t n,
                              bool include)
{
    for (size_t end = 1; end <= len; end++)
        for (size_t i = 0; i < n; i++)
            if (ends_with(text, end, &s[i]))
                return (struct expected){(int)i, include ? end : end - s[i].len};
    return (struct expected){-1, len};
}

/* The longest end of the text that starts a stop string. */
static size_t oracle_held(const char *text, size_t len, const struct stop_string *s, size_t n)
{
    size_t held = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = held + 1; k < s[i].len && k <= len; k++)
            if (!memcmp(text + len - k, s[i].text, k))
                held = k;
    return held;
}

static struct stop *open_stop(const struct stop_string *s, size_t n, bool include)
{
    struct stop *stop;
    struct nyb_err err;
    if (stop_open(&stop, s, n, include, &err) != NYB_OK)
        fail_msg("%s", err.message);
    return stop;
}

/* Push the text in pieces; cuts bit i: a cut before byte i. */
static void check_cut(const char *text, size_t len, const struct stop_string *s, size_t n, bool include,
                      const bool *cut)
{
    struct expected want = oracle(text, len, s, n, include);
    struct stop *stop = open_stop(s, n, include);
    struct buf out = {0};
    for (size_t from = 0, to; from < len; from = to) {
        for (to = from + 1; to < len && !cut[to]; to++)
            ;
        bool matched = stop_push(stop, text + from, to - from, &out);
        assert_int_equal(matched, oracle(text, to, s, n, include).matched >= 0);
        if (!matched) { /* nothing is held back but a beginning of a stop string */
            size_t held = include ? 0 : oracle_held(text, to, s, n);
            assert_int_equal(stop_held(stop), held);
            assert_int_equal(out.len, to - held);
        }
    }
    stop_finish(stop, &out);
    assert_int_equal(stop_matched(stop), want.matched);
    assert_int_equal(out.len, want.out);
    if (want.out > 0)
        assert_memory_equal(out.data, text, want.out);
    buf_free(&out);
    stop_close(stop);
}

static void test_stop_agrees_with_brute_force_for_random_cuts(void **state)
{
    (void)state;
    uint64_t seed = 1;
    int n_matched = 0;
    for (int round = 0; round < 4000; round++) {
        char text[40], word[4][8];
        struct stop_string s[4];
        bool cut[40];
        unsigned letters = 1 + (unsigned)(test_random(&seed) % 3);
        size_t len = test_random(&seed) % sizeof(text), n = 1 + test_random(&seed) % 4;
        for (size_t i = 0; i < len; i++)
            text[i] = (char)('a' + test_random(&seed) % letters);
        for (size_t i = 0; i < n; i++) {
            s[i] = (struct stop_string){word[i], 1 + test_random(&seed) % sizeof(word[i])};
            for (size_t k = 0; k < s[i].len; k++)
                word[i][k] = (char)('a' + test_random(&seed) % letters);
        }
        for (size_t i = 0; i < len; i++)
            cut[i] = test_random(&seed) & 1;
        check_cut(text, len, s, n, round & 1, cut);
        n_matched += oracle(text, len, s, n, false).matched >= 0;
    }
    assert_in_range(n_matched, 500, 3900); /* both outcomes were seen */
}

static void test_stop_across_every_byte_cut_of_utf8(void **state)
{
    (void)state;
    const char *text = "caf\xc3\xa9 \xe6\x9d\xb1\xe4\xba\xac \xf0\x9f\x9a\x80 Observation: end";
    const struct stop_string s[] = {
        {"Observation:", 12}, {"\xe4\xba\xac \xf0\x9f\x9a\x81", 8}, {"\xf0\x9f\x9a\x80 O", 6}};
    size_t len = strlen(text);
    for (size_t a = 0; a < len; a++)
        for (size_t b = a; b < len; b++) {
            bool cut[64] = {0};
            cut[a] = cut[b] = true;
            check_cut(text, len, s, 3, false, cut);
            check_cut(text, len, s, 3, true, cut);
        }
}

static void test_stop_first_complete_wins_then_list_order(void **state)
{
    (void)state;
    const struct stop_string s[] = {{"abcdef", 6}, {"cd", 2}, {"bcd", 3}};
    struct stop *stop = open_stop(s, 3, false);
    struct buf out = {0};
    assert_true(stop_push(stop, "xabcdef", 7, &out));
    assert_int_equal(stop_matched(stop), 1);
    assert_string_equal(out.data, "xab");
    assert_true(stop_push(stop, "more", 4, &out)); /* dropped */
    assert_string_equal(out.data, "xab");
    buf_free(&out);
    stop_close(stop);
}

/* A mismatch after six letters falls back to two of them, not to one. */
static void test_stop_falls_back_to_the_longest_border(void **state)
{
    (void)state;
    const struct stop_string s = {"aabaaac", 7};
    const bool cut[11] = {0};
    check_cut("aabaaabaaac", 11, &s, 1, false, cut);
}

static void test_stop_refuses_unusable_lists(void **state)
{
    (void)state;
    static char big[STOP_BYTES_MAX + 1];
    static struct stop_string many[STOP_COUNT_MAX + 1];
    memset(big, 'a', sizeof(big));
    for (size_t i = 0; i < STOP_COUNT_MAX + 1; i++)
        many[i] = (struct stop_string){"x", 1};
    const struct stop_string empty = {"", 0}, broken = {"a\xc3", 2}, huge = {big, sizeof(big)};
    struct stop *stop;
    struct nyb_err err;
    assert_int_equal(stop_open(&stop, &empty, 1, false, &err), NYB_E_ARG);
    assert_int_equal(stop_open(&stop, &broken, 1, false, &err), NYB_E_ARG);
    assert_int_equal(stop_open(&stop, &huge, 1, false, &err), NYB_E_ARG);
    assert_int_equal(stop_open(&stop, many, STOP_COUNT_MAX + 1, false, &err), NYB_E_ARG);
    assert_null(stop);
    assert_int_equal(stop_open(&stop, many, STOP_COUNT_MAX, false, &err), NYB_OK);
    stop_close(stop);
}

static void test_stop_without_strings_passes_everything(void **state)
{
    (void)state;
    struct stop *stop = open_stop(NULL, 0, false);
    struct buf out = {0};
    assert_false(stop_push(stop, "a\0b", 3, &out));
    assert_int_equal(out.len, 3);
    stop_finish(stop, &out);
    assert_int_equal(out.len, 3);
    buf_free(&out);
    stop_close(stop);
}

/* The worst case for a naive search: a long border at every byte. */
static void test_stop_is_linear_in_hostile_text(void **state)
{
    (void)state;
    enum { NEEDLE = 8000, TEXT = 4000000 };
    char *needle = malloc(NEEDLE), *text = malloc(TEXT);
    assert_non_null(needle);
    assert_non_null(text);
    memset(needle, 'a', NEEDLE);
    needle[NEEDLE - 1] = 'b';
    memset(text, 'a', TEXT);
    const struct stop_string s = {needle, NEEDLE};
    struct stop *stop = open_stop(&s, 1, false);
    struct buf out = {0};
    assert_false(
        stop_push(stop, text, TEXT, &out)); /* naive: 3.2e10 comparisons, beyond the test's time limit */
    assert_int_equal(stop_held(stop), NEEDLE - 1);
    stop_finish(stop, &out);
    assert_int_equal(out.len, TEXT);
    assert_memory_equal(out.data, text, TEXT);
    buf_free(&out);
    stop_close(stop);
    free(needle);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_agrees_with_brute_force_for_random_cuts),
        cmocka_unit_test(test_stop_across_every_byte_cut_of_utf8),
        cmocka_unit_test(test_stop_first_complete_wins_then_list_order),
        cmocka_unit_test(test_stop_falls_back_to_the_longest_border),
        cmocka_unit_test(test_stop_refuses_unusable_lists),
        cmocka_unit_test(test_stop_without_strings_passes_everything),
        cmocka_unit_test(test_stop_is_linear_in_hostile_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
