/* Slots: which matrices the kernels are told to find in the last cache, and where rows come from that have
 * moved from slot to slot. */
#include "unit/ckpt_files.h"

#include <xxhash.h>

#include "model/expert_facts.h"
#include "model/slots.h"

static void test_matrices_are_near_where_all_slots_leave_a_quarter_of_the_cache(void **state)
{
    (void)state;
    struct slots s;
    struct weight a = {.type = WEIGHT_BF16}, b = {.type = WEIGHT_NVFP4};
    float *vector = NULL;
    slots_init(&s);
    slots_add_matrix(&s, &a, 64, 128, "a");
    slots_add_vector(&s, &vector, 128, 1, "v");
    slots_add_matrix(&s, &b, 32, 64, "b");
    size_t bytes = slots_bytes(&s), enough = (bytes + 2) / 3 * 4;
    assert_int_equal(bytes, weight_data_bytes(WEIGHT_BF16, 64, 128) + 128 * sizeof(float) +
                                weight_data_bytes(WEIGHT_NVFP4, 32, 64));
    slots_mark_near(&s, enough);
    assert_true(a.near && b.near);
    slots_mark_near(&s, enough - 4); /* nor does one that fits alone help */
    assert_false(a.near || b.near);
    slots_mark_near(&s, enough);
    slots_mark_near(&s, 0); /* no cache is known */
    assert_false(a.near || b.near);
    slots_free(&s);
}

/* ---- where rows come from ------------------------------------------------------------------------ */

static void write_checkpoint(const char *folder, const char *name)
{
    struct writer w = {0};
    writer_add(&w, "a", DTYPE_F32, 1, (int64_t[]){8}, NULL);
    writer_add(&w, "b", DTYPE_F32, 1, (int64_t[]){8}, NULL);
    writer_finish(&w, folder, name);
}

static struct origin *open_origin(const char *folder, uint64_t generation)
{
    struct ckpt *c;
    struct nyb_err err;
    if (ckpt_open(&c, folder, 0, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
    return origin_new(c, generation);
}

static bool same(const struct origin *a, const struct origin *b)
{
    bool equal = origin_id_equal(origin_id(a), origin_id(b));
    assert_int_equal(origin_id_equal(origin_id(b), origin_id(a)), equal);
    return equal;
}

static uint64_t hash_of_this_machine(void)
{
    char text[128];
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof(text), f);
    fclose(f);
    assert_in_range(n, 32, 64);
    return XXH3_64bits(text, n);
}

static void test_an_origin_is_its_files_and_not_their_path(void **state)
{
    (void)state;
    char *folder = folder_make(), *path = path_join(folder, "model.safetensors"),
         *aside = path_join(folder, "old");
    write_checkpoint(folder, "model.safetensors");
    struct origin *a = open_origin(folder, 3), *b = open_origin(folder, 3), *later = open_origin(folder, 4);
    assert_int_equal(rename(path, aside), 0);
    write_checkpoint(folder, "model.safetensors"); /* the same bytes under the same name */
    struct origin *replaced = open_origin(folder, 3);
    assert_true(same(a, a) && same(a, b));
    assert_false(same(a, later) || same(a, replaced));
    assert_int_equal(origin_id(a)->machine, hash_of_this_machine());
    struct origin_id copy = *origin_id(a);
    copy.machine++; /* whose copy of the files has its own inodes and times */
    copy.state++;
    assert_true(origin_id_equal(&copy, origin_id(a)));
    copy.files++;
    assert_false(origin_id_equal(&copy, origin_id(a)));
    origin_drop(a);
    origin_drop(b);
    origin_drop(later);
    origin_drop(replaced);
    free(path);
    free(aside);
    folder_drop(folder);
}

/* A rank's slots: vectors of a checkpoint. */
struct rank {
    struct slots slots;
    float *vector[2];
};

static void rank_open(struct rank *r, struct origin *first, struct origin *second)
{
    slots_init(&r->slots);
    for (int i = 0; i < 2; i++) {
        slots_add_vector(&r->slots, &r->vector[i], 8, 0, i ? "b" : "a");
        struct slot *s = &r->slots.slot[i];
        s->origin = origin_share(i ? second : first);
        s->tensor = ckpt_find(origin_ckpt(s->origin), s->name);
    }
}

/* Two slots of a rank change places with those of another one. An origin whose last slot goes first is there
 * for the slot that comes second, and gone once all is done. */
static void test_rows_that_move_find_their_origin_again(void **state)
{
    (void)state;
    char *folder = folder_make();
    write_checkpoint(folder, "model.safetensors");
    struct origin *old[2] = {open_origin(folder, 1), open_origin(folder, 1)},
                  *new[2] = {open_origin(folder, 2), open_origin(folder, 2)};
    struct rank r[2];
    for (int i = 0; i < 2; i++) /* `new` is first on one rank and second on the other */
        rank_open(&r[i], i ? old[i] : new[i], i ? new[i] : old[i]);
    for (int i = 0; i < 2; i++) {
        origin_drop(old[i]);
        origin_drop(new[i]);
    }
    struct expert_facts facts[2][2];
    struct origins_left left[2] = {0};
    for (int i = 0; i < 4; i++)
        facts[i / 2][i % 2] = expert_facts_of(&r[i / 2].slots.slot[i % 2]);
    for (int i = 0; i < 4; i++)
        expert_facts_take(&r[i / 2].slots.slot[i % 2], &facts[1 - i / 2][i % 2], &r[i / 2].slots,
                          &left[i / 2]);
    assert_true(!left[0].lost && !left[1].lost);
    for (int i = 0; i < 4; i++) {
        const struct slot *s = &r[i / 2].slots.slot[i % 2];
        assert_true(origin_id_equal(origin_id(s->origin), &facts[1 - i / 2][i % 2].origin));
        assert_ptr_equal(s->tensor, ckpt_find(origin_ckpt(s->origin), s->name));
    }
    origins_left_drop(&left[0]);
    origins_left_drop(&left[1]);
    /* and one that nobody here has open */
    struct origin *third = open_origin(folder, 3);
    struct rank other;
    rank_open(&other, third, third);
    origin_drop(third);
    facts[0][0] = expert_facts_of(&other.slots.slot[0]);
    expert_facts_take(&r[0].slots.slot[0], &facts[0][0], &r[0].slots, &left[0]);
    assert_string_equal(left[0].lost, "a");
    assert_null(r[0].slots.slot[0].origin);
    assert_null(r[0].slots.slot[0].tensor);
    assert_false(expert_facts_of(&r[0].slots.slot[0]).has_origin);
    origins_left_drop(&left[0]);
    slots_free(&other.slots); /* with its origins */
    slots_free(&r[0].slots);
    slots_free(&r[1].slots);
    folder_drop(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrices_are_near_where_all_slots_leave_a_quarter_of_the_cache),
        cmocka_unit_test(test_an_origin_is_its_files_and_not_their_path),
        cmocka_unit_test(test_rows_that_move_find_their_origin_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
