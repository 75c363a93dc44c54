/* Parts of parameters that several ranks hold, put together. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/checksum_sum.h"

/* A part of "a" (6 rows of 64) unless told otherwise. */
static struct checksum_part part(int row, int n, int column, int k, uint64_t sum)
{
    return (struct checksum_part){.name = "a",
                                  .type = WEIGHT_BF16,
                                  .row = row,
                                  .n = n,
                                  .column = column,
                                  .k = k,
                                  .n_whole = 6,
                                  .k_whole = 64,
                                  .global_scale = 1,
                                  .sum = {sum, 0}};
}

static enum nyb_code merge(const struct checksum_part *part, int n, struct checksum *out, struct nyb_err *err)
{
    struct checksum_parts parts = {mem_alloc((size_t)n, sizeof(*part)), n};
    memcpy(parts.part, part, (size_t)n * sizeof(*part));
    enum nyb_code code = checksum_merge(out, &parts, err);
    free(parts.part);
    return code;
}

static struct checksum_hash must_merge(const struct checksum_part *part, int n, int n_tensor)
{
    struct checksum c;
    struct nyb_err err;
    assert_int_equal(merge(part, n, &c, &err), NYB_OK);
    assert_int_equal(c.n_tensor, n_tensor);
    struct checksum_hash total = c.total;
    checksum_free(&c);
    return total;
}

static void test_cuts_do_not_matter(void **state)
{
    (void)state;
    const struct checksum_part whole[] = {part(0, 6, 0, 64, 700)};
    const struct checksum_part rows[] = {part(4, 2, 0, 64, 600), part(0, 4, 0, 64, 100)};
    const struct checksum_part columns[] = {part(0, 6, 0, 16, 1), part(0, 6, 16, 0, 0),
                                            part(0, 6, 16, 48, 699)};
    const struct checksum_part copies[] = {part(0, 6, 0, 64, 700), part(0, 0, 0, 64, 0),
                                           part(0, 6, 0, 64, 700)};
    const struct checksum_part both[] = {part(0, 3, 0, 64, 300), part(3, 3, 0, 64, 400),
                                         part(0, 3, 0, 64, 300), part(3, 3, 0, 64, 400)};
    struct checksum_hash expected = must_merge(whole, 1, 1);
#define ASSERT_SAME(row)                                                 \
    do {                                                                 \
        struct checksum_hash h = must_merge(row, (int)COUNT_OF(row), 1); \
        assert_memory_equal(&h, &expected, sizeof(h));                   \
    } while (0)
    ASSERT_SAME(rows);
    ASSERT_SAME(columns);
    ASSERT_SAME(copies);
    ASSERT_SAME(both);
    const struct checksum_part other[] = {part(0, 6, 0, 64, 701)};
    struct checksum_hash h = must_merge(other, 1, 1);
    assert_memory_not_equal(&h, &expected, sizeof(h));
}

/* Sums are of 128 bits. */
static void test_sums_carry(void **state)
{
    (void)state;
    struct checksum_hash h = {UINT64_MAX, 1};
    checksum_add(&h, (struct checksum_hash){2, 3});
    assert_true(h.low == 1 && h.high == 5);
    checksum_add(&h, (struct checksum_hash){0, UINT64_MAX});
    assert_true(h.low == 1 && h.high == 4);
}

static void test_ranks_that_disagree(void **state)
{
    (void)state;
    struct checksum_part scale = part(3, 3, 0, 64, 2), type = scale, shape = scale;
    scale.global_scale = 2;
    type.type = WEIGHT_F16;
    shape.k_whole = 128;
    const struct {
        struct checksum_part part[3];
        int n;
        const char *text;
    } row[] = {
        {{part(0, 6, 0, 64, 1), part(0, 6, 0, 64, 2)}, 2, "same numbers"},
        {{part(0, 3, 0, 64, 1), scale}, 2, "same numbers"},
        {{part(0, 3, 0, 64, 1), type}, 2, "same numbers"},
        {{part(0, 3, 0, 64, 1), shape}, 2, "same numbers"},
        {{part(0, 3, 0, 64, 1)}, 1, "192 elements of it, expected the 384"},
        {{part(0, 3, 0, 64, 1), part(2, 4, 0, 64, 1)}, 2, "448 elements"},
        {{part(0, 0, 0, 64, 0)}, 1, "0 elements"},
    };
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        struct checksum c;
        struct nyb_err err;
        assert_int_equal(merge(row[i].part, row[i].n, &c, &err), NYB_E_INTERNAL);
        assert_string_equal(err.where, "a");
        if (!strstr(err.message, row[i].text))
            fail_msg("row %zu: %s", i, err.message);
        assert_null(c.tensor);
    }
}

/* Sorted by name, whichever rank brings which; experts are on one rank each. */
static void test_tensors_in_order(void **state)
{
    (void)state;
    struct checksum_part b = part(0, 6, 0, 64, 5), vector = part(0, 7, 0, 1, 9);
    b.name = "b";
    vector.name = "a.norm";
    vector.type = PART_VECTOR;
    vector.n_whole = 7;
    vector.k_whole = 1;
    const struct checksum_part list[] = {b, part(3, 3, 0, 64, 1), vector, part(0, 3, 0, 64, 1), vector};
    struct checksum c;
    struct nyb_err err;
    assert_int_equal(merge(list, 5, &c, &err), NYB_OK);
    assert_int_equal(c.n_tensor, 3);
    assert_string_equal(c.tensor[0].name, "a");
    assert_string_equal(c.tensor[1].name, "a.norm");
    assert_string_equal(c.tensor[1].type, "vector");
    assert_string_equal(c.tensor[2].name, "b");
    checksum_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts_do_not_matter),
        cmocka_unit_test(test_sums_carry),
        cmocka_unit_test(test_ranks_that_disagree),
        cmocka_unit_test(test_tensors_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
