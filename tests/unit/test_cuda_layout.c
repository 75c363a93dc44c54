/* The GPU's layout of NVFP4 weights: every scale and code, every place, and what is not to be packed. */
#include "test.h"

#include <stdlib.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/cuda_tiled.h"

static void scales_are_a_bijection(void **state)
{
    (void)state;
    bool seen[256] = {false};
    for (int s = 0; s <= 0x7f; s++) {
        uint8_t code = cuda_layout_scale((uint8_t)s);
        assert_in_range(code >> 3, s ? 1 : 0, 18);
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
 * 2 * (l % 4) + h + 8 * (a / 2), where a column of instruction f stands for k = 16 * (l % 4) + 4 * f +
 * 2 * (a / 2) + h. */
static uint32_t rotate(uint32_t w, int n)
{
    return w << n | w >> (32 - n);
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
        scales[i] = (uint8_t)(i % 8 ? 1 + test_random(&seed) % 126 : 0);
    assert_true(cuda_layout_pack(packed, codes, scales, 16, 128, &bad));
    for (int at = 0; at < 2 * 32 * 4; at++) {
        const uint8_t *unit = packed + at / 128 * CUDA_UNIT_BYTES;
        int lane = at % 128 / 4, f = at % 4;
        uint32_t words[4], w;
        memcpy(words, unit + 16 * lane, 16);
        w = words[f];
        uint32_t last = (words[f & 2] & 0x06030603u) | (words[f | 1] << 2 & ~0x06030603u);
        uint32_t a[4] = {w & 0x81c081c0u, w << 4 & 0x81c081c0u, rotate(w, 10) & 0x81c081c0u,
                         (f % 2 ? rotate(last, 28) : last << 6) & 0x81c081c0u};
        for (int i = 0; i < 8; i++) {
            int reg = i / 2, row = lane / 4 + 8 * (reg % 2);
            int k = at / 128 * 64 + 16 * (lane % 4) + 4 * f + 2 * (reg / 2) + i % 2;
            uint8_t code = unit[CUDA_UNIT_CODES + 2 * lane + reg % 2];
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
    cuda_layout_unpack(back, back_scales, packed, N, K, K);
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
    cuda_layout_unpack(back, s, packed, 32, 64, 64);
    for (int r = 0; r < 16; r++) {
        int at = r / 8 * 16 + r % 8;
        assert_memory_equal(back + at * 32, gate + r * 32, 32);
        assert_memory_equal(back + (at + 8) * 32, up + r * 32, 32);
    }
}

/* ---- the inverse --------------------------------------------------------------------------------- */

/* Equal weights in the one spelling that comes back. */
static void settle(uint8_t *codes, uint8_t *scales, size_t n_group)
{
    for (size_t g = 0; g < n_group; g++)
        for (int i = 0; i < 8; i++) {
            uint8_t *byte = &codes[8 * g + (size_t)i];
            *byte = (uint8_t)(scales[g] & 0x7f ? *byte ^ (scales[g] & 0x80 ? 0x88 : 0) : 0);
        }
    for (size_t g = 0; g < n_group; g++)
        scales[g] &= 0x7f;
}

/* Every scale over every code at each of the 64 places of a unit's row. */
static void bytes_come_back(void **state)
{
    (void)state;
    enum { N = 256, K = 16 * 64 };
    static uint8_t codes[N * K / 2], scales[N * K / 16], back[N * K / 2], back_scales[N * K / 16];
    static uint8_t packed[N / 16 * (K / 64) * CUDA_UNIT_BYTES];
    size_t bad;
    for (int r = 0; r < N; r++)
        for (int k = 0; k < K; k++) {
            unsigned code = (r & 0x7f) == 0x7f ? 8 * (unsigned)(k & 1) : (unsigned)(k / 64 + k) & 15;
            codes[(r * K + k) / 2] |= (uint8_t)(code << k % 2 * 4);
            scales[(r * K + k) / 16] = (uint8_t)r;
        }
    assert_int_equal(cuda_layout_bytes(N, K), sizeof(packed));
    assert_true(cuda_layout_pack(packed, codes, scales, N, K, &bad));
    cuda_layout_unpack(back, back_scales, packed, N, K, K);
    settle(codes, scales, N * K / 16);
    assert_memory_equal(back, codes, sizeof(codes));
    assert_memory_equal(back_scales, scales, sizeof(scales));
}

/* Random rows, the last tile not full, unpacked from any tile on and not up to the end. */
static void check_shape(uint64_t *seed, size_t n, size_t k, bool pair)
{
    uint8_t *codes[2], *scales[2], *packed = calloc(1, cuda_layout_bytes(pair ? 2 * n : n, k));
    size_t bad, height = pair ? 8 : 16;
    for (int m = 0; m < 2; m++) {
        codes[m] = malloc(n * k / 2);
        scales[m] = malloc(n * k / 16);
        for (size_t i = 0; i < n * k / 2; i++)
            codes[m][i] = (uint8_t)test_random(seed);
        for (size_t i = 0; i < n * k / 16; i++) {
            scales[m][i] = (uint8_t)(test_random(seed) % 5 ? test_random(seed) : test_random(seed) & 0x80);
            if ((scales[m][i] & 0x7f) == 0x7f)
                memset(codes[m] + 8 * i, 0x80, 8);
        }
    }
    assert_true(pair ? cuda_layout_pack_pair(packed, codes[0], scales[0], codes[1], scales[1], n, k, &bad)
                     : cuda_layout_pack(packed, codes[0], scales[0], n, k, &bad));
    for (int m = 0; m < (pair ? 2 : 1); m++) {
        settle(codes[m], scales[m], n * k / 16);
        for (size_t first = 0; first < n; first += height) {
            size_t rows = 1 + test_random(seed) % (n - first);
            uint8_t *back = malloc(rows * k / 2), *back_scales = malloc(rows * k / 16);
            const uint8_t *tiles = packed + first / height * (k / CUDA_UNIT_K) * CUDA_UNIT_BYTES;
            if (pair)
                cuda_layout_unpack_pair(back, back_scales, tiles, m == 1, rows, k);
            else
                cuda_layout_unpack(back, back_scales, tiles, rows, k, k);
            assert_memory_equal(back, codes[m] + first * k / 2, rows * k / 2);
            assert_memory_equal(back_scales, scales[m] + first * k / 16, rows * k / 16);
            free(back);
            free(back_scales);
        }
    }
    for (int m = 0; m < 2; m++) {
        free(codes[m]);
        free(scales[m]);
    }
    free(packed);
}

static void any_shape_comes_back(void **state)
{
    (void)state;
    uint64_t seed = 77;
    for (size_t n = 1; n < 70; n += n < 34 ? 1 : 5)
        for (size_t k = 64; k <= 320; k += 128)
            check_shape(&seed, n, k, false);
    for (size_t n = 8; n < 80; n += 8)
        for (size_t k = 64; k <= 320; k += 128)
            check_shape(&seed, n, k, true);
}

/* The tiles of cuBLASLt's block scales, walked in the order of their bytes: tiles of the same 128 rows beside
 * each other; in a tile rows i, i + 32, i + 64, i + 96 with four blocks each. */
static void scales_lie_in_tiles(void **state)
{
    (void)state;
    static const size_t shape[][2] = {{1, 16}, {128, 64}, {129, 80}, {300, 320}, {16, 96}, {256, 2048}};
    for (size_t s = 0; s < COUNT_OF(shape); s++) {
        size_t n = shape[s][0], k = shape[s][1], at = 0, row, block;
        for (size_t rows = 0; rows < n; rows += 128)
            for (size_t blocks = 0; blocks < (k + 15) / 16; blocks += 4)
                for (size_t i = 0; i < 32; i++)
                    for (size_t j = 0; j < 4; j++)
                        for (size_t c = 0; c < 4; c++, at++) {
                            assert_int_equal(cuda_tiled_scale_at(rows + 32 * j + i, blocks + c, k), at);
                            cuda_tiled_scale_of(at, k, &row, &block);
                            assert_int_equal(row, rows + 32 * j + i);
                            assert_int_equal(block, blocks + c);
                        }
        assert_int_equal(cuda_tiled_scale_bytes(n, k), at);
        assert_int_equal(cuda_tiled_row(k) % 32, 0);
        assert_in_range(cuda_tiled_row(k), k, k + 31);
        assert_int_equal(cuda_tiled_code_bytes(n, k), (n + 15) / 16 * 16 * cuda_tiled_row(k) / 2);
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
        cmocka_unit_test(bytes_come_back),
        cmocka_unit_test(any_shape_comes_back),
        cmocka_unit_test(scales_lie_in_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
