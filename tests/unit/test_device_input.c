/* A batch as a GPU gets it: every row in one tile or alone, padding that does no harm, everything where the
 * shape says it is. */
#include <string.h>

#include "base/mem.h"
#include "model/device_state.h"
#include "test.h"

#define SEQ_MAX 12
#define ROW_MAX 1200
#define BLOCKS  5

struct made {
    struct batch b;
    int32_t tok[ROW_MAX], pos[ROW_MAX], slot[ROW_MAX], start[SEQ_MAX + 1], out[SEQ_MAX],
        table[SEQ_MAX * BLOCKS];
};

/* Sequences of so many rows, after `past` tokens each. */
static void make_batch(struct made *m, const int *n_row, int n_seq, int past)
{
    int n = 0;
    memset(m, 0, sizeof(*m));
    for (int i = 0; i < n_seq; i++) {
        for (int j = 0; j < n_row[i]; j++, n++) {
            assert_true(n < ROW_MAX);
            m->tok[n] = 100 + n;
            m->pos[n] = past + j;
            m->slot[n] = 7 * n + 1;
        }
        m->start[i + 1] = n;
        m->out[i] = n - 1;
        for (int b = 0; b < BLOCKS; b++)
            m->table[i * BLOCKS + b] = i * 10 + b;
    }
    m->b = (struct batch){.n_seq = n_seq,
                          .n_tok = n,
                          .n_block_max = BLOCKS,
                          .n_out = n_seq,
                          .tok = m->tok,
                          .pos = m->pos,
                          .slot = m->slot,
                          .seq_start = m->start,
                          .block_table = m->table,
                          .out_row = m->out};
}

static int seq_of(const struct batch *b, int row)
{
    int seq = 0;
    while (b->seq_start[seq + 1] <= row)
        seq++;
    return seq;
}

static void mark(const struct batch *b, const struct cuda_tile *t, int n, int least, int most, int *seen)
{
    for (int i = 0; i < n; i++) {
        assert_in_range(t[i].n_row, least, most);
        for (int r = t[i].row; r < t[i].row + t[i].n_row; r++) {
            assert_in_range(r, 0, b->n_tok - 1);
            assert_int_equal(seq_of(b, r), t[i].seq);
            seen[r]++;
        }
    }
}

static void check(const struct made *m, const struct device_shape *s)
{
    const struct batch *b = &m->b;
    struct device_input in;
    size_t bytes = device_input_bytes(s, b);
    uint8_t *at = malloc(bytes); /* exactly: the address sanitizer sees what is written behind */
    assert_non_null(at);
    memset(at, 0xa5, bytes);
    device_input_write(s, b, at);
    size_t head = device_input_layout(s, at, &in);
    assert_int_equal(bytes - head, (size_t)b->n_seq * BLOCKS * sizeof(int32_t));
    assert_memory_equal(in.table, m->table, bytes - head);
    assert_memory_equal(in.tok, m->tok, (size_t)b->n_tok * sizeof(int32_t));
    assert_memory_equal(in.pos, m->pos, (size_t)b->n_tok * sizeof(int32_t));
    assert_memory_equal(in.slot, m->slot, (size_t)b->n_tok * sizeof(int32_t));
    assert_memory_equal(in.out_row, m->out, (size_t)b->n_out * sizeof(int32_t));
    assert_int_equal(in.count[COUNT_TOK], b->n_tok);
    assert_int_equal(in.count[COUNT_OUT], b->n_out);
    assert_int_equal(in.count[COUNT_STRIDE], BLOCKS);
    assert_in_range(in.count[COUNT_SINGLE], 0, s->n_single);
    assert_in_range(in.count[COUNT_TILE], 0, s->n_tile);
    for (int i = b->n_tok; i < s->n_row; i++)
        assert_true(in.tok[i] == 0 && in.pos[i] == 0 && in.slot[i] == 0);
    for (int i = b->n_out; i < s->n_out; i++)
        assert_int_equal(in.out_row[i], 0);
    int seen[ROW_MAX] = {0};
    mark(b, in.single, in.count[COUNT_SINGLE], 1, 1, seen);
    mark(b, in.tile, in.count[COUNT_TILE], 1, CUDA_TILE_TOKENS, seen);
    for (int i = 0; i < b->n_tok; i++)
        assert_int_equal(seen[i], 1);
    free(at);
}

/* Tiles of a sequence name its first image, and the next sequence's begin behind the last one's. */
static void check_images(const struct made *m, const struct device_shape *s, int half)
{
    const struct batch *b = &m->b;
    struct device_input in;
    size_t bytes = device_input_bytes(s, b);
    uint8_t *at = calloc(1, bytes);
    assert_non_null(at);
    device_input_write(s, b, at);
    device_input_layout(s, at, &in);
    struct device_part part = device_part_of(s, at, half);
    int next = 0, first = 0;
    for (int t = 0; t < *part.tile_count; t++) {
        const struct cuda_tile *tile = &part.tile[t];
        first = t == 0 || tile->seq != part.tile[t - 1].seq ? next : first;
        assert_int_equal(tile->image, first);
        next = first + (part.pos[tile->row + tile->n_row - 1] + CUDA_IMAGE_KEYS) / CUDA_IMAGE_KEYS;
    }
    assert_int_equal(part.n_image, next);
    free(at);
}

static void test_images(void **state)
{
    (void)state;
    static struct made m;
    make_batch(&m, (const int[]){1, 70, 600, 1, 200}, 5, 500);
    struct device_shape s = device_shape_of(&m.b, 0);
    assert_int_equal(s.n_image, 5 + 9 + 6);
    check_images(&m, &s, -1);
    s = device_shape_of(&m.b, 192); /* 121 rows of the third sequence before the cut */
    assert_int_equal(s.image_cut, 5 + 5);
    assert_int_equal(s.n_image, 10 + 9 + 6);
    check_images(&m, &s, 0);
    check_images(&m, &s, 1);
    make_batch(&m, (const int[]){64, 64, 64, 64, 64, 64, 64, 64}, 8, 0); /* one each */
    assert_int_equal(device_shape_of(&m.b, 0).n_image, 0);
    make_batch(&m, (const int[]){600}, 1, 0); /* five in all */
    assert_int_equal(device_shape_of(&m.b, 0).n_image, 0);
    make_batch(&m, (const int[]){2}, 1, 1022);
    assert_int_equal(device_shape_of(&m.b, 0).n_image, 8);
    make_batch(&m, (const int[]){2}, 1, 894);
    assert_int_equal(device_shape_of(&m.b, 0).n_image, 0);
}

static void test_exact_shapes(void **state)
{
    (void)state;
    static const int rows[][SEQ_MAX] = {
        {1}, {64}, {65}, {1, 1, 1}, {2, 1, 63}, {1, 200, 1, 64, 128, 3, 1, 1, 1, 500, 1, 2}, {129, 127, 1}};
    static const int n_seq[] = {1, 1, 1, 3, 3, 12, 3};
    for (size_t i = 0; i < COUNT_OF(n_seq); i++) {
        static struct made m;
        make_batch(&m, rows[i], n_seq[i], 0);
        struct device_shape s = device_shape_of(&m.b, 0);
        assert_int_equal(s.n_row, m.b.n_tok);
        assert_int_equal(s.n_out, n_seq[i]);
        check(&m, &s);
    }
}

/* Parts of split attention cover the longest sequence of one row. */
static void test_splits(void **state)
{
    (void)state;
    static const int past[] = {0, CUDA_SPLIT_KEYS - 1, CUDA_SPLIT_KEYS, 10 * CUDA_SPLIT_KEYS + 5};
    static const int split[] = {1, 1, 2, 11}, one[] = {1}, many[] = {70};
    for (size_t i = 0; i < COUNT_OF(past); i++) {
        static struct made m;
        make_batch(&m, one, 1, past[i]);
        assert_int_equal(device_shape_of(&m.b, 0).n_split, split[i]);
        make_batch(&m, many, 1, past[i]);
        assert_int_equal(device_shape_of(&m.b, 0).n_split, 1);
    }
}

static void test_padded_shapes(void **state)
{
    (void)state;
    static const int ones[SEQ_MAX] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (int n = 1; n <= SEQ_MAX; n++) {
        static struct made m;
        make_batch(&m, ones, n, 40);
        for (int pad = n; pad <= 2 * SEQ_MAX; pad++) {
            const struct device_shape s = {.n_row = pad, .n_out = pad, .n_single = pad, .n_split = 4};
            check(&m, &s);
        }
    }
}

/* Of a step that is cut: every row in one tile of its half, counted from the half's first row, or alone. */
static void check_half(const struct made *m, const struct device_shape *s, uint8_t *at, int half, int *seen)
{
    const struct device_part p = device_part_of(s, at, half);
    int n = m->b.n_tok < s->cut ? m->b.n_tok : s->cut;
    assert_int_equal(p.first, half ? s->cut : 0);
    assert_int_equal(p.n_row, half ? s->n_row - s->cut : s->cut);
    assert_int_equal(*p.count, half ? m->b.n_tok - n : n);
    assert_in_range(*p.single_count, 0, p.n_single);
    assert_in_range(*p.tile_count, 0, p.n_tile);
    assert_memory_equal(p.tok, m->tok + p.first, (size_t)*p.count * sizeof(int32_t));
    assert_memory_equal(p.pos, m->pos + p.first, (size_t)*p.count * sizeof(int32_t));
    assert_memory_equal(p.slot, m->slot + p.first, (size_t)*p.count * sizeof(int32_t));
    struct cuda_tile all[ROW_MAX];
    for (int i = 0; i < *p.single_count + *p.tile_count; i++) {
        all[i] = i < *p.single_count ? p.single[i] : p.tile[i - *p.single_count];
        assert_in_range(all[i].row, 0, *p.count - all[i].n_row);
        all[i].row += p.first;
    }
    mark(&m->b, all, *p.single_count, 1, 1, seen);
    mark(&m->b, all + *p.single_count, *p.tile_count, 1, CUDA_TILE_TOKENS, seen);
}

static void check_cut(const struct made *m, const struct device_shape *s)
{
    int seen[ROW_MAX] = {0};
    uint8_t *at = malloc(device_input_bytes(s, &m->b));
    assert_non_null(at);
    device_input_write(s, &m->b, at);
    for (int half = 0; half < 2; half++)
        check_half(m, s, at, half, seen);
    for (int i = 0; i < m->b.n_tok; i++)
        assert_int_equal(seen[i], 1);
    free(at);
}

static void test_cut_steps(void **state)
{
    (void)state;
    static const int rows[][SEQ_MAX] = {
        {65}, {1, 1, 1}, {2, 1, 63}, {1, 200, 1, 64, 128, 3, 1, 1, 1, 500, 1, 2}, {129, 127, 1}};
    static const int n_seq[] = {1, 3, 3, 12, 3};
    static struct made m;
    for (size_t i = 0; i < COUNT_OF(n_seq); i++) {
        make_batch(&m, rows[i], n_seq[i], 0);
        for (int cut = 1; cut < m.b.n_tok; cut += cut < 70 ? 1 : 13) {
            struct device_shape s = device_shape_of(&m.b, cut);
            assert_int_equal(s.n_single, device_shape_of(&m.b, 0).n_single); /* the same kernels */
            check_cut(&m, &s);
        }
    }
    static const int ones[SEQ_MAX] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (int n = 1; n <= SEQ_MAX; n++) { /* padded, also up to where the second half has no rows */
        make_batch(&m, ones, n, 40);
        const struct device_shape s = {
            .n_row = 16, .n_out = 16, .n_single = 16, .n_split = 4, .cut = 8, .single_cut = 8};
        check_cut(&m, &s);
    }
}

/* Halves begin where kernels can read them, and long ones where a tile of attention would. */
static void test_where_steps_are_cut(void **state)
{
    (void)state;
    for (int n = 0; n < 3000; n++) {
        int cut = device_cut(n, n / 2);
        assert_true(cut % 8 == 0 && cut <= n / 2 && (n < 16 || cut > 0));
        assert_true(n < 256 || (cut % CUDA_TILE_TOKENS == 0 && n / 2 - cut < CUDA_TILE_TOKENS));
    }
    assert_int_equal(device_cut(100, 0), 0);
}

/* Of sums that take twice as long on half as many SMs: few where arithmetic is long, many where they are. */
static void test_sm_for_sums(void **state)
{
    (void)state;
    const struct device_side s = {
        .n = 3, .n_sm = {4, 16, 32}, .bytes = 1e6, .on_all = 10e-6, .on = {160e-6, 40e-6, 20e-6}};
    const struct device_side none = {0};
    assert_int_equal(device_side_sm(&s, 132, 100e6, 20000e-6), 4); /* 19 ms beside 16 */
    assert_int_equal(device_side_sm(&s, 132, 100e6, 6000e-6), 16); /* 5 beside 16, 4 or 2 */
    assert_int_equal(device_side_sm(&s, 132, 100e6, 2500e-6), 32); /* 1.5 beside 4 or 2 */
    assert_int_equal(device_side_sm(&s, 132, 100e6, 900e-6), 0);   /* less than the sums alone */
    assert_int_equal(device_side_sm(&s, 132, 100e6, 0), 0);
    assert_int_equal(device_side_sm(&none, 132, 100e6, 1), 0);
}

/* Halves that are too short for it, or too long for a slot, are not sent; slots stay below what is allowed.
 */
static void test_what_copy_engines_send(void **state)
{
    (void)state;
    const struct model_config c = {.hidden = 1024};
    struct device d = {.config = &c, .option = {.max_tokens = 8192}};
    assert_int_equal(device_sent_bytes(&d, 1024, 2), (8192 / 2 + CUDA_TILE_TOKENS) * 4096);
    assert_true(CUDA_SEND_SLOTS * 7 * device_sent_bytes(&d, 32768, 8) <= (size_t)1 << 30);
    assert_false(device_sends(&d, 4096, 4096)); /* there are no slots */
    d.sent = (struct device_sent){.bytes = 4100 * 4096, .from = 100 * 4096};
    for (int cut = 0; cut < 8300; cut++) {
        int less = cut < 8200 - cut ? cut : 8200 - cut;
        assert_int_equal(cut <= 8200 && device_sends(&d, cut, 8200 - cut), less == 4100);
        assert_int_equal(device_sends(&d, cut, 101), cut >= 100 && cut <= 4100);
    }
    d.sent.from = SIZE_MAX;
    assert_false(device_sends(&d, 4096, 4096));
    d.option.max_tokens = 40; /* steps so short that a half may be nearly all of one */
    assert_int_equal(device_sent_bytes(&d, 1024, 2), 40 * 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_shapes), cmocka_unit_test(test_images),
        cmocka_unit_test(test_splits),       cmocka_unit_test(test_padded_shapes),
        cmocka_unit_test(test_cut_steps),    cmocka_unit_test(test_where_steps_are_cut),
        cmocka_unit_test(test_sm_for_sums),  cmocka_unit_test(test_what_copy_engines_send),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
