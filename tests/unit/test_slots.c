/* Slots: which matrices the kernels are told to find in the last cache. */
#include "test.h"

#include "model/slots.h"

static void test_matrices_are_near_where_all_slots_leave_a_quarter_of_the_cache(void **state)
{
    (void)state;
    struct slots s;
    struct weight a = {.type = WEIGHT_BF16}, b = {.type = WEIGHT_NVFP4};
    float *vector = NULL;
    slots_init(&s);
    slots_add_matrix(&s, &a, 64, 128, "a");
    slots_add_vector(&s, &vector, 128, 1, "v");
    slots_add_matrix(&s, &b, 32, 64, "b");
    size_t bytes = slots_bytes(&s), enough = (bytes + 2) / 3 * 4;
    assert_int_equal(bytes, weight_data_bytes(WEIGHT_BF16, 64, 128) + 128 * sizeof(float) +
                                weight_data_bytes(WEIGHT_NVFP4, 32, 64));
    slots_mark_near(&s, enough);
    assert_true(a.near && b.near);
    slots_mark_near(&s, enough - 4); /* nor does one that fits alone help */
    assert_false(a.near || b.near);
    slots_mark_near(&s, enough);
    slots_mark_near(&s, 0); /* no cache is known */
    assert_false(a.near || b.near);
    slots_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrices_are_near_where_all_slots_leave_a_quarter_of_the_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
