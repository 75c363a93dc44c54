/* Rotary tables against frequencies worked out from transformers' formulas in double precision. */
#include "model/rope.h"
#include "test.h"

#include <math.h>

static void check(const struct rope_config *c, const double *frequency, double magnitude)
{
    struct nyb_err err;
    struct rope r;
    assert_int_equal(rope_open(&r, c, 700, &err), NYB_OK);
    assert_int_equal(r.half, c->rotary_dim / 2);
    rope_extend(&r, 0);
    assert_true(r.filled >= 1 && r.filled < 700);
    rope_extend(&r, 699);
    assert_int_equal(r.filled, 700);
    rope_extend(&r, 3); /* what is there stays */
    assert_int_equal(r.filled, 700);
    for (int i = 0; i < r.half; i++) {
        if (fabs((double)r.frequency[i] - frequency[i]) > 1e-6 * frequency[i])
            fail_msg("frequency %d is %g, expected %g", i, (double)r.frequency[i], frequency[i]);
        for (int pos = 0; pos < 700; pos += 233) {
            size_t at = (size_t)pos * (size_t)r.half + (size_t)i;
            double angle = pos * frequency[i]; /* the table's angle is rounded to fp32: off by pos * 2^-24 */
            assert_true(fabs((double)r.cos[at] - magnitude * cos(angle)) < 1e-4);
            assert_true(fabs((double)r.sin[at] - magnitude * sin(angle)) < 1e-4);
        }
    }
    rope_close(&r);
}

static void test_rope_plain_and_linear(void **state)
{
    (void)state;
    struct rope_config c = {.theta = 10000, .rotary_dim = 8};
    check(&c, (const double[]){1, 0.1, 0.01, 0.001}, 1);
    c.scaling = ROPE_LINEAR;
    c.factor = 2.5;
    check(&c, (const double[]){0.4, 0.04, 0.004, 0.0004}, 1);
}

/* Four frequencies are kept, one is blended, three are divided. */
static void test_rope_llama3(void **state)
{
    (void)state;
    const struct rope_config c = {.theta = 500000,
                                  .rotary_dim = 16,
                                  .scaling = ROPE_LLAMA3,
                                  .factor = 8,
                                  .low_freq_factor = 1,
                                  .high_freq_factor = 4,
                                  .original_max_position = 8192};
    check(&c,
          (const double[]){1, 0.193922745, 0.0376060309, 0.00729266474, 0.000524846161, 3.4281022e-05,
                           6.64786987e-06, 1.28917317e-06},
          1);
}

static void test_rope_yarn(void **state)
{
    (void)state;
    struct rope_config c = {.theta = 10000,
                            .rotary_dim = 16,
                            .scaling = ROPE_YARN,
                            .factor = 4,
                            .beta_fast = 32,
                            .beta_slow = 1,
                            .truncate = true,
                            .original_max_position = 2048};
    check(&c,
          (const double[]){1, 0.316227766, 0.1, 0.025693506, 0.00625, 0.00138349648, 0.00025, 7.90569415e-05},
          1.138629436111989);
    c.truncate = false;
    c.attention_factor = 1.25;
    check(&c,
          (const double[]){1, 0.316227766, 0.1, 0.0238701923, 0.00505697152, 0.000811290382, 0.00025,
                           7.90569415e-05},
          1.25);
    c.attention_factor = 0;
    c.mscale = c.mscale_all_dim = 1; /* DeepSeek's way to say 1 */
    check(&c,
          (const double[]){1, 0.316227766, 0.1, 0.0238701923, 0.00505697152, 0.000811290382, 0.00025,
                           7.90569415e-05},
          1);
}

/* A long original context: the last frequency to blend would lie behind the last there is. */
static void test_rope_yarn_blends_within_the_frequencies(void **state)
{
    (void)state;
    const struct rope_config c = {.theta = 100,
                                  .rotary_dim = 16,
                                  .scaling = ROPE_YARN,
                                  .factor = 4,
                                  .beta_fast = 10000,
                                  .beta_slow = 1,
                                  .truncate = true,
                                  .original_max_position = 131072};
    check(&c,
          (const double[]){1, 0.562341325, 0.299286993, 0.158774947, 0.0839285714, 0.0441839613, 0.02315239,
                           0.012066896},
          1.138629436111989);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope_plain_and_linear),
        cmocka_unit_test(test_rope_llama3),
        cmocka_unit_test(test_rope_yarn),
        cmocka_unit_test(test_rope_yarn_blends_within_the_frequencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
