/* Random rows: for speed work on shapes whose weights are not at hand. */
#include <string.h>
#include <xxhash.h>

#include "fp4/fp4.h"
#include "model/fill.h"

/* xorshift64*, eight bytes a step: 17 GB must not take minutes. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

/* n random bytes, of each 8 only the bits in `keep`, those in `set` always. */
static void random_bytes(uint8_t *dst, size_t n, uint64_t *state, uint64_t keep, uint64_t set)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t r = (next_random(state) & keep) | set;
        memcpy(dst + i, &r, n - i < 8 ? n - i : 8);
    }
}

/* Sign and mantissa are random, the exponent is that of 1: finite in every format. The spread is set by the
 * matrix's global scale (source.c). */
static enum nyb_code make(const void *arg, const struct fill_piece *p, struct nyb_err *err)
{
    (void)err;
    const struct slot *s = p->slot;
    /* Of the parameter and the place in it, not of the slot: all ranks that have it have the same. */
    uint64_t place = XXH3_64bits(s->name, strlen(s->name)) + (uint64_t)(s->row + p->row) +
                     ((uint64_t)(uint32_t)s->column << 32);
    uint64_t state = *(const uint64_t *)arg * 0x9e3779b97f4a7c15ull + place * 0xbf58476d1ce4e5b9ull;
    state = state ? state : 1;
    if (s->kind == SLOT_VECTOR) {
        for (size_t i = 0; i < (size_t)s->n; i++)
            memcpy(p->rows + i * sizeof(float), &s->dummy, sizeof(float));
        return NYB_OK;
    }
    size_t n = (size_t)p->n_row * weight_row_bytes(s->weight->type, s->k);
    switch (s->weight->type) {
    case WEIGHT_NVFP4:
        random_bytes(p->rows, n, &state, UINT64_MAX, 0);
        random_bytes(p->scales, (size_t)p->n_row * (size_t)s->k / FP4_GROUP, &state, 0x0707070707070707,
                     0x3838383838383838);
        break;
    case WEIGHT_FP8:
        random_bytes(p->rows, n, &state, 0x8787878787878787, 0x3838383838383838);
        break;
    default:
        ASSERT(s->weight->type == WEIGHT_BF16);
        random_bytes(p->rows, n, &state, 0x807f807f807f807f, 0x3f803f803f803f80);
    }
    return NYB_OK;
}

struct fill_source fill_from_seed(const uint64_t *seed)
{
    return (struct fill_source){.make = make, .arg = seed};
}
