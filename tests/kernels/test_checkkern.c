/* Every row of checkkern, on every CPU level that this machine has, with one thread and with three. */
#include "test.h"

#include "base/mem.h"
#include "kernels/checkkern.h"

struct variant {
    const struct checkkern_row *row;
    enum cpu_level level;
    int n_thread;
    char name[96];
};

static void test_row(void **state)
{
    const struct variant *v = *state;
    struct arena arena;
    struct checkkern_env env = {.level = v->level, .arena = &arena, .seed = 20, .rounds = 24};
    struct checkkern_report report = {0};
    arena_init(&arena, 1 << 20);
    assert_int_equal(pool_open(&env.pool, v->n_thread, NULL), NYB_OK);
    bool ok = v->row->check(&env, &report);
    pool_close(env.pool);
    arena_free(&arena);
    if (!ok)
        fail_msg("%s", report.detail);
    assert_true(report.n_case > 0);
}

int main(void)
{
    int n_level = (int)cpu_level() + 1, n_row = checkkern_n_row(), n = 0;
    struct variant *variant = mem_alloc((size_t)(n_level * n_row * 2), sizeof(*variant));
    struct CMUnitTest *test = mem_alloc((size_t)(n_level * n_row * 2), sizeof(*test));
    for (int level = 0; level < n_level; level++)
        for (int row = 0; row < n_row; row++)
            for (int wide = 0; wide < 2; wide++, n++) {
                struct variant *v = &variant[n];
                *v = (struct variant){checkkern_row(row), (enum cpu_level)level, wide ? 3 : 1, ""};
                snprintf(v->name, sizeof(v->name), "%s.%s.threads%d", v->row->name, cpu_level_name(v->level),
                         v->n_thread);
                test[n] = (struct CMUnitTest){.name = v->name, .test_func = test_row, .initial_state = v};
            }
    int rc = _cmocka_run_group_tests("checkkern", test, (size_t)n, NULL, NULL);
    free(test);
    free(variant);
    return rc;
}
