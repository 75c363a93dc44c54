#include "engine/sched_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

enum nyb_code sched_open(struct sched *s, const struct sched_limits *limit, struct kv_map *kv,
                         struct nyb_err *err)
{
    ASSERT(limit->max_num_seqs > 0 && limit->max_num_batched_tokens >= limit->max_num_seqs);
    ASSERT(limit->max_live > 0 && limit->max_score_rows > 0);
    ASSERT(sched_blocks_for(limit->max_len) <= kv_block_count(kv));
    size_t n_seq = (size_t)limit->max_num_seqs, n_tok = (size_t)limit->max_num_batched_tokens;
    size_t n_live = (size_t)limit->max_live;
    *s = (struct sched){
        .limit = *limit,
        .kv = kv,
        .waiting = mem_try_alloc(n_live, sizeof(struct request *)),
        .running = mem_try_alloc(n_seq, sizeof(struct request *)),
        .parked = mem_try_alloc(n_live, sizeof(struct request *)),
        .row = mem_try_alloc(n_seq, sizeof(struct sched_row)),
        .tok = mem_try_alloc(n_tok, sizeof(int32_t)),
        .pos = mem_try_alloc(n_tok, sizeof(int32_t)),
        .slot = mem_try_alloc(n_tok, sizeof(int32_t)),
        .seq_start = mem_try_alloc(n_seq + 1, sizeof(int32_t)),
        .block_table = mem_try_alloc(n_seq * (size_t)sched_blocks_for(limit->max_len), sizeof(int32_t)),
        .home = mem_try_alloc(n_seq, sizeof(int32_t)),
        .out_row = mem_try_alloc(n_seq + (size_t)limit->max_score_rows, sizeof(int32_t)),
    };
    if (s->waiting && s->running && s->parked && s->row && s->tok && s->pos && s->slot && s->seq_start &&
        s->block_table && s->out_row && s->home)
        return NYB_OK;
    sched_close(s);
    return err_set(err, NYB_E_MEMORY, "no memory for a scheduler of %d sequences with %d tokens",
                   limit->max_num_seqs, limit->max_len);
}

void sched_close(struct sched *s)
{
    free(s->waiting);
    free(s->running);
    free(s->parked);
    free(s->row);
    free(s->tok);
    free(s->pos);
    free(s->slot);
    free(s->seq_start);
    free(s->block_table);
    free(s->out_row);
    free(s->home);
    *s = (struct sched){0};
}

/* ---- blocks -------------------------------------------------------------------------------------- */

/* Last block first: of a prefix that nobody wants again, the far end is forgotten before the beginning. */
static void drop_blocks(struct sched *s, struct request *r)
{
    while (r->n_block > 0)
        kv_drop_block(s->kv, r->block[--r->n_block]);
    r->n_computed = r->n_sealed = 0;
}

/* Take a request out of this step's plan. */
static void plan_remove(struct sched *s, struct request *r)
{
    if (r->row < 0)
        return;
    s->tokens_left += s->row[r->row].n_tok;
    s->n_row--;
    for (int i = r->row; i < s->n_row; i++) {
        s->row[i] = s->row[i + 1];
        s->row[i].r->row = i;
    }
    r->row = -1;
}

static void preempt(struct sched *s, struct request *r)
{
    plan_remove(s, r);
    sched_running_remove(s, r);
    drop_blocks(s, r);
    sched_waiting_add(s, r);
    s->preempted = true;
    s->n_preemption++;
}

/* The last in order of a list's block holders, or NULL. */
static struct request *last_holder(struct request **list, int n)
{
    struct request *last = NULL;
    for (int i = 0; i < n; i++)
        if (list[i]->n_block > 0 && (!last || sched_is_before(last, list[i])))
            last = list[i];
    return last;
}

/* Free some blocks of requests that are not running. */
static bool reclaim_idle(struct sched *s)
{
    struct request *r = last_holder(s->parked, s->n_parked);
    if (!r && s->n_holder > 0) {
        r = last_holder(s->waiting, s->n_waiting);
        s->n_holder--;
    }
    if (!r)
        return false;
    drop_blocks(s, r);
    s->n_preemption++;
    return true;
}

/* Blocks for the first `upto` tokens of a running request. False: it was the last in order itself and has
 * been preempted. The first in order never is, because one request always fits. */
static bool hold_blocks(struct sched *s, struct request *r, int upto)
{
    while (r->n_block < sched_blocks_for(upto)) {
        int32_t b = kv_take_block(s->kv);
        if (b >= 0) {
            r->block[r->n_block++] = b;
            continue;
        }
        if (reclaim_idle(s))
            continue;
        struct request *victim = s->running[s->n_running - 1];
        ASSERT(victim != r || s->n_running > 1);
        preempt(s, victim);
        if (victim == r)
            return false;
    }
    return true;
}

/* ---- the plan ------------------------------------------------------------------------------------ */

static int needs(const struct request *r)
{
    return r->n_tok - r->n_computed;
}

static void plan_add(struct sched *s, struct request *r, int n_tok)
{
    ASSERT(n_tok > 0 && n_tok <= s->tokens_left && n_tok <= needs(r));
    r->row = s->n_row;
    s->row[s->n_row++] = (struct sched_row){.r = r, .n_tok = n_tok};
    s->tokens_left -= n_tok;
    if (sched_is_scoring(r))
        s->score_left -= min_int(n_tok, s->score_left);
}

/* How much of a prompt goes into this step: where others wait for the rest of the step, half of it, so that a
 * long prompt does not keep short ones from starting. What nobody took goes to the first in plan_extend. */
static int chunk_of(const struct sched *s, const struct request *r, bool others)
{
    int chunk = others ? (s->tokens_left + 1) / 2 : s->tokens_left;
    if (sched_is_scoring(r))
        chunk = min_int(chunk, s->score_left);
    return min_int(chunk, needs(r));
}

static void plan_decodes(struct sched *s)
{
    for (int i = 0; i < s->n_running;) {
        struct request *r = s->running[i];
        if (needs(r) == 1 && !sched_is_scoring(r)) {
            if (!hold_blocks(s, r, r->n_tok))
                continue; /* it left the list */
            plan_add(s, r, 1);
        }
        i++;
    }
}

static void plan_prefills(struct sched *s)
{
    int n_left = 0;
    for (int i = 0; i < s->n_running; i++)
        n_left += s->running[i]->row < 0;
    for (int i = 0; i < s->n_running && s->tokens_left > 0;) {
        struct request *r = s->running[i];
        if (r->row < 0) {
            bool others = --n_left > 0 || (s->n_waiting > 0 && s->n_running < s->limit.max_num_seqs);
            int chunk = chunk_of(s, r, others);
            if (chunk > 0 && !hold_blocks(s, r, r->n_computed + chunk))
                continue;
            /* Room can only have grown meanwhile: preempting gives tokens back. */
            if (chunk > 0)
                plan_add(s, r, chunk);
        }
        i++;
    }
}

/* Where a sequence that runs counts as so many rows still to be computed. */
#define RUNNING_ROWS 16

/* Rows that a rank has before it, those of r included, if r lived there. */
static int rows_at(struct sched *s, struct request *r, int rank)
{
    int rows = r->n_tok;
    for (int i = 0; i < s->n_running; i++)
        if (s->running[i]->home == rank)
            rows += needs(s->running[i]) + RUNNING_ROWS;
    struct kv_chain chain;
    kv_chain_start_at(s->kv, &chain, rank);
    int n = sched_is_scoring(r)
                ? 0
                : kv_match_prefix(s->kv, &chain, r->tok, r->n_tok - 1, r->block, sched_blocks_for(r->n_max));
    for (int i = n - 1; i >= 0; i--)
        kv_drop_block(s->kv, r->block[i]);
    return rows - n * KV_BLOCK;
}

/* The rank with the least to do, what it need not compute of r's beginning subtracted. */
static int choose_home(struct sched *s, struct request *r)
{
    int best = 0, least = 0;
    for (int rank = 0; rank < s->limit.n_rank && s->limit.n_rank > 1; rank++) {
        int rows = rows_at(s, r, rank);
        if (rank == 0 || rows < least) {
            best = rank;
            least = rows;
        }
    }
    return best;
}

/* The blocks that the prefix cache has for it. At least one token is left to compute, for its logits. */
static void match_prefix(struct sched *s, struct request *r)
{
    ASSERT(r->n_block == 0 && r->n_computed == 0);
    r->home = choose_home(s, r);
    kv_chain_start_at(s->kv, &r->chain, r->home);
    if (!sched_is_scoring(r))
        r->n_block =
            kv_match_prefix(s->kv, &r->chain, r->tok, r->n_tok - 1, r->block, sched_blocks_for(r->n_max));
    r->n_sealed = r->n_block;
    r->n_computed = r->n_block * KV_BLOCK;
}

/* Whether all its known tokens fit now, with a block to spare for each one running. If not, idle requests
 * give theirs back: parked ones, and waiting ones, which all come later than the first. */
static bool make_room(struct sched *s, const struct request *r)
{
    int want = sched_blocks_for(r->n_tok) - r->n_block + s->n_running;
    while (want > kv_free_count(s->kv) && reclaim_idle(s))
        ;
    return want <= kv_free_count(s->kv);
}

bool sched_has_started(const struct request *r)
{
    return r->n_cached >= 0;
}

/* The first in order of those who may start, or NULL. */
static struct request *next_waiting(const struct sched *s)
{
    if (!s->only_started)
        return s->waiting[0];
    struct request *first = NULL;
    for (int i = 0; i < s->n_waiting; i++)
        if (sched_has_started(s->waiting[i]) && (!first || sched_is_before(s->waiting[i], first)))
            first = s->waiting[i];
    return first;
}

/* Let the first of the waiting run. False: nobody can start in this step. */
static bool admit(struct sched *s)
{
    struct request *r = next_waiting(s);
    if (!r)
        return false;
    sched_waiting_remove(s, r);
    if (!request_has_room(r)) {
        sched_parked_add(s, r);
        return true;
    }
    bool fresh = r->n_block == 0;
    if (fresh)
        match_prefix(s, r);
    int chunk = chunk_of(s, r, s->n_waiting > 0 && s->n_running + 1 < s->limit.max_num_seqs);
    if (chunk <= 0 || !make_room(s, r)) {
        if (fresh)
            drop_blocks(s, r);
        sched_waiting_add(s, r);
        return false;
    }
    if (fresh && !sched_is_scoring(r)) {
        s->prefix_queries += (uint64_t)r->n_tok;
        s->prefix_hits += (uint64_t)r->n_computed;
    }
    if (r->n_cached < 0) {
        r->n_cached = r->n_computed;
        atomic_store_explicit(&r->scheduled_ns, clock_ns(), memory_order_relaxed);
    }
    sched_running_add(s, r);
    bool held = hold_blocks(s, r, r->n_computed + chunk);
    ASSERT(held);
    plan_add(s, r, chunk);
    return true;
}

/* Give what is left of the step to the prompts in it, as far as blocks are free. */
static void plan_extend(struct sched *s)
{
    for (int i = 0; i < s->n_row && s->tokens_left > 0; i++) {
        struct sched_row *row = &s->row[i];
        struct request *r = row->r;
        int end = r->n_computed + row->n_tok;
        int room = (r->n_block + kv_free_count(s->kv)) * KV_BLOCK - end;
        int more = min_int(min_int(r->n_tok - end, s->tokens_left), room);
        if (more <= 0 || sched_is_scoring(r))
            continue;
        bool held = hold_blocks(s, r, end + more);
        ASSERT(held);
        row->n_tok += more;
        s->tokens_left -= more;
    }
}

static void park_stalled(struct sched *s)
{
    for (int i = s->n_running - 1; i >= 0; i--) {
        struct request *r = s->running[i];
        if (!request_has_room(r)) {
            sched_running_remove(s, r);
            sched_parked_add(s, r);
        }
    }
}

/* ---- exported -------------------------------------------------------------------------------------- */

void sched_add(struct sched *s, struct request *r)
{
    if (r->state == REQUEST_NEW) {
        ASSERT(r->n_max <= s->limit.max_len);
        r->number = s->next_number++;
    } else {
        ASSERT(r->state == REQUEST_PARKED);
        sched_parked_remove(s, r);
    }
    sched_waiting_add(s, r);
}

void sched_remove(struct sched *s, struct request *r)
{
    plan_remove(s, r);
    if (r->state == REQUEST_WAITING)
        sched_waiting_remove(s, r);
    else if (r->state == REQUEST_RUNNING)
        sched_running_remove(s, r);
    else if (r->state == REQUEST_PARKED)
        sched_parked_remove(s, r);
    drop_blocks(s, r);
    r->state = REQUEST_DONE;
}

bool sched_plan(struct sched *s, struct batch *b)
{
    for (int i = 0; i < s->n_row; i++)
        s->row[i].r->row = -1;
    s->n_row = 0;
    s->tokens_left = s->limit.max_num_batched_tokens;
    s->score_left = s->limit.max_score_rows;
    s->preempted = false;
    park_stalled(s);
    plan_decodes(s);
    plan_prefills(s);
    while (!s->preempted && s->n_waiting > 0 && s->n_running < s->limit.max_num_seqs && s->tokens_left > 0)
        if (!admit(s))
            break;
    plan_extend(s);
    if (s->n_row == 0)
        return false;
    sched_write_batch(s, b);
    return true;
}

void sched_commit(struct sched *s)
{
    for (int i = 0; i < s->n_row; i++) {
        struct request *r = s->row[i].r;
        r->n_computed += s->row[i].n_tok;
        for (; (r->n_sealed + 1) * KV_BLOCK <= r->n_computed; r->n_sealed++)
            r->block[r->n_sealed] =
                kv_seal_block(s->kv, &r->chain, r->block[r->n_sealed], r->tok + r->n_sealed * KV_BLOCK);
    }
}

void sched_retract_all(struct sched *s)
{
    for (int i = 0; i < s->n_parked; i++)
        drop_blocks(s, s->parked[i]);
    for (int i = 0; i < s->n_waiting; i++)
        drop_blocks(s, s->waiting[i]);
    s->n_holder = 0;
    while (s->n_running > 0) {
        struct request *r = s->running[s->n_running - 1];
        plan_remove(s, r);
        sched_running_remove(s, r);
        drop_blocks(s, r);
        sched_waiting_add(s, r);
    }
}

void sched_check(const struct sched *s)
{
    sched_check_lists(s);
    kv_check(s->kv);
}
