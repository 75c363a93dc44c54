/* Frequencies as transformers' modeling_rope_utils.py computes them for each kind of scaling. */
#include "model/rope.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/mem.h"

#define PI   3.14159265358979323846
#define STEP 256 /* rows filled at a time */

/* Long wavelengths are divided by the factor, short ones kept, those between blended. */
static double llama3_frequency(const struct rope_config *c, double f)
{
    double wavelength = 2 * PI / f, old = (double)c->original_max_position;
    if (wavelength < old / c->high_freq_factor)
        return f;
    if (wavelength > old / c->low_freq_factor)
        return f / c->factor;
    double smooth = (old / wavelength - c->low_freq_factor) / (c->high_freq_factor - c->low_freq_factor);
    return (1 - smooth) * f / c->factor + smooth * f;
}

/* The (fractional) index of the frequency that turns `rotations` times over the original context. */
static double yarn_index(const struct rope_config *c, double rotations)
{
    return c->rotary_dim * log((double)c->original_max_position / (rotations * 2 * PI)) / (2 * log(c->theta));
}

static double yarn_frequency(const struct rope_config *c, double f, int i)
{
    double low = yarn_index(c, c->beta_fast), high = yarn_index(c, c->beta_slow);
    if (c->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, c->rotary_dim - 1);
    if (low == high)
        high += 0.001;                                        /* a step, without dividing by zero */
    double ramp = fmin(fmax((i - low) / (high - low), 0), 1); /* 0: keep, 1: interpolate */
    return f / c->factor * ramp + f * (1 - ramp);
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double magnitude(const struct rope_config *c)
{
    if (c->scaling != ROPE_YARN)
        return 1;
    if (c->attention_factor > 0)
        return c->attention_factor;
    if (c->mscale > 0 && c->mscale_all_dim > 0)
        return yarn_mscale(c->factor, c->mscale) / yarn_mscale(c->factor, c->mscale_all_dim);
    return yarn_mscale(c->factor, 1);
}

static double frequency(const struct rope_config *c, int i)
{
    double f = pow(c->theta, -2.0 * i / c->rotary_dim);
    switch (c->scaling) {
    case ROPE_LINEAR:
        return f / c->factor;
    case ROPE_LLAMA3:
        return llama3_frequency(c, f);
    case ROPE_YARN:
        return yarn_frequency(c, f, i);
    case ROPE_PLAIN:
        break;
    }
    return f;
}

/* Room for the longest sequence is only reserved: a context of millions of tokens that nobody uses is free.
 */
enum nyb_code rope_open(struct rope *r, const struct rope_config *c, int64_t max_pos, struct nyb_err *err)
{
    size_t half = (size_t)c->rotary_dim / 2, n;
    *r = (struct rope){.half = c->rotary_dim / 2, .max_pos = max_pos, .magnitude = (float)magnitude(c)};
    ASSERT(size_mul((size_t)max_pos, half, &n) && n < SIZE_MAX / 16);
    size_t bytes = 2 * n * sizeof(float);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return err_set(err, NYB_E_MEMORY, "no memory for rotary tables of %zu bytes", bytes);
    r->cos = map;
    r->sin = r->cos + n;
    r->mapped = bytes;
    r->frequency = mem_alloc(half, sizeof(float));
    for (size_t i = 0; i < half; i++)
        r->frequency[i] = (float)frequency(c, (int)i);
    return NYB_OK;
}

void rope_close(struct rope *r)
{
    if (r->cos)
        munmap(r->cos, r->mapped);
    free(r->frequency);
    *r = (struct rope){0};
}

/* Angles are fp32 products, as the reference computes them: at long contexts their rounding is part of what
 * the model was trained with. */
void rope_extend(struct rope *r, int64_t pos)
{
    ASSERT(pos >= 0 && pos < r->max_pos);
    if (pos < r->filled)
        return;
    int64_t end = (pos / STEP + 1) * STEP;
    if (end > r->max_pos)
        end = r->max_pos;
    for (int64_t p = r->filled; p < end; p++)
        for (int i = 0; i < r->half; i++) {
            double angle = (double)((float)p * r->frequency[i]);
            size_t at = (size_t)p * (size_t)r->half + (size_t)i;
            r->cos[at] = (float)cos(angle) * r->magnitude;
            r->sin[at] = (float)sin(angle) * r->magnitude;
        }
    r->filled = end;
}
