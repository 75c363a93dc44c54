/* Exchanging the pages of two slabs: by page tables, by copying, in runs, at odd ends. */
#include "test.h"

#include <unistd.h>

#include "base/mem.h"
#include "model/pages.h"

#define N_CHUNK 5

static void must(enum nyb_code code)
{
    assert_int_equal(code, NYB_OK);
}

static uint8_t value(int slab, size_t at)
{
    return (uint8_t)(at * 31 + at / PAGES_HUGE * 7 + (size_t)slab * 101);
}

static void fill(struct pages *p, int slab)
{
    for (size_t i = 0; i < p->bytes; i++)
        p->data[i] = value(slab, i);
}

/* Bytes [begin, end) are the other slab's. */
static void check(const struct pages *p, int slab, size_t begin, size_t end)
{
    for (size_t i = 0; i < p->bytes; i++)
        if (p->data[i] != value(i >= begin && i < end ? !slab : slab, i))
            fail_msg("byte %zu of slab %d is %u", i, slab, p->data[i]);
}

/* Pages of the address space in use. */
static long address_space(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld", &pages), 1);
    fclose(f);
    return pages;
}

static void test_pages_are_aligned_and_zero(void **state)
{
    (void)state;
    struct pages p;
    must(pages_reserve(&p, 12345, NULL));
    assert_int_equal((uintptr_t)p.data % PAGES_HUGE, 0);
    for (size_t i = 0; i < 12345; i++)
        assert_int_equal(p.data[i], 0);
    pages_free(&p);
    assert_null(p.data);
    assert_int_equal(pages_reserve(&p, SIZE_MAX - 5, NULL), NYB_E_MEMORY);
    pages_free(&p);
    struct nyb_err err; /* it can be counted, but no machine has it */
    assert_int_equal(pages_reserve(&p, (size_t)1 << 60, &err), NYB_E_MEMORY);
    assert_non_null(strstr(err.message, "no memory for 1152921504.61 GB of weights"));
    pages_free(&p);
}

static void test_pages_exchange_runs(void **state)
{
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (N_CHUNK - 1) * PAGES_HUGE + 3 * page;
    struct pages a, b;
    struct pool *pool;
    must(pool_open(&pool, 2, NULL));
    must(pages_reserve(&a, bytes, NULL));
    must(pages_reserve(&b, bytes, NULL));
    fill(&a, 0);
    fill(&b, 1);
    const uint8_t *at = a.data;
    long before = address_space();
    for (int first = 0; first < N_CHUNK; first++)
        for (int last = first; last < N_CHUNK; last++) {
            size_t begin = (size_t)first * PAGES_HUGE;
            size_t end = last + 1 < N_CHUNK ? (size_t)(last + 1) * PAGES_HUGE : bytes;
            pages_exchange(a.data + begin, b.data + begin, end - begin, pool);
            check(&a, 0, begin, end);
            check(&b, 1, begin, end);
            pages_exchange(a.data + begin, b.data + begin, end - begin, pool); /* twice is nothing */
        }
    check(&a, 0, 0, 0);
    check(&b, 1, 0, 0);
    assert_ptr_equal(at, a.data);
    long chunk = (long)(PAGES_HUGE / page), both = address_space();
    assert_true(both - before < chunk); /* what was aside is gone */
    pages_free(&a);
    pages_free(&b);
    assert_true(both - address_space() > 2 * (N_CHUNK - 1) * chunk);
    pool_close(pool);
}

/* A vector of a small model ends anywhere; so may what is copied. */
static void test_pages_exchange_by_copy(void **state)
{
    (void)state;
    struct pages a, b;
    struct pool *pool;
    size_t bytes = PAGES_HUGE + 4321;
    must(pool_open(&pool, 2, NULL));
    must(pages_reserve(&a, bytes, NULL));
    must(pages_reserve(&b, bytes, NULL));
    fill(&a, 0);
    fill(&b, 1);
    pages_exchange_by_copy(a.data + 77, b.data + 77, bytes - 100, pool);
    check(&a, 0, 77, bytes - 23);
    check(&b, 1, 77, bytes - 23);
    pages_free(&a);
    pages_free(&b);
    pool_close(pool);
}

/* Where page tables cannot move the bytes, at once or half way, they are exchanged all the same. */
static void test_pages_exchange_where_pages_do_not_fit(void **state)
{
    static const struct {
        size_t a, b;
    } off[] = {{77, 0}, {0, 77}, {64, 64}};
    (void)state;
    struct pool *pool;
    size_t bytes = PAGES_HUGE;
    must(pool_open(&pool, 2, NULL));
    for (size_t i = 0; i < COUNT_OF(off); i++) {
        struct pages a, b;
        must(pages_reserve(&a, 2 * bytes, NULL));
        must(pages_reserve(&b, 2 * bytes, NULL));
        fill(&a, 0);
        fill(&b, 1);
        pages_exchange(a.data + off[i].a, b.data + off[i].b, bytes, pool);
        for (size_t at = 0; at < 2 * bytes; at++) {
            bool of_a = at >= off[i].a && at < off[i].a + bytes,
                 of_b = at >= off[i].b && at < off[i].b + bytes;
            assert_int_equal(a.data[at], of_a ? value(1, at - off[i].a + off[i].b) : value(0, at));
            assert_int_equal(b.data[at], of_b ? value(0, at - off[i].b + off[i].a) : value(1, at));
        }
        pages_free(&a);
        pages_free(&b);
    }
    pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_are_aligned_and_zero),
        cmocka_unit_test(test_pages_exchange_runs),
        cmocka_unit_test(test_pages_exchange_by_copy),
        cmocka_unit_test(test_pages_exchange_where_pages_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
