/* A model whose cache can be checked: the "KV" of a token is a hash of all tokens up to it, computed from the
 * cached hash of the token before, and the logits are drawn from that hash. A block mapped wrongly,
 * overwritten too early, matched to other tokens, kept from older weights or looked for at a rank that does
 * not have it gives other tokens than the same request alone. */
#ifndef NYB_FAKE_RUNNER_H
#define NYB_FAKE_RUNNER_H

#include "engine/runner.h"
#include "engine/sampler.h"

#define FAKE_VOCAB 32

struct fake {
    uint64_t *kv; /* (n_rank or 1, n_block, KV_BLOCK): of each block, only a sequence's home has its part */
    int n_block, n_rank;
    int rows_at[4]; /* of the last step, at each rank */
    uint64_t generation;
    uint64_t fail_rng; /* fail_one_in > 0: some steps fail, half-way through */
    int fail_one_in;
    int max_tok, max_seq;
    struct sampler *sampler; /* it draws with this itself (draw of struct runner), or NULL */
    float *logits;           /* then: (max_tok, FAKE_VOCAB)                              */
    int n_drawn, n_left;     /* rows that it drew, and that it left to others            */
};

static inline uint64_t fake_mix(uint64_t before, int32_t tok, uint64_t generation)
{
    const uint64_t k1 = 0x9e3779b97f4a7c15u, k2 = 0xd1342543de82ef95u;
    uint64_t state = before * 31 + (uint64_t)tok * k1 + generation * k2;
    return test_random(&state);
}

static inline void fake_logits(uint64_t h, float *logits)
{
    for (int v = 0; v < FAKE_VOCAB; v++)
        logits[v] = 3 * test_random_float(&h);
}

static enum nyb_code fake_reserve(void *self, int n_block, struct nyb_err *err)
{
    struct fake *f = self;
    (void)err;
    int n_slot = n_block * KV_BLOCK * (f->n_rank > 1 ? f->n_rank : 1);
    free(f->kv);
    f->n_block = n_block;
    f->kv = malloc((size_t)n_slot * sizeof(*f->kv));
    assert_non_null(f->kv);
    for (int i = 0; i < n_slot; i++)
        f->kv[i] = UINT64_MAX - (uint64_t)i;
    return NYB_OK;
}

/* What the home of a sequence has cached. */
static uint64_t *fake_kv(const struct fake *f, const struct batch *b, int seq)
{
    return f->kv + (b->home ? (size_t)b->home[seq] * (size_t)f->n_block * KV_BLOCK : 0);
}

static enum nyb_code fake_forward(void *self, const struct batch *b, float *logits, struct nyb_err *err)
{
    struct fake *f = self;
    bool fails = f->fail_one_in > 0 && test_random(&f->fail_rng) % (uint64_t)f->fail_one_in == 0;
    assert_true(b->n_seq > 0 && b->n_seq <= f->max_seq && b->n_tok <= f->max_tok);
    assert_int_equal(b->seq_start[0], 0);
    assert_int_equal(b->seq_start[b->n_seq], b->n_tok);
    assert_true((b->home != NULL) == (f->n_rank > 1));
    memset(f->rows_at, 0, sizeof(f->rows_at));
    for (int i = 0; i < b->n_seq; i++) {
        const int32_t *table = b->block_table + (size_t)i * (size_t)b->n_block_max;
        assert_true(!b->home || (b->home[i] >= 0 && b->home[i] < f->n_rank));
        uint64_t *kv = fake_kv(f, b, i);
        f->rows_at[b->home ? b->home[i] : 0] += b->seq_start[i + 1] - b->seq_start[i];
        assert_true(b->seq_start[i] < b->seq_start[i + 1]);
        for (int row = b->seq_start[i]; row < b->seq_start[i + 1]; row++) {
            int p = b->pos[row], slot = table[p / KV_BLOCK] * KV_BLOCK + p % KV_BLOCK;
            assert_true(table[p / KV_BLOCK] >= 0 && table[p / KV_BLOCK] < f->n_block);
            assert_int_equal(b->slot[row], slot);
            assert_true(row == b->seq_start[i] || p == b->pos[row - 1] + 1);
            uint64_t before = p ? kv[table[(p - 1) / KV_BLOCK] * KV_BLOCK + (p - 1) % KV_BLOCK] : 1;
            kv[slot] = fake_mix(before, b->tok[row], f->generation);
        }
        if (fails && i == b->n_seq / 2)
            return err_set(err, NYB_E_INTERNAL, "the fake model fails on purpose");
    }
    for (int i = 0, seq = 0; i < b->n_out; i++) {
        while (b->out_row[i] >= b->seq_start[seq + 1])
            seq++;
        fake_logits(fake_kv(f, b, seq)[b->slot[b->out_row[i]]], logits + (size_t)i * FAKE_VOCAB);
    }
    return NYB_OK;
}

/* Nobody gets the logits of a row that is drawn. */
static inline enum nyb_code fake_draw(void *self, const struct batch *b, const struct draw *draw,
                                      int32_t *token, float *logits, struct nyb_err *err)
{
    struct fake *f = self;
    TRY(fake_forward(self, b, f->logits, err));
    for (int i = 0; i < b->n_out; i++) {
        float *row = f->logits + (size_t)i * FAKE_VOCAB, *to = logits + (size_t)i * FAKE_VOCAB;
        if (draw[i].wanted) {
            token[i] = sampler_choose(f->sampler, 0, &draw[i], row);
            memset(to, 0xff, FAKE_VOCAB * sizeof(*to));
            f->n_drawn++;
        } else {
            memcpy(to, row, FAKE_VOCAB * sizeof(*to));
            f->n_left++;
        }
    }
    return NYB_OK;
}

static inline struct runner fake_runner(struct fake *f)
{
    return (struct runner){.self = f,
                           .vocab = FAKE_VOCAB,
                           .reserve = fake_reserve,
                           .forward = fake_forward,
                           .draw = f->sampler ? fake_draw : NULL,
                           .most_top_k = FAKE_VOCAB / 2};
}

#endif
