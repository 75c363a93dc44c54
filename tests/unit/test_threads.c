/* Choosing a number of threads, and remembering it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

#include "model/threads.h"

static void test_threads_all_unless_fewer_are_clearly_faster(void **state)
{
    (void)state;
    const struct threads_speed even[] = {{1, 30, 10}, {2, 31, 20}};
    const struct threads_speed saturated[] = {{2, 102, 50}, {4, 100, 98}, {8, 97, 100}};
    const struct threads_speed shared[] = {{4, 100, 60}, {8, 150, 130}, {16, 90, 100}};
    assert_int_equal(threads_best(even, 2), 2);
    assert_int_equal(threads_best(saturated, 3), 8); /* a few percent are noise */
    assert_int_equal(threads_best(shared, 3), 8);
    assert_int_equal(threads_best(even, 1), 1);
}

static void test_threads_remember_one_line_a_machine(void **state)
{
    (void)state;
    char root[] = "/tmp/nybble-threads-XXXXXX", path[64], command[96];
    assert_non_null(mkdtemp(root));
    snprintf(path, sizeof(path), "%s/a/b/threads", root);
    assert_int_equal(threads_recall(path, "one"), 0);
    threads_remember(path, "one", 3);
    threads_remember(path, "two", 5);
    assert_int_equal(threads_recall(path, "one"), 3);
    assert_int_equal(threads_recall(path, "two"), 5);
    assert_int_equal(threads_recall(path, "tw"), 0);
    assert_int_equal(threads_recall(path, "two or more"), 0);
    threads_remember(path, "one", 4);
    assert_int_equal(threads_recall(path, "one"), 4);
    assert_int_equal(threads_recall(path, "two"), 5);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 2 * (int)strlen("4 one\n"));

    FILE *f = fopen(path, "w"); /* not ours, or broken */
    assert_non_null(f);
    fputs("x one\n-7 two\n99999999999999999999 three\n\n\xff\xfe 4 four", f);
    fclose(f);
    assert_int_equal(threads_recall(path, "one"), 0);
    assert_int_equal(threads_recall(path, "two"), 0);
    assert_int_equal(threads_recall(path, "three"), 0);
    threads_remember(path, "one", 2);
    assert_int_equal(threads_recall(path, "one"), 2);
    threads_remember("/proc/nybble/threads", "one", 2); /* cannot be written: nothing happens */
    snprintf(command, sizeof(command), "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

static void test_threads_choose_uses_what_it_remembers(void **state)
{
    (void)state;
    char root[] = "/tmp/nybble-choose-XXXXXX", path[64], command[96];
    assert_non_null(mkdtemp(root));
    setenv("XDG_CACHE_HOME", root, 1);
    snprintf(path, sizeof(path), "%s/nybble/threads", root);
    struct pool *pool;
    assert_int_equal(pool_open(&pool, 3, NULL), NYB_OK);
    size_t bytes = 4u << 20;
    uint8_t *data = calloc(bytes, 1);
    int first = threads_choose(pool, data, bytes);
    assert_in_range(first, 1, 3);
    assert_int_equal(pool_size(pool), 3);

    char line[512] = "";
    FILE *f = fopen(path, "r");
    if (f) { /* the machine was quiet enough */
        assert_non_null(fgets(line, sizeof(line), f));
        fclose(f);
        assert_int_equal(atoi(line), first);
        threads_remember(path, strtok(strchr(line, ' ') + 1, "\n"), 2);
        assert_int_equal(threads_choose(pool, data, bytes), 2);
    }
    assert_in_range(threads_choose(pool, data, 100), 1, 3); /* less than a piece; may be remembered as well */
    free(data);
    pool_close(pool);
    snprintf(command, sizeof(command), "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_all_unless_fewer_are_clearly_faster),
        cmocka_unit_test(test_threads_remember_one_line_a_machine),
        cmocka_unit_test(test_threads_choose_uses_what_it_remembers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
