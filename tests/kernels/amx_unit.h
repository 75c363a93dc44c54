/* An emulator of the matrix unit's tiles, in the statements that kernels use (kernels/cpu/tile_amx.h). */
#ifndef NYB_TESTS_AMX_UNIT_H
#define NYB_TESTS_AMX_UNIT_H

#include <math.h>

#include "test.h"

#include "fp4/fp4.h"

/* Eight tiles as LDTILECFG and its companions define them (Intel, Architecture Instruction Set Extensions and
 * Future Features, chapter on AMX). */
static struct {
    uint8_t n_row[8];
    uint16_t line_bytes[8];
    uint8_t bytes[8][16][64];
    bool configured;
} unit;

static float flush(float f)
{
    return fabsf(f) < 0x1p-126f ? copysignf(0.0f, f) : f;
}

static float half(const uint8_t *line, int i)
{
    uint16_t bits;
    memcpy(&bits, line + 2 * i, 2);
    return flush(bf16_to_float(bits));
}

static void emulate_zero(int n)
{
    assert_true(unit.configured && unit.n_row[n] > 0);
    memset(unit.bytes[n], 0, sizeof(unit.bytes[n]));
}

static void emulate_load(int n, const void *from, size_t stride)
{
    assert_true(unit.configured && unit.n_row[n] > 0);
    memset(unit.bytes[n], 0, sizeof(unit.bytes[n]));
    for (size_t i = 0; i < unit.n_row[n]; i++)
        memcpy(unit.bytes[n][i], (const uint8_t *)from + i * stride, unit.line_bytes[n]);
}

static void emulate_store(int n, void *to, size_t stride)
{
    for (size_t i = 0; i < unit.n_row[n]; i++)
        memcpy((uint8_t *)to + i * stride, unit.bytes[n][i], unit.line_bytes[n]);
}

/* TDPBF16PS: even and odd elements of the line of A in two chains of fma from zero, the chains' sum to C;
 * subnormals count as zero throughout. */
static void emulate_dpbf16(int c, int a, int b)
{
    assert_int_equal(unit.n_row[c], unit.n_row[a]);
    assert_int_equal(unit.n_row[b] * 4, unit.line_bytes[a]);
    assert_int_equal(unit.line_bytes[b], unit.line_bytes[c]);
    for (int m = 0; m < unit.n_row[c]; m++)
        for (int n = 0; n < unit.line_bytes[c] / 4; n++) {
            float chain[2] = {0.0f, 0.0f}, sum;
            for (int k = 0; k < unit.n_row[b]; k++)
                for (int i = 0; i < 2; i++)
                    chain[i] = flush(
                        fmaf(half(unit.bytes[a][m], 2 * k + i), half(unit.bytes[b][k], 2 * n + i), chain[i]));
            memcpy(&sum, unit.bytes[c][m] + 4 * n, 4);
            sum = flush(flush(sum) + flush(chain[0] + chain[1]));
            memcpy(unit.bytes[c][m] + 4 * n, &sum, 4);
        }
}

#define TILE_CONFIG(config)                                                     \
    do {                                                                        \
        memcpy(unit.n_row, (config)->n_row, sizeof(unit.n_row));                \
        memcpy(unit.line_bytes, (config)->line_bytes, sizeof(unit.line_bytes)); \
        memset(unit.bytes, 0, sizeof(unit.bytes));                              \
        unit.configured = true;                                                 \
        assert_int_equal((config)->palette, 1);                                 \
    } while (0)
#define TILE_RELEASE()             (void)(unit.configured = false)
#define TILE_ZERO(n)               emulate_zero(n)
#define TILE_LOAD(n, from, stride) emulate_load(n, from, stride)
#define TILE_STORE(n, to, stride)  emulate_store(n, to, stride)
#define TILE_DPBF16(c, a, b)       emulate_dpbf16(c, a, b)

#endif
