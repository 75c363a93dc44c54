/* Tokens drawn on the emulated plug-in: those of the CPU's sampler. */
#include <math.h>

#include "golden/device_case.h"
#include "kernels/cuda/cuda_load.h"

/* Rows that a filter by threads' maxima does not like: the likeliest are all one thread's, or all are equal,
 * or differ in bits that it does not look at, or are zeros of either sign, or few are there at all. */
static void make_odd(float *x, int n, uint64_t *rng)
{
    int kind = (int)(test_random(rng) % 5), thread = (int)(test_random(rng) % 512);
    for (int i = 0; i < n; i++) {
        float u = test_random_float(rng);
        x[i] = kind == 0   ? (i / 4 % 512 == thread ? 20 + u : u)
               : kind == 1 ? -2.5f
               : kind == 2 ? 1 + (float)(test_random(rng) % 256) * 0x1p-23f
               : kind == 3 ? (test_random(rng) % 2 ? 0.0f : -0.0f)
               : i % 97    ? -INFINITY
                           : u;
    }
}

/* The kernel on n_row random rows of n logits: the very tokens of the CPU's sampler. */
static void check_draws(const struct cuda_plugin *p, struct cuda_gpu *g, int n_row, int n, uint64_t *rng)
{
    struct nyb_err err;
    struct sampler *sampler;
    size_t bytes = (size_t)n_row * (size_t)n * sizeof(float);
    float *x = mem_alloc((size_t)n_row * (size_t)n, sizeof(*x)), *row = mem_alloc((size_t)n, sizeof(*row));
    struct draw draw[8];
    struct cuda_draw there[8];
    int32_t id[8];
    float spread = (float)(1 + test_random(rng) % 12), step = test_random(rng) % 2 ? 0 : 0.125f;
    golden_must(sampler_open(&sampler, n, 1, &err), &err);
    for (int i = 0; i < n_row * n; i++) {
        x[i] = spread * (test_random_float(rng) + test_random_float(rng));
        if (step > 0) /* many equals, as logits of bf16 have them */
            x[i] = step * floorf(x[i] / step);
        if (n > 4 && test_random(rng) % 64 == 0)
            x[i] = test_random(rng) % 2 ? -INFINITY : NAN;
    }
    static const int odd_k[] = {1, 50, 511, 512, 513, CUDA_SAMPLE_TOP_K};
    for (int i = 0; i < n_row; i++) {
        draw[i] = random_draw(rng);
        if (test_random(rng) % 4 == 0) {
            make_odd(x + (size_t)i * (size_t)n, n, rng);
            draw[i].top_k = odd_k[test_random(rng) % 6];
        }
        there[i] = (struct cuda_draw){.uniform = draw[i].uniform,
                                      .scale = draw[i].scale,
                                      .top_p = draw[i].top_p,
                                      .min_p = draw[i].min_p,
                                      .top_k = draw[i].top_k,
                                      .wanted = draw[i].wanted};
    }
    float *device_x = p->alloc(g, bytes);
    struct cuda_draw *device_draw = p->alloc(g, sizeof(there));
    int32_t *device_id = p->alloc(g, sizeof(id));
    const struct cuda_op op = {.kind = CUDA_OP_SAMPLE,
                               .n_row = n_row,
                               .as.sample = {.x = device_x, .draw = device_draw, .id = device_id, .n = n}};
    assert_true(p->write(g, device_x, x, bytes) && p->write(g, device_draw, there, sizeof(there)));
    assert_true(p->run(g, &op, 1) && p->read(g, id, device_id, sizeof(id)));
    for (int i = 0; i < n_row; i++) {
        memcpy(row, x + (size_t)i * (size_t)n, (size_t)n * sizeof(*row));
        int32_t token = sampler_choose(sampler, 0, &draw[i], row);
        if (draw[i].wanted && id[i] != token)
            fail_msg(
                "row of %d: %d on the GPU, %d here (uniform %.17g, scale %g, top_k %d, top_p %g, min_p %g)",
                n, id[i], token, draw[i].uniform, (double)draw[i].scale, draw[i].top_k, (double)draw[i].top_p,
                (double)draw[i].min_p);
    }
    p->release(g, device_x);
    p->release(g, device_draw);
    p->release(g, device_id);
    sampler_close(sampler);
    free(x);
    free(row);
}

static void test_draws_are_the_samplers(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct nyb_err err;
    char why[256];
    const struct cuda_plugin *p = cuda_load(&err);
    assert_non_null(p);
    struct cuda_gpu *g = p->open(0, why, sizeof(why));
    assert_non_null(g);
    uint64_t rng = 77;
    for (int i = 0; i < 60; i++)
        check_draws(p, g, 1 + i % 8, i % 10 == 9 ? 40000 : 1 + (int)(test_random(&rng) % (i % 3 ? 3000 : 40)),
                    &rng);
    p->close(g);
}

static void test_steps_draw(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct model *m = open_golden("qwen3_moe-modelopt", (struct how){0});
    check_drawn_steps(m, 3);
    check_drawn_steps(m, 1);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draws_are_the_samplers),
        cmocka_unit_test(test_steps_draw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
