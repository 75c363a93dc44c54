/* JSON a byte at a time: what it takes for valid is what jansson does, over edits of a few texts. */
#include "test.h"

#include <jansson.h>

#include "text/parse_json.h"

static const char *const texts[] = {
    "{\"a\": [1, -2.5e+3, {\"b\\n\\u00aF\": null}], \"\": true, \"c\": {\"x\": [], \"y\": {}}}",
    "[[], {}, [{}, [0, -0, 10.01, 1E5, 2e-7]], \"\\\"\\\\\\/\\b\\f\\r\\t\", false]",
    "{\"k\":{\"k\":[{\"k\":\"v\"},[[1]],\"[\"]}}",
    " -12.75 ",
    "\"text, with: {marks]\"",
    "null",
};
/* Without d: no half of a surrogate pair comes about, whose mate jansson wants and the parser does not. */
static const char letters[] = "{}[]\",:0123456789.eE+-truefalsn \n\\/bBgG'x\x01";

static char letter(uint64_t *seed)
{
    return letters[test_random(seed) % (sizeof(letters) - 1)];
}

/* One to three bytes changed, dropped, put in or swapped. */
static size_t edit(char *text, size_t len, uint64_t *seed)
{
    for (int n = 1 + (int)(test_random(seed) % 3); n > 0 && len > 1; n--) {
        size_t at = test_random(seed) % (len - 1);
        char was = text[at];
        switch (test_random(seed) % 4) {
        case 0:
            text[at] = letter(seed);
            break;
        case 1:
            memmove(text + at, text + at + 1, --len - at);
            break;
        case 2:
            memmove(text + at + 1, text + at, len++ - at);
            text[at] = letter(seed);
            break;
        default:
            text[at] = text[at + 1];
            text[at + 1] = was;
        }
    }
    return len;
}

/* False: jansson cannot say. */
static bool judge(const char *text, size_t len, bool *valid)
{
    json_error_t e;
    json_t *v = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    *valid = v != NULL;
    json_decref(v);
    return *valid || json_error_code(&e) != json_error_numeric_overflow;
}

static void test_what_is_valid_is_what_jansson_takes(void **state)
{
    (void)state;
    uint64_t seed = 1;
    int n_valid = 0, n_edit = 60000;
    for (int i = 0; i < n_edit; i++) {
        const char *from = texts[(size_t)i % (sizeof(texts) / sizeof(texts[0]))];
        char text[128];
        size_t len = strlen(from);
        bool valid;
        memcpy(text, from, len);
        if (i >= 6)
            len = edit(text, len, &seed);
        if (!judge(text, len, &valid))
            continue;
        if (parse_json_valid(text, len) != valid)
            fail_msg("jansson says %d: %.*s", valid, (int)len, text);
        n_valid += valid;
        if (!valid)
            continue;
        size_t begin = parse_json_skip_space(text, len, 0), end = parse_json_skip_value(text, len, begin);
        assert_true(begin < end && !strchr(" \n", text[begin]) && !strchr(" \n", text[end - 1]));
        assert_int_equal(parse_json_skip_space(text, len, end), len);
    }
    assert_in_range(n_valid, n_edit / 20, n_edit / 2);
}

static void test_nesting(void **state)
{
    (void)state;
    char text[2 * (PARSE_JSON_DEPTH + 1)];
    for (size_t n = PARSE_JSON_DEPTH; n <= PARSE_JSON_DEPTH + 1; n++) {
        memset(text, '[', n);
        memset(text + n, ']', n);
        assert_int_equal(parse_json_valid(text, 2 * n), n == PARSE_JSON_DEPTH);
    }
}

/* Each container is closed by its own bracket, however deep. */
static void test_brackets_that_belong_together(void **state)
{
    (void)state;
    uint64_t seed = 3;
    for (int turn = 0; turn < 200; turn++) {
        char text[6 * 64], closing[64];
        size_t len = 0, n = 1 + test_random(&seed) % 63;
        for (size_t i = 0; i < n; i++) {
            bool object = test_random(&seed) % 2;
            len += (size_t)snprintf(text + len, sizeof(text) - len, object ? "{\"\":" : "[");
            closing[n - 1 - i] = object ? '}' : ']';
        }
        text[len++] = '0';
        memcpy(text + len, closing, n);
        assert_true(parse_json_valid(text, len + n));
        size_t at = len + test_random(&seed) % n;
        text[at] = text[at] == ']' ? '}' : ']';
        assert_false(parse_json_valid(text, len + n));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_valid_is_what_jansson_takes),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_brackets_that_belong_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
