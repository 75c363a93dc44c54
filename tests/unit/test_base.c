#include "test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/pool.h"

static void test_err_format_names_place_and_offset(void **state)
{
    (void)state;
    struct nyb_err err;
    char text[256];
    assert_int_equal(err_at(&err, NYB_E_FORMAT, "a.safetensors", 8, "header claims %d bytes", 7),
                     NYB_E_FORMAT);
    assert_string_equal(err_format(&err, text, sizeof(text)),
                        "a.safetensors: header claims 7 bytes (at byte 8)");
    assert_int_equal(err_set(NULL, NYB_E_IO, "ignored"), NYB_E_IO);
    assert_int_equal(err_http_status(NYB_E_BUSY), 429);
    assert_string_equal(err_name(NYB_E_BUSY), "E_BUSY");
}

static void test_err_shows_no_control_character(void **state)
{
    (void)state;
    struct nyb_err err;
    char text[256];
    assert_int_equal(
        err_at(&err, NYB_E_FORMAT, "a\nb", -1, "tensor '%s'", "x\x1b[2J\r\x7f\xc2\x9b\xc3\xa9\xc2"),
        NYB_E_FORMAT);
    assert_string_equal(err_format(&err, text, sizeof(text)), "a?b: tensor 'x?[2J????\xc3\xa9\xc2'");
}

static void test_arena_reset_keeps_one_chunk_of_everything(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 4096);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100; i++) {
            char *p = arena_alloc(&a, 1000, 1);
            assert_int_equal((uintptr_t)p % 64, 0);
            memset(p, i, 1000);
        }
        assert_true(a.used >= 100000);
        arena_reset(&a);
        assert_int_equal(a.used, 0);
    }
    assert_string_equal(arena_strdup(&a, "x"), "x");
    arena_free(&a);
}

static void test_buf_utf8_and_printf(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_add_utf8(&b, 'a');
    buf_add_utf8(&b, 0xe9);
    buf_add_utf8(&b, 0x20ac);
    buf_add_utf8(&b, 0x1f600);
    buf_add_utf8(&b, 0xd800);
    buf_printf(&b, "%d", 42);
    assert_string_equal(b.data, "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xef\xbf\xbd"
                                "42");
    char *s = buf_steal(&b);
    assert_null(b.data);
    free(s);
}

static void check_double(double x, const char *want)
{
    struct buf b = {0};
    json_add_double(&b, x);
    assert_string_equal(b.data, want);
    buf_free(&b);
}

static void test_json_doubles_print_as_python_does(void **state)
{
    (void)state;
    check_double(0.1, "0.1");
    check_double(1.0, "1.0");
    check_double(-0.0, "-0.0");
    check_double(1e16, "1e+16");
    check_double(1e15, "1000000000000000.0");
    check_double(0.0001, "0.0001");
    check_double(0.00001, "1e-05");
    check_double(1e-7, "1e-07");
    check_double(123456.789, "123456.789");
    check_double(5e-324, "5e-324");
    check_double(1.7976931348623157e308, "1.7976931348623157e+308");
    check_double(9007199254740993.0, "9007199254740992.0");
}

static void test_json_strings_are_escaped_and_made_valid(void **state)
{
    (void)state;
    struct buf b = {0};
    json_add_string(&b, "a\"\\\n\x01\xff\xe2\x82\xac\xed\xa0\x80", 12);
    assert_string_equal(
        b.data, "\"a\\\"\\\\\\n\\u0001\xef\xbf\xbd\xe2\x82\xac\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
    buf_free(&b);
}

static void test_json_duplicate_keys_are_refused(void **state)
{
    (void)state;
    json_t *root;
    struct nyb_err err;
    assert_int_equal(json_parse(&root, "{\"a\":1,\"a\":2}", 13, "x.json", &err), NYB_E_FORMAT);
    assert_string_equal(err.where, "x.json");
    assert_non_null(strstr(err.message, "line 1"));
}

static void test_file_read_names_a_missing_file(void **state)
{
    (void)state;
    char *data;
    size_t len;
    struct nyb_err err;
    assert_int_equal(file_read_all("/nonexistent/x", 100, &data, &len, &err), NYB_E_NOT_FOUND);
    assert_string_equal(err.where, "/nonexistent/x");
    assert_int_equal(file_read_all("/proc", 100, &data, &len, &err), NYB_E_IO);
}

static void count_item(void *arg, int item, int worker)
{
    atomic_int *count = arg;
    assert_true(worker >= 0);
    atomic_fetch_add(&count[item], 1);
}

static void add_range(void *arg, int begin, int end, int worker)
{
    (void)worker;
    atomic_int *count = arg;
    for (int i = begin; i < end; i++)
        atomic_fetch_add(&count[i], 1);
}

static void test_pool_runs_every_item_once(void **state)
{
    (void)state;
    static atomic_int count[1000];
    for (int n_thread = 1; n_thread <= 5; n_thread++) {
        struct pool *p;
        assert_int_equal(pool_open(&p, n_thread, NULL), NYB_OK);
        assert_int_equal(pool_size(p), n_thread);
        for (int round = 0; round < 200; round++) {
            int n = 1 + (round * 37) % 1000;
            memset(count, 0, sizeof(count));
            if (round & 1)
                pool_run(p, n, count_item, count);
            else
                pool_range(p, n, 3, add_range, count);
            for (int i = 0; i < 1000; i++)
                assert_int_equal(atomic_load(&count[i]), i < n);
        }
        pool_run(p, 0, count_item, count);
        pool_close(p);
    }
    struct pool *none = NULL;
    struct nyb_err err;
    assert_int_equal(pool_open(&none, 100000, &err), NYB_E_RANGE);
}

static void test_cpu_levels_have_names(void **state)
{
    (void)state;
    enum cpu_level level;
    for (int i = 0; i < CPU_LEVEL_COUNT; i++) {
        assert_true(cpu_level_parse(cpu_level_name((enum cpu_level)i), &level));
        assert_int_equal(level, i);
    }
    assert_false(cpu_level_parse("avx1024", &level));
    assert_true(cpu_level() <= cpu_detect());
    assert_true(cpu_count() >= 1);
}

static void test_sizes_that_overflow_are_seen(void **state)
{
    (void)state;
    size_t out;
    assert_false(size_mul(SIZE_MAX / 2, 3, &out));
    assert_false(size_add(SIZE_MAX, 1, &out));
    assert_null(mem_try_alloc(SIZE_MAX / 2, 4));
    assert_null(mem_try_aligned(SIZE_MAX - 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err_format_names_place_and_offset),
        cmocka_unit_test(test_err_shows_no_control_character),
        cmocka_unit_test(test_arena_reset_keeps_one_chunk_of_everything),
        cmocka_unit_test(test_buf_utf8_and_printf),
        cmocka_unit_test(test_json_doubles_print_as_python_does),
        cmocka_unit_test(test_json_strings_are_escaped_and_made_valid),
        cmocka_unit_test(test_json_duplicate_keys_are_refused),
        cmocka_unit_test(test_file_read_names_a_missing_file),
        cmocka_unit_test(test_pool_runs_every_item_once),
        cmocka_unit_test(test_cpu_levels_have_names),
        cmocka_unit_test(test_sizes_that_overflow_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
