/* The GPU's layout of NVFP4 weights: every scale and code, every place, and what is not to be packed. */
#include "test.h"

#include "fp4/fp4.h"
#include "kernels/cuda/cuda_layout.h"

static void scales_are_a_bijection(void **state)
{
    (void)state;
    bool seen[256] = {false};
    for (int s = 1; s <= 0x7e; s++) {
        uint8_t code = cuda_layout_scale((uint8_t)s);
        assert_in_range(code >> 3, 1, 18);
        assert_false(seen[code]);
        seen[code] = true;
        assert_int_equal(cuda_layout_scale_back(code), s);
    }
}

/* What the kernel does with bf16's bits: code << 4 | 0x7000 is scale * 2^107, and sign and magnitude at bits
 * 15 and 8 to 6 are value * 2^-126. Their product is exact in bf16 and normal. */
static void products_are_exact_in_bf16(void **state)
{
    (void)state;
    for (int s = 1; s <= 0x7e; s++)
        for (unsigned c = 0; c < 16; c++) {
            double scale = (double)bf16_to_float((uint16_t)(cuda_layout_scale((uint8_t)s) << 4 | 0x7000));
            double value = (double)bf16_to_float((uint16_t)((c & 8) << 12 | (c & 7) << 6));
            double product = scale * value;
            assert_true(scale == (double)fp4_e4m3_value[s] * 0x1p107);
            assert_true(value == (double)fp4_e2m1_value[c] * 0x1p-126);
            assert_true(product == (double)bf16_to_float(bf16_from_float((float)product)));
            assert_true(product == 0.0 || (product < 0 ? -product : product) >= 0x1p-126);
            assert_true(product * (double)CUDA_SCALE_BACK ==
                        (double)fp4_e2m1_value[c] * (double)fp4_e4m3_value[s]);
        }
}

/* One bit of one code or scale at a time changes one bit of codes, or one byte of scales, and none twice. */
static void every_code_bit_has_a_place(void **state)
{
    (void)state;
    bool seen[CUDA_UNIT_CODES * 8] = {false};
    uint8_t codes[16 * 32], scales[16 * 4], packed[CUDA_UNIT_BYTES];
    size_t bad;
    memset(scales, 0x38, sizeof(scales));
    for (int bit = 0; bit < 16 * 32 * 8; bit++) {
        memset(codes, 0, sizeof(codes));
        codes[bit / 8] = (uint8_t)(1 << bit % 8);
        assert_true(cuda_layout_pack(packed, codes, scales, 16, 64, &bad));
        int n = 0;
        for (int i = 0; i < CUDA_UNIT_CODES * 8; i++)
            if (packed[i / 8] >> i % 8 & 1) {
                n++;
                assert_false(seen[i]);
                seen[i] = true;
            }
        assert_int_equal(n, 1);
    }
    memset(codes, 0x11, sizeof(codes));
    bool scale_seen[64] = {false};
    for (int s = 0; s < 64; s++) {
        memset(scales, 0x38, sizeof(scales));
        scales[s] = 0x01;
        assert_true(cuda_layout_pack(packed, codes, scales, 16, 64, &bad));
        for (int i = 0; i < 64; i++)
            if (packed[CUDA_UNIT_CODES + i] == cuda_layout_scale(0x01)) {
                assert_false(scale_seen[i]);
                scale_seen[i] = true;
            }
    }
    for (int i = 0; i < 64; i++)
        assert_true(scale_seen[i]);
}

/* The A operand as mma.m16n8k16 has it: register a of lane l is row l/4 + 8 * (a % 2), its half h column
 * 2 * (l % 4) + h + 8 * (a / 2), where a column stands for k = 4 * (l % 4) + 2 * (a / 2) + h. */
static uint32_t rotate(uint32_t w, int n)
{
    return n ? w << n | w >> (32 - n) : w;
}

static void lanes_find_their_weights(void **state)
{
    (void)state;
    uint64_t seed = 5;
    uint8_t codes[16 * 64], scales[16 * 8], packed[2 * CUDA_UNIT_BYTES];
    size_t bad;
    for (size_t i = 0; i < sizeof(codes); i++)
        codes[i] = (uint8_t)test_random(&seed);
    for (size_t i = 0; i < sizeof(scales); i++)
        scales[i] = (uint8_t)(1 + test_random(&seed) % 126);
    assert_true(cuda_layout_pack(packed, codes, scales, 16, 128, &bad));
    for (int at = 0; at < 2 * 32 * 4; at++) {
        const uint8_t *unit = packed + at / 128 * CUDA_UNIT_BYTES;
        int lane = at % 128 / 4, block = at % 4;
        uint32_t w;
        memcpy(&w, unit + 16 * lane + 4 * block, 4);
        uint32_t a[4] = {w & 0x81c081c0u, rotate(w, 4) & 0x81c081c0u, rotate(w, 10) & 0x81c081c0u,
                         (rotate(w, 6) & 0x80c080c0u) | (rotate(w, 14) & 0x01000100u)};
        for (int i = 0; i < 8; i++) {
            int reg = i / 2, row = lane / 4 + 8 * (reg % 2);
            int k = at / 128 * 64 + 16 * block + 4 * (lane % 4) + 2 * (reg / 2) + i % 2;
            uint8_t code = unit[CUDA_UNIT_CODES + lane / 4 * 8 + 2 * block + reg % 2];
            double found = (double)bf16_to_float((uint16_t)(a[reg] >> (i % 2 * 16))) *
                           (double)bf16_to_float((uint16_t)(code << 4 | 0x7000)) * (double)CUDA_SCALE_BACK;
            uint8_t byte = codes[row * 64 + k / 2];
            assert_true(found == (double)fp4_e2m1_value[k % 2 ? byte >> 4 : byte & 15] *
                                     (double)fp4_e4m3_value[scales[row * 8 + k / 16]]);
        }
    }
}

/* Rows that do not fill a tile, scales of every kind: the same values come back. */
static void values_survive(void **state)
{
    (void)state;
    enum { N = 37, K = 192 };
    uint64_t seed = 9;
    uint8_t codes[N * K / 2], scales[N * K / 16], back[N * K / 2], back_scales[N * K / 16];
    uint8_t packed[3 * 3 * CUDA_UNIT_BYTES];
    float before[K], after[K];
    size_t bad;
    assert_int_equal(cuda_layout_bytes(N, K), sizeof(packed));
    for (size_t i = 0; i < sizeof(codes); i++)
        codes[i] = (uint8_t)test_random(&seed);
    for (size_t i = 0; i < sizeof(scales); i++) {
        scales[i] = (uint8_t)test_random(&seed);
        if ((scales[i] & 0x7f) == 0x7f)
            scales[i] = 0;
    }
    assert_true(cuda_layout_pack(packed, codes, scales, N, K, &bad));
    cuda_layout_unpack(back, back_scales, packed, N, K);
    for (int r = 0; r < N; r++) {
        fp4_dequantize_row(before, codes + r * K / 2, scales + r * K / 16, 1.0f, K);
        fp4_dequantize_row(after, back + r * K / 2, back_scales + r * K / 16, 1.0f, K);
        for (int k = 0; k < K; k++)
            assert_true(before[k] == after[k]);
    }
}

static void nan_scales_pass_over_zeros_only(void **state)
{
    (void)state;
    uint8_t codes[3 * 32] = {0}, scales[3 * 4], packed[CUDA_UNIT_BYTES];
    size_t bad = 99;
    memset(scales, 0x38, sizeof(scales));
    scales[9] = 0xff;
    codes[2 * 32 + 9] = 0x88;
    assert_true(cuda_layout_pack(packed, codes, scales, 3, 64, &bad));
    codes[2 * 32 + 9] = 0x81;
    assert_false(cuda_layout_pack(packed, codes, scales, 3, 64, &bad));
    assert_int_equal(bad, 2);
}

static void pairs_alternate_by_eight(void **state)
{
    (void)state;
    uint8_t gate[16 * 32], up[16 * 32], scales[16 * 4], packed[2 * CUDA_UNIT_BYTES], back[32 * 32], s[32 * 4];
    size_t bad;
    memset(scales, 0x38, sizeof(scales));
    for (int i = 0; i < 16 * 32; i++) {
        gate[i] = (uint8_t)(i / 32);
        up[i] = (uint8_t)(i / 32 << 4);
    }
    assert_true(cuda_layout_pack_pair(packed, gate, scales, up, scales, 16, 64, &bad));
    cuda_layout_unpack(back, s, packed, 32, 64);
    for (int r = 0; r < 16; r++) {
        int at = r / 8 * 16 + r % 8;
        assert_memory_equal(back + at * 32, gate + r * 32, 32);
        assert_memory_equal(back + (at + 8) * 32, up + r * 32, 32);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_are_a_bijection),
        cmocka_unit_test(products_are_exact_in_bf16),
        cmocka_unit_test(every_code_bit_has_a_place),
        cmocka_unit_test(lanes_find_their_weights),
        cmocka_unit_test(values_survive),
        cmocka_unit_test(nan_scales_pass_over_zeros_only),
        cmocka_unit_test(pairs_alternate_by_eight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
