/* Weights on the emulated plug-in: checksums and values of what lies there, and updates under recorded
 * graphs. */
#include "golden/device_update.h"
#include "golden/upload.h"

#include "model/readback.h"

#define EXPERT "model.layers.1.mlp.experts.2."

/* ---- checksums and values ------------------------------------------------------------------------------ */

/* Of every parameter, from the GPU and from this process's memory. */
static void assert_values(struct model *m, const char *folder, size_t max)
{
    struct nyb_err err;
    struct checksum all;
    struct model *cpu;
    const struct model_options o = {
        .folder = folder, .compute = COMPUTE_BF16, .n_thread = 1, .kv_type = MODEL_KV_AUTO};
    golden_must(model_open(&cpu, &o, &err), &err);
    golden_must(checksum_folder(&all, folder, 1, &err), &err);
    for (int i = 0; i < all.n_tensor; i++) {
        struct readback a, b;
        if (!strcmp(all.tensor[i].name, "kv_scales"))
            continue;
        golden_must(readback_values(&a, m, all.tensor[i].name, max, &err), &err);
        golden_must(readback_values(&b, cpu, all.tensor[i].name, max, &err), &err);
        assert_string_equal(a.type, b.type);
        assert_true(a.n == b.n && a.rows == b.rows && a.columns == b.columns);
        assert_memory_equal(a.value, b.value, a.n * sizeof(*a.value));
        free(a.value);
        free(b.value);
    }
    checksum_free(&all);
    model_close(cpu);
}

static void check_weights(const char *folder, struct how how)
{
    struct model *m = open_on_device(folder, how);
    assert_checksum(m, folder);
    assert_values(m, folder, how.backend == DEVICE_BACKEND_AUTO ? SIZE_MAX : 1234);
    model_close(m);
}

/* What lies on the GPU is the checkpoint: packed, in pairs, row-major, dense and experts. */
static void test_checksums_and_values(void **state)
{
    (void)state;
    NEED_DEVICE;
    static const char *const name[] = {"ernie4_5_moe-modelopt",
                                       "glm4_moe-compressed-tensors-sharded",
                                       "glm4_moe-modelopt",
                                       "llama-dense-modelopt",
                                       "mixtral-modelopt",
                                       "qwen3-dense-modelopt",
                                       "qwen3_moe-compressed-tensors",
                                       "qwen3_moe-modelopt"};
    for (size_t i = 0; i < COUNT_OF(name); i++) {
        char *folder = path_join(GOLDEN, name[i]);
        check_weights(folder, (struct how){0});
        if (i % 4 == 3)
            check_weights(folder, (struct how){.backend = DEVICE_BACKEND_REFERENCE});
        if (i == 1 || i == 3)
            check_weights(folder, (struct how){.backend = DEVICE_BACKEND_CUBLASLT_NVFP4});
        free(folder);
    }
}

/* Block scales of zero, of both signs, NaN over zeros, and negative ones. */
static void test_checksums_of_odd_scales(void **state)
{
    (void)state;
    NEED_DEVICE;
    if (!twins_are_possible())
        skip();
    char *odd = twin(GOLDEN "qwen3_moe-modelopt", "odd",
                     "--hide " EXPERT "gate_proj 1 --hide " EXPERT "up_proj 2 --hide " EXPERT "down_proj 3 "
                     "--hide model.layers.1.self_attn.k_proj 4 --negate " EXPERT "up_proj.weight_scale");
    check_weights(odd, (struct how){0});
    check_weights(odd, (struct how){.backend = DEVICE_BACKEND_REFERENCE});
    check_weights(odd, (struct how){.backend = DEVICE_BACKEND_CUBLASLT_NVFP4});
    free(odd);
}

/* Steps, and the recording of graphs, go on while other threads read the weights. */
static void test_checksums_beside_steps(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct nyb_err err;
    struct model *m = open_golden("qwen3_moe-modelopt", (struct how){0});
    struct talk before = talk_to(m, 3, -1);
    for (int i = 0; i < 2; i++) {
        struct checksum sum;
        bool done = false;
        checksum_start(m, 2);
        struct talk beside = talk_to(m, 3, -1);
        while (!done)
            golden_must(checksum_poll(m, &done, &err), &err);
        golden_must(checksum_finish(&sum, m, &err), &err);
        assert_same(&sum, GOLDEN "qwen3_moe-modelopt");
        assert_memory_equal(beside.logits, before.logits, talk_bytes(m, &before));
        checksum_free(&sum);
        free(beside.logits);
    }
    free(before.logits);
    model_close(m);
}

/* ---- updates ------------------------------------------------------------------------------------------- */

static void test_updates_keep_graphs(void **state)
{
    (void)state;
    NEED_DEVICE;
    if (!twins_are_possible())
        skip();
    static const char *const models[] = {"qwen3_moe-modelopt", "ernie4_5_moe-modelopt",
                                         "llama-dense-modelopt"};
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        const char *name = models[i];
        struct how how = {.backend = i < 2 ? DEVICE_BACKEND_AUTO : DEVICE_BACKEND_CUBLASLT_NVFP4};
        char *a = path_join(GOLDEN, name), *b = twin(a, name, "--perturb 5");
        struct model *m = open_on_device(a, how), *fresh = open_on_device(b, how);
        check_update(m, fresh, a, b);
        model_close(m);
        model_close(fresh);
        free(a);
        free(b);
    }
}

/* What a GPU holds from an upload is in no file: an update over it keeps a copy here, and puts it back. */
static void test_updates_over_an_upload(void **state)
{
    (void)state;
    NEED_DEVICE;
    if (!twins_are_possible())
        skip();
    static const enum device_backend backend[] = {DEVICE_BACKEND_AUTO, DEVICE_BACKEND_CUBLASLT_NVFP4,
                                                  DEVICE_BACKEND_REFERENCE};
    static const char a[] = GOLDEN "qwen3_moe-modelopt";
    char *b = twin(a, "uploaded", "--perturb 5");
    struct nyb_err err;
    for (size_t i = 0; i < COUNT_OF(backend); i++) {
        struct model *m = open_on_device(a, (struct how){.backend = backend[i]});
        struct update_upload *up = upload_file(b, NULL, SIZE_MAX);
        struct update_facts facts;
        struct update *u;
        const struct update_options o = {.upload = up};
        golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
        golden_must(update_stage(u, &err), &err);
        golden_must(update_commit(u, &err), &err);
        update_close(u);
        upload_close(up);
        assert_checksum(m, b);
        for (enum update_point point = UPDATE_AT_READ; point <= UPDATE_AT_COMMIT; point++) {
            assert_int_equal(update_to(m, a, &point, &err), NYB_E_IO);
            assert_checksum(m, b);
        }
        golden_must(update_to(m, a, NULL, &err), &err);
        assert_checksum(m, a);
        model_close(m);
    }
    free(b);
}

/* ---- shared experts that lie behind the others --------------------------------------------------------- */

static struct model *open_on_cpu(const char *folder, uint64_t seed)
{
    struct nyb_err err;
    struct model *m;
    const struct model_options o = {.folder = folder,
                                    .load_format = LOAD_DUMMY,
                                    .dummy_seed = seed,
                                    .compute = COMPUTE_BF16,
                                    .n_thread = 1,
                                    .kv_type = MODEL_KV_AUTO};
    golden_must(model_open(&m, &o, &err), &err);
    return m;
}

static void count_experts(void *arg, int layer, const char *name, uint64_t ns)
{
    (void)ns;
    *(int *)arg += layer == 1 && strcmp(name, "experts") == 0;
}

/* A layer's experts and its shared ones are one launch, and not two. */
static void assert_one_launch(struct model *m)
{
    struct nyb_err err;
    struct talk t;
    int first[SEQ_MAX] = {0}, n = 0;
    const struct model_probe counting = {.arg = &n, .stage = count_experts};
    begin_talk(&t, model_config(m)->vocab, 1, -1);
    probe_of_step = &counting;
    golden_must(step(m, &t, first, t.logits, NULL, &err), &err);
    probe_of_step = NULL;
    assert_int_equal(n, 1);
    free(t.logits);
}

static void assert_same_values(struct model *m, struct model *cpu)
{
    static const char *const name[] = {
        "shared_experts.gate_proj", "shared_experts.up_proj", "shared_experts.down_proj",
        "experts.5.gate_proj",      "experts.5.up_proj",      "experts.5.down_proj",
    };
    for (size_t i = 0; i < COUNT_OF(name); i++) {
        struct nyb_err err;
        struct readback a, b;
        char *whole = mem_printf("model.layers.1.mlp.%s", name[i]);
        golden_must(readback_values(&a, m, whole, SIZE_MAX, &err), &err);
        golden_must(readback_values(&b, cpu, whole, SIZE_MAX, &err), &err);
        assert_true(a.n > 0 && a.n == b.n);
        assert_memory_equal(a.value, b.value, a.n * sizeof(*a.value));
        free(a.value);
        free(b.value);
        free(whole);
    }
}

static void update_to_random(struct model *m, const char *folder, uint64_t seed)
{
    struct nyb_err err;
    struct update *u;
    struct update_facts facts;
    const struct update_options o = {.folder = folder, .load_format = LOAD_DUMMY, .dummy_seed = seed};
    golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
    golden_must(update_stage(u, &err), &err);
    golden_must(update_commit(u, &err), &err);
    update_close(u);
}

/* One sequence, of which every step but the first is one row. */
static void assert_same_alone(struct model *m, struct model *apart)
{
    struct talk a = talk_on(m, 1, -1), b = talk_to(apart, 1, -1);
    assert_alike(&a, &b, (size_t)model_config(m)->vocab);
    free(a.logits);
    free(b.logits);
}

/* What it says is what the kernels say that run the shared experts apart, and what it holds is what the CPU
 * holds, before an update and after it, under the graphs of before. */
static void check_joined(const char *folder)
{
    struct model *m = open_on_device(folder, (struct how){.seed = 1});
    size_t n = 3 * (size_t)model_config(m)->vocab; /* of the prompts */
    struct talk first = talk_to(m, 3, -1);
    assert_one_launch(m);
    for (uint64_t seed = 1; seed <= 2; seed++) {
        if (seed > 1)
            update_to_random(m, folder, seed);
        struct model *apart = open_on_device(folder,
                                             (struct how){.seed = seed, .backend = DEVICE_BACKEND_REFERENCE}),
                     *cpu = open_on_cpu(folder, seed);
        struct talk a = talk_on(m, 3, -1), b = talk_to(apart, 3, -1);
        assert_true(golden_error(a.logits, b.logits, n) < 0.02);
        assert_true((golden_error(a.logits, first.logits, n) > 0.1) == (seed > 1));
        assert_same_alone(m, apart);
        assert_same_values(m, cpu);
        model_close(apart);
        model_close(cpu);
        free(a.logits);
        free(b.logits);
    }
    free(first.logits);
    model_close(m);
}

static void test_joined_shared_experts(void **state)
{
    (void)state;
    NEED_DEVICE;
    for (int n_shared = 1; n_shared <= 2; n_shared++) {
        char *folder = shared_experts_folder(64, n_shared);
        check_joined(folder);
        free(folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checksums_and_values),   cmocka_unit_test(test_checksums_of_odd_scales),
        cmocka_unit_test(test_checksums_beside_steps), cmocka_unit_test(test_updates_keep_graphs),
        cmocka_unit_test(test_updates_over_an_upload), cmocka_unit_test(test_joined_shared_experts),
    };
    return cmocka_run_group_tests(tests, make_workshop, drop_workshop);
}
