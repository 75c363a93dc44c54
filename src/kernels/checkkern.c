#include "kernels/checkkern.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

bool checkkern_case(struct checkkern_report *r, bool ok, const char *fmt, ...)
{
    r->n_case++;
    if (!ok && !r->failed) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(r->detail, sizeof(r->detail), fmt, args);
        va_end(args);
    }
    r->failed |= !ok;
    return ok;
}

bool checkkern_near(struct checkkern_report *r, double found, double expected, double tolerance)
{
    double ratio = fabs(found - expected) / tolerance;
    if (found == expected)
        ratio = 0.0;
    if (!(ratio <= r->worst))
        r->worst = ratio;
    return ratio <= 1.0;
}

uint64_t checkkern_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

int checkkern_int(uint64_t *state, int lo, int hi)
{
    return lo + (int)(checkkern_random(state) % (uint64_t)(hi - lo + 1));
}

float checkkern_float(uint64_t *state)
{
    return (float)((double)(checkkern_random(state) >> 11) * 0x1p-52 - 1.0);
}

/* A NaN with a payload of its own. */
#define POISON_BITS 0x7fc0dea1u

float checkkern_poison(void)
{
    uint32_t bits = POISON_BITS;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

bool checkkern_is_poison(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits == POISON_BITS;
}

void checkkern_add(struct checkkern_bench *b, const char *name, double seconds, double bytes, double flops,
                   enum checkkern_unit unit)
{
    if (b->n_line == b->cap) {
        b->cap = b->cap ? 2 * b->cap : 32;
        b->line = mem_grow(b->line, (size_t)b->cap, sizeof(*b->line));
    }
    struct checkkern_line *line = &b->line[b->n_line++];
    *line = (struct checkkern_line){.seconds = seconds, .bytes = bytes, .flops = flops, .unit = unit};
    snprintf(line->name, sizeof(line->name), "%s", name);
}

double checkkern_fraction(const struct checkkern_line *line, const struct checkkern_roof *roof)
{
    double peak = roof->f32_gflops;
    if (line->unit == CHECKKERN_BF16 && roof->bf16_gflops > 0)
        peak = roof->bf16_gflops;
    if (line->unit == CHECKKERN_I8 && roof->i8_gops > 0)
        peak = roof->i8_gops;
    if (line->unit == CHECKKERN_TILE)
        peak = roof->tile_gflops;
    double bound = fmax(line->bytes / (roof->read_gbs * 1e9), line->flops / (peak * 1e9));
    return bound / line->seconds;
}

static const struct checkkern_row row_table[] = {
#define CHECK(name, check)              {name, check, NULL},
#define CHECK_BENCH(name, check, bench) {name, check, bench},
#include "kernels/checkkern.def"
#undef CHECK
#undef CHECK_BENCH
};

int checkkern_n_row(void)
{
    return (int)COUNT_OF(row_table);
}

const struct checkkern_row *checkkern_row(int i)
{
    return &row_table[i];
}
