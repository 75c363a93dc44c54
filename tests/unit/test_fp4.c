#include "fp4/fp4.h"

#include <math.h>

#include "test.h"

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* The OCP FP8 definition, written out. */
static double e4m3_reference(int byte)
{
    int e = byte >> 3 & 15, m = byte & 7;
    double v = e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10);
    return byte & 0x80 ? -v : v;
}

static void test_fp4_e4m3_values_are_all_256(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++) {
        if ((b & 0x7f) == 0x7f) {
            assert_true(isnan(fp4_e4m3_value[b]));
            continue;
        }
        assert_true((double)fp4_e4m3_value[b] == e4m3_reference(b));
        assert_int_equal(signbit(fp4_e4m3_value[b]) != 0, b >> 7);
        assert_int_equal(fp4_e4m3_from_float(fp4_e4m3_value[b]), b);
    }
    assert_true(fp4_e4m3_value[0x38] == 1 && fp4_e4m3_value[0x7e] == 448 && fp4_e4m3_value[1] == 0x1p-9F);
}

static void test_fp4_e4m3_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (int b = 0; b < 0x7e; b++) {
        float lo = fp4_e4m3_value[b], hi = fp4_e4m3_value[b + 1], tie = (lo + hi) / 2;
        int even = b & 1 ? b + 1 : b;
        assert_int_equal(fp4_e4m3_from_float(tie), even);
        assert_int_equal(fp4_e4m3_from_float(-tie), even | 0x80);
        assert_int_equal(fp4_e4m3_from_float(nextafterf(tie, 0)), b);
        assert_int_equal(fp4_e4m3_from_float(nextafterf(tie, 1000)), b + 1);
    }
}

static void test_fp4_e4m3_saturates_and_keeps_nan(void **state)
{
    (void)state;
    assert_int_equal(fp4_e4m3_from_float(449), 0x7e);
    assert_int_equal(fp4_e4m3_from_float(1e30F), 0x7e);
    assert_int_equal(fp4_e4m3_from_float(INFINITY), 0x7e);
    assert_int_equal(fp4_e4m3_from_float(-INFINITY), 0xfe);
    assert_int_equal(fp4_e4m3_from_float(NAN), 0x7f);
    assert_int_equal(fp4_e4m3_from_float(1e-40F), 0);
    assert_int_equal(fp4_e4m3_from_float(-0.0F), 0x80);
}

static void test_fp4_e2m1_rounds_ties_to_even_code(void **state)
{
    (void)state;
    static const struct {
        float x;
        float expected;
    } tie[] = {{0.25F, 0}, {0.75F, 1}, {1.25F, 1}, {1.75F, 2}, {2.5F, 2}, {3.5F, 4}, {5, 4}};
    for (size_t i = 0; i < sizeof tie / sizeof *tie; i++) {
        float lo = fp4_e2m1_value[i], hi = fp4_e2m1_value[i + 1];
        for (int sign = 0; sign < 2; sign++) {
            float s = sign ? -1 : 1;
            uint8_t bit = sign ? 8 : 0;
            uint8_t code = fp4_e2m1_from_float(s * tie[i].x);
            assert_true(fp4_e2m1_value[code] == s * tie[i].expected);
            assert_int_equal(code & 1, 0);
            assert_int_equal(fp4_e2m1_from_float(s * nextafterf(tie[i].x, 0)), (uint8_t)i | bit);
            assert_int_equal(fp4_e2m1_from_float(s * nextafterf(tie[i].x, 9)), (uint8_t)(i + 1) | bit);
        }
        assert_true(lo + (hi - lo) / 2 == tie[i].x);
    }
    for (uint8_t code = 0; code < 16; code++)
        if (code != 8)
            assert_int_equal(fp4_e2m1_from_float(fp4_e2m1_value[code]), code);
    assert_int_equal(fp4_e2m1_from_float(-0.1F), 8);
    assert_int_equal(fp4_e2m1_from_float(6.5F), 7);
    assert_int_equal(fp4_e2m1_from_float(-1e9F), 15);
    assert_int_equal(fp4_e2m1_from_float(INFINITY), 7);
    assert_int_equal(fp4_e2m1_from_float(NAN), 7);
}

static void test_fp4_products_are_exact_in_bf16(void **state)
{
    (void)state;
    for (int code = 0; code < 16; code++)
        for (int b = 0; b < 256; b++) {
            float v = fp4_e2m1_value[code] * fp4_e4m3_value[b];
            if (!isnan(v))
                assert_true(bf16_to_float(bf16_from_float(v)) == v);
        }
}

/* The worked example of a ModelOpt export: tensor maximum 1.344. */
static void test_fp4_worked_example(void **state)
{
    (void)state;
    static const float src[16] = {0.10F, -0.02F, 0.33F,  0,      -0.48F, 0.05F,  0.21F, -0.15F,
                                  0.40F, 0.07F,  -0.30F, 0.011F, 0.26F,  -0.09F, 0.18F, -0.44F};
    static const uint8_t codes[8] = {0x82, 0x06, 0x1f, 0xc5, 0x26, 0x0e, 0xa5, 0xf4};
    static const float back[16] = {.08F, -0.0F, .32F,  0, -.48F, .04F,  .24F, -.16F,
                                   .32F, .08F,  -.32F, 0, .24F,  -.08F, .16F, -.48F};
    uint8_t c[8], s[1];
    float dst[16];

    float peak = 1.344F, global = fp4_global_scale(&peak, 1);
    assert_true(fabsf(global - 0.0005F) < 1e-9F);
    fp4_quantize_row(c, s, src, global, 16);
    assert_int_equal(s[0], 0x72);
    assert_memory_equal(c, codes, 8);
    fp4_dequantize_row(dst, c, s, global, 16);
    for (int i = 0; i < 16; i++)
        assert_true(fabsf(dst[i] - back[i]) < 1e-7F);
}

static void test_fp4_quantize_handles_zero_and_tiny_blocks(void **state)
{
    (void)state;
    float src[48] = {0};
    uint8_t c[24], s[3];

    src[16] = 1.344e-6F; /* a millionth of the tensor's maximum: below the least block scale */
    src[32] = 1e9F;
    fp4_quantize_row(c, s, src, 0.0005F, 48);
    assert_int_equal(s[0], 0x38);
    assert_int_equal(s[1], 0x01);
    assert_int_equal(s[2], 0x7e);
    for (int i = 0; i < 8; i++)
        assert_int_equal(c[i], 0);
    assert_int_equal(c[16] & 15, 7);
    assert_true(fp4_global_scale(src, 16) == 1.0F);
}

static void test_fp4_dequantize_matches_double(void **state)
{
    (void)state;
    uint64_t seed = 7;
    uint8_t codes[64], scales[8];
    float dst[128], global = 0.00123F;

    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 64; i++)
            codes[i] = (uint8_t)test_random(&seed);
        for (int i = 0; i < 8; i++)
            scales[i] = (uint8_t)(test_random(&seed) % 0x7f | (test_random(&seed) & 0x80));
        fp4_dequantize_row(dst, codes, scales, global, 128);
        for (int i = 0; i < 128; i++) {
            int code = codes[i / 2] >> (i & 1 ? 4 : 0) & 15;
            double exact = (double)fp4_e2m1_value[code] * e4m3_reference(scales[i / 16]) * (double)global;
            assert_true(dst[i] == (float)exact);
        }
    }
}

static void test_fp4_round_trip_matches_double(void **state)
{
    (void)state;
    uint64_t seed = 11;
    float src[53], dst[53];
    const float input_scale = 0.004F;

    for (int round = 0; round < 300; round++) {
        float spread = ldexpf(1, (int)(test_random(&seed) % 24) - 14);
        for (int i = 0; i < 53; i++)
            src[i] = test_random_float(&seed) * spread;
        fp4_round_trip_row(dst, src, input_scale, 53);
        for (int start = 0; start < 53; start += 16) {
            int len = 53 - start < 16 ? 53 - start : 16;
            double amax = 0;
            for (int i = 0; i < len; i++)
                amax = fmax(amax, fabs((double)src[start + i]));
            double raw = fmin(amax / (6 * (double)input_scale), 448);
            double step = (double)fp4_e4m3_value[fp4_e4m3_from_float((float)raw)] * (double)input_scale;
            for (int i = 0; i < len; i++) {
                double x = src[start + i], best = 0, distance = INFINITY;
                for (int code = 0; code < 16 && step > 0; code++) {
                    double v = (double)fp4_e2m1_value[code] * step;
                    if (fabs(x - v) < distance) {
                        distance = fabs(x - v);
                        best = v;
                    }
                }
                assert_true(fabs((double)dst[start + i] - best) <= 1e-6 * fabs(best));
            }
        }
    }
}

/* Calibrated for 10.752: scale 0.004. A block of maximum 3 gets SF 128; 30 saturates. */
static void test_fp4_round_trip_saturates_above_calibration(void **state)
{
    (void)state;
    float src[3] = {3.0F, 0.1F, -1.0F}, dst[3];

    fp4_round_trip_row(dst, src, 0.004F, 3);
    assert_true(fabsf(dst[0] - 3.072F) < 1e-6F);
    src[0] = 30;
    fp4_round_trip_row(dst, src, 0.004F, 3);
    assert_true(fabsf(dst[0] - 10.752F) < 1e-5F);
    src[0] = src[1] = src[2] = 1e-9F;
    fp4_round_trip_row(dst, src, 0.004F, 3);
    assert_true(dst[0] == 0 && dst[1] == 0 && dst[2] == 0);
}

static void test_fp4_nan_scale_is_fine_over_zeros_only(void **state)
{
    (void)state;
    uint8_t codes[16] = {0, 0x80, 0x08, 0x88}, scales[2] = {0x7f, 0x38};
    size_t bad = 99;
    float dst[32];

    codes[8] = 0x21;
    assert_true(fp4_row_scales_ok(codes, scales, 32, &bad));
    fp4_dequantize_row(dst, codes, scales, 1, 32);
    for (int i = 0; i < 16; i++)
        assert_true(dst[i] == 0);
    scales[1] = 0xff;
    assert_false(fp4_row_scales_ok(codes, scales, 32, &bad));
    assert_int_equal(bad, 1);
    scales[1] = 0xb8; /* -1: unusual, not wrong */
    assert_true(fp4_row_scales_ok(codes, scales, 32, &bad));
    codes[7] = 0x90;
    assert_false(fp4_row_scales_ok(codes, scales, 32, &bad));
    assert_int_equal(bad, 0);
}

static double f16_reference(int h)
{
    int e = h >> 10 & 31, m = h & 0x3ff;
    double v = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
    return h & 0x8000 ? -v : v;
}

static void test_fp4_f16_is_exact_and_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (int h = 0; h < 0x10000; h++) {
        if ((h & 0x7c00) == 0x7c00)
            continue;
        float f = f16_to_float((uint16_t)h);
        assert_true((double)f == f16_reference(h));
        assert_int_equal(f16_from_float(f), h);
    }
    for (int h = 0; h < 0x7bff; h++) {
        float tie = (float)((f16_reference(h) + f16_reference(h + 1)) / 2);
        assert_int_equal(f16_from_float(tie), h & 1 ? h + 1 : h);
        assert_int_equal(f16_from_float(nextafterf(tie, 0)), h);
        assert_int_equal(f16_from_float(nextafterf(tie, 1e6F)), h + 1);
    }
    assert_int_equal(f16_from_float(65519), 0x7bff);
    assert_int_equal(f16_from_float(65520), 0x7c00);
    assert_int_equal(f16_from_float(-INFINITY), 0xfc00);
    assert_true(isnan(f16_to_float(f16_from_float(NAN))));
    assert_true(isinf(f16_to_float(0x7c00)));
}

static void test_fp4_bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    uint64_t seed = 3;
    for (int i = 0; i < 100000; i++) {
        uint32_t u = (uint32_t)test_random(&seed) & 0x7fffffff;
        if (u >= 0x7f7f0000)
            continue;
        uint32_t down = u & 0xffff0000, up = down + 0x10000, low = u & 0xffff;
        uint32_t expected = low > 0x8000 || (low == 0x8000 && (u >> 16 & 1)) ? up : down;
        assert_int_equal(bits_of(bf16_to_float(bf16_from_float(float_of(u)))), expected);
    }
    assert_true(isnan(bf16_to_float(bf16_from_float(float_of(0x7f800001)))));
    assert_true(isinf(bf16_to_float(bf16_from_float(INFINITY))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp4_e4m3_values_are_all_256),
        cmocka_unit_test(test_fp4_e4m3_rounds_to_nearest_even),
        cmocka_unit_test(test_fp4_e4m3_saturates_and_keeps_nan),
        cmocka_unit_test(test_fp4_e2m1_rounds_ties_to_even_code),
        cmocka_unit_test(test_fp4_products_are_exact_in_bf16),
        cmocka_unit_test(test_fp4_worked_example),
        cmocka_unit_test(test_fp4_quantize_handles_zero_and_tiny_blocks),
        cmocka_unit_test(test_fp4_dequantize_matches_double),
        cmocka_unit_test(test_fp4_round_trip_matches_double),
        cmocka_unit_test(test_fp4_round_trip_saturates_above_calibration),
        cmocka_unit_test(test_fp4_nan_scale_is_fine_over_zeros_only),
        cmocka_unit_test(test_fp4_f16_is_exact_and_rounds_to_nearest_even),
        cmocka_unit_test(test_fp4_bf16_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
