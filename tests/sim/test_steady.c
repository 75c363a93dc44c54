/* After start-up the step loop allocates nothing: this program counts what reaches the allocator. Skipped
 * under sanitizers, which bring their own. */
#include "test.h"

#include "engine/step.h"
#include "fake_runner.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

enum { N_REQUEST = 12 };

static long n_alloc;

#if defined(__GLIBC__) && !defined(SANITIZED)
#define COUNTED 1
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

void *malloc(size_t n)
{
    n_alloc++;
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    n_alloc++;
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    n_alloc++;
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    n_alloc++;
    return __libc_memalign(align, n);
}
#else
#define COUNTED 0
#endif

static void prepare(struct step *s, struct bell *bell, struct request *r, int i)
{
    int32_t prompt[40];
    int n = 5 + 3 * i;
    for (int k = 0; k < n; k++)
        prompt[k] = k % FAKE_VOCAB;
    r->p = (struct params){.temperature = i % 2 ? 0.8f : 0,
                           .top_p = i % 4 == 1 ? 0.9f : 1,
                           .top_k = i % 4 == 3 ? 5 : 0,
                           .repetition = i % 3 ? 1 : 1.1f,
                           .seed = (uint64_t)i,
                           .max_tokens = 50,
                           .n_logprob = i % 5 == 0 ? 2 : -1,
                           .n_prompt_logprob = i % 6 == 0 ? 1 : -1};
    request_prepare(r, prompt, n, FAKE_VOCAB);
    r->key = i;
    r->attention = &s->attention;
    r->engine_bell = bell;
}

static void test_steady_step_allocates_nothing(void **state)
{
    (void)state;
    if (!COUNTED)
        skip();
    struct fake fake = {.max_seq = 5, .max_tok = 16};
    struct runner runner = fake_runner(&fake);
    const struct step_options o = {.max_num_seqs = 5,
                                   .max_num_batched_tokens = 16,
                                   .max_len = 100,
                                   .max_live = N_REQUEST,
                                   .max_logprobs = 2,
                                   .n_block = 12, /* few, so that preemption is part of it */
                                   .prefix_cache = true};
    struct step s;
    struct bell bell = {0};
    struct request *r[N_REQUEST];
    assert_int_equal(step_open(&s, &runner, &o, NULL), NYB_OK);
    for (int i = 0; i < N_REQUEST; i++)
        prepare(&s, &bell, r[i] = request_new(), i);
    long before = n_alloc;
    assert_true(before > 0);
    int n_token = 0;
    for (int i = 0; i < N_REQUEST; i++)
        step_add(&s, r[i]);
    while (step_run(&s))
        for (int i = 0; i < N_REQUEST; i++) {
            struct reply reply;
            const struct nyb_logprob *logprob;
            for (; request_peek(r[i], &reply, &logprob); request_pop(r[i]))
                n_token += reply.token >= 0;
        }
    assert_int_equal(n_token, 50 * N_REQUEST);
    assert_true(s.sched.n_preemption > 0 && s.sched.prefix_hits > 0);
    assert_int_equal(n_alloc, before);
    for (int i = 0; i < N_REQUEST; i++)
        request_release(r[i]);
    step_close(&s);
    free(fake.kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steady_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
