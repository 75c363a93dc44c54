#include "base/json_split.h"

#include <stdlib.h>
#include <string.h>

#include "base/crew.h"
#include "base/mem.h"
#include "test.h"

static json_t *whole(const char *text, size_t len)
{
    json_t *root = NULL;
    struct nyb_err unused;
    return json_parse(&root, text, len, "", &unused) == NYB_OK ? root : NULL;
}

/* The members of all pieces in one object, or NULL where one cannot be read or a key comes twice. */
static json_t *joined(const char *text, size_t len, size_t bytes)
{
    struct json_split s;
    if (!json_split(&s, text, len, bytes))
        return NULL;
    json_t *all = json_object();
    for (int i = 0; i < s.n && all; i++) {
        json_t *piece = json_split_read(&s, i), *value;
        const char *key;
        bool good = piece;
        json_object_foreach(piece, key, value)
        {
            good = good && !json_object_get(all, key);
            json_object_set(all, key, value);
        }
        json_decref(piece);
        if (!good) {
            json_decref(all);
            all = NULL;
        }
    }
    json_split_free(&s);
    return all;
}

/* Together the pieces are what the whole is, or neither is anything. */
static void expect_same(const char *text, size_t len, size_t bytes)
{
    json_t *a = whole(text, len), *b = joined(text, len, bytes);
    bool object = json_is_object(a) && json_object_size(a) > 0;
    if (object != (b != NULL) || (b && !json_equal(a, b)))
        fail_msg("in pieces of %zu bytes: %.*s", bytes, (int)len, text);
    json_decref(a);
    json_decref(b);
}

static const char *const text[] = {
    "{\"a\":1,\"b\":{\"c\":[1,2,{}],\"d\":\"}\"},\"e\":\"\\\"],\",\"f\":[]}",
    " {\n\"a\" : 1 , \"b\" : 2 , \"c\" : \"\\\\\" , \"d\" : null }\r\n\t",
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,2]},\"b\":{\"shape\":[]},\"__metadata__\":{\"format\":\"pt\"}}",
    "{\"a\":1,\"a\":2}",
    "{\"a\":1,\"b\":1,\"\\u0061\":2}",
    "{}",
    "{ }",
    "[]",
    "",
    "{",
    "{\"a\":1",
    "{\"a\":1,",
    "{\"a\":1,}",
    "{,\"a\":1}",
    "{\"a\":1,,\"b\":2}",
    "{\"a\":1]",
    "{\"a\":[1},\"b\":2]}",
    "{\"a\":{1],\"b\":2}",
    "{\"a\":1}}",
    "{\"a\":1}x",
    "x{\"a\":1}",
    "{\"a\":1}{\"b\":1}",
    "{\"a\":1},\"b\":{\"c\":1}",
    "{\"a",
    "{\"a\\",
    "{\"a\":\"\\u00e9\",\"\xc3\xa9\":1}",
    "{\"a\":\"\xff\"}",
};

static void test_json_split_reads_what_the_whole_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(text); i++)
        for (size_t bytes = 1; bytes < 40; bytes++)
            expect_same(text[i], strlen(text[i]), bytes);
}

/* One byte of each text changed, dropped or put twice. */
static void test_json_split_of_broken_texts(void **state)
{
    (void)state;
    static const char other[] = "{}[],:\"\\ 1a\n";
    char changed[300];
    for (size_t i = 0; i < COUNT_OF(text); i++) {
        size_t len = strlen(text[i]);
        for (size_t at = 0; at < len; at++) {
            for (size_t o = 0; o + 1 < sizeof(other); o++) {
                memcpy(changed, text[i], len);
                changed[at] = other[o];
                expect_same(changed, len, 1 + at % 7);
            }
            memcpy(changed, text[i], at);
            memcpy(changed + at, text[i] + at + 1, len - at - 1);
            expect_same(changed, len - 1, 1 + at % 7);
            memcpy(changed, text[i], at + 1);
            memcpy(changed + at + 1, text[i] + at, len - at);
            expect_same(changed, len + 1, 1 + at % 7);
        }
    }
}

static void expect_member(const char *object, const char *value)
{
    size_t begin = 0, end = 0;
    bool found = json_find_member(object, strlen(object), "key", &begin, &end);
    if (found != (value != NULL) ||
        (value && (end - begin != strlen(value) || memcmp(object + begin, value, end - begin) != 0)))
        fail_msg("%s: %s, %zu to %zu", object, found ? "found" : "not found", begin, end);
}

static void test_json_finds_a_member(void **state)
{
    (void)state;
    expect_member("{\"key\":{\"a\":1}}", "{\"a\":1}");
    expect_member(" { \"a\" : {\"key\":1} , \"key\" : [1,2], \"b\":2}", "[1,2]");
    expect_member("{\"keys\":1,\"key\": \"key\",\"ke\":2}", "\"key\"");
    expect_member("{\"a\":{\"key\":1}}", NULL);
    expect_member("{\"key\":1,\"key\":2}", NULL);
    expect_member("{\"key\" 1}", NULL);
    expect_member("{\"key\"", NULL);
    expect_member("{\"key", NULL);
    expect_member("{}", NULL);
    expect_member("", NULL);
    expect_member("[\"key\",1]", NULL);
}

static void count(void *arg, int item)
{
    int *times = arg;
    times[item]++;
}

static void test_crew_does_each_item_once(void **state)
{
    (void)state;
    for (int n_thread = 0; n_thread <= 2 * CREW_MOST; n_thread += 5)
        for (int n_item = 0; n_item < 100; n_item += 9) {
            int times[100] = {0};
            crew_run(n_item, n_thread, count, times);
            for (int i = 0; i < 100; i++)
                assert_int_equal(times[i], i < n_item);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_split_reads_what_the_whole_is),
        cmocka_unit_test(test_json_split_of_broken_texts),
        cmocka_unit_test(test_json_finds_a_member),
        cmocka_unit_test(test_crew_does_each_item_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
