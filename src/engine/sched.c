#include "engine/sched.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static int blocks_for(int n_tok)
{
    return (n_tok + KV_BLOCK - 1) / KV_BLOCK;
}

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static bool is_before(const struct request *a, const struct request *b)
{
    return a->key < b->key || (a->key == b->key && a->number < b->number);
}

enum nyb_code sched_open(struct sched *s, const struct sched_limits *limit, struct kv_map *kv,
                         struct nyb_err *err)
{
    ASSERT(limit->max_num_seqs > 0 && limit->max_num_batched_tokens >= limit->max_num_seqs);
    ASSERT(limit->max_live > 0 && limit->max_score_rows > 0);
    ASSERT(blocks_for(limit->max_len) <= kv_block_count(kv));
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
        .block_table = mem_try_alloc(n_seq * (size_t)blocks_for(limit->max_len), sizeof(int32_t)),
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

/* ---- the waiting heap, the running and the parked list -------------------------------------------- */

static void heap_place(struct sched *s, int at, struct request *r)
{
    s->waiting[at] = r;
    r->heap_at = at;
}

static void heap_rise(struct sched *s, int at, struct request *r)
{
    for (int parent; at > 0 && is_before(r, s->waiting[parent = (at - 1) / 2]); at = parent)
        heap_place(s, at, s->waiting[parent]);
    heap_place(s, at, r);
}

static void heap_sink(struct sched *s, int at, struct request *r)
{
    for (int child; (child = 2 * at + 1) < s->n_waiting; at = child) {
        if (child + 1 < s->n_waiting && is_before(s->waiting[child + 1], s->waiting[child]))
            child++;
        if (!is_before(s->waiting[child], r))
            break;
        heap_place(s, at, s->waiting[child]);
    }
    heap_place(s, at, r);
}

static void waiting_add(struct sched *s, struct request *r)
{
    ASSERT(s->n_waiting < s->limit.max_live);
    r->state = REQUEST_WAITING;
    s->n_holder += r->n_block > 0;
    heap_rise(s, s->n_waiting++, r);
}

static void waiting_remove(struct sched *s, struct request *r)
{
    int at = r->heap_at;
    struct request *last = s->waiting[--s->n_waiting];
    s->n_holder -= r->n_block > 0;
    if (last == r)
        return;
    if (at > 0 && is_before(last, s->waiting[(at - 1) / 2]))
        heap_rise(s, at, last);
    else
        heap_sink(s, at, last);
}

static void running_add(struct sched *s, struct request *r)
{
    ASSERT(s->n_running < s->limit.max_num_seqs);
    int at = s->n_running++;
    for (; at > 0 && is_before(r, s->running[at - 1]); at--)
        s->running[at] = s->running[at - 1];
    s->running[at] = r;
    r->state = REQUEST_RUNNING;
}

static void running_remove(struct sched *s, struct request *r)
{
    int at = 0;
    while (s->running[at] != r)
        at++;
    s->n_running--;
    memmove(s->running + at, s->running + at + 1, (size_t)(s->n_running - at) * sizeof(*s->running));
}

static void parked_add(struct sched *s, struct request *r)
{
    ASSERT(s->n_parked < s->limit.max_live);
    r->state = REQUEST_PARKED;
    r->heap_at = s->n_parked;
    s->parked[s->n_parked++] = r;
}

static void parked_remove(struct sched *s, struct request *r)
{
    struct request *last = s->parked[--s->n_parked];
    s->parked[r->heap_at] = last;
    last->heap_at = r->heap_at;
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
    running_remove(s, r);
    drop_blocks(s, r);
    waiting_add(s, r);
    s->preempted = true;
    s->n_preemption++;
}

/* The last in order of a list's block holders, or NULL. */
static struct request *last_holder(struct request **list, int n)
{
    struct request *last = NULL;
    for (int i = 0; i < n; i++)
        if (list[i]->n_block > 0 && (!last || is_before(last, list[i])))
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
    while (r->n_block < blocks_for(upto)) {
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

/* Prompt tokens still to be scored make a row of logits each. */
static bool is_scoring(const struct request *r)
{
    return r->n_scored < r->n_prompt;
}

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
    if (is_scoring(r))
        s->score_left -= min_int(n_tok, s->score_left);
}

/* How much of a prompt goes into this step: where others wait for the rest of the step, half of it, so that a
 * long prompt does not keep short ones from starting. What nobody took goes to the first in plan_extend. */
static int chunk_of(const struct sched *s, const struct request *r, bool others)
{
    int chunk = others ? (s->tokens_left + 1) / 2 : s->tokens_left;
    if (is_scoring(r))
        chunk = min_int(chunk, s->score_left);
    return min_int(chunk, needs(r));
}

static void plan_decodes(struct sched *s)
{
    for (int i = 0; i < s->n_running;) {
        struct request *r = s->running[i];
        if (needs(r) == 1 && !is_scoring(r)) {
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
    int n = is_scoring(r)
                ? 0
                : kv_match_prefix(s->kv, &chain, r->tok, r->n_tok - 1, r->block, blocks_for(r->n_max));
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
    if (!is_scoring(r))
        r->n_block = kv_match_prefix(s->kv, &r->chain, r->tok, r->n_tok - 1, r->block, blocks_for(r->n_max));
    r->n_sealed = r->n_block;
    r->n_computed = r->n_block * KV_BLOCK;
}

/* Whether all its known tokens fit now, with a block to spare for each one running. If not, idle requests
 * give theirs back: parked ones, and waiting ones, which all come later than the first. */
static bool make_room(struct sched *s, const struct request *r)
{
    int want = blocks_for(r->n_tok) - r->n_block + s->n_running;
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
        if (sched_has_started(s->waiting[i]) && (!first || is_before(s->waiting[i], first)))
            first = s->waiting[i];
    return first;
}

/* Let the first of the waiting run. False: nobody can start in this step. */
static bool admit(struct sched *s)
{
    struct request *r = next_waiting(s);
    if (!r)
        return false;
    waiting_remove(s, r);
    if (!request_has_room(r)) {
        parked_add(s, r);
        return true;
    }
    bool fresh = r->n_block == 0;
    if (fresh)
        match_prefix(s, r);
    int chunk = chunk_of(s, r, s->n_waiting > 0 && s->n_running + 1 < s->limit.max_num_seqs);
    if (chunk <= 0 || !make_room(s, r)) {
        if (fresh)
            drop_blocks(s, r);
        waiting_add(s, r);
        return false;
    }
    if (fresh && !is_scoring(r)) {
        s->prefix_queries += (uint64_t)r->n_tok;
        s->prefix_hits += (uint64_t)r->n_computed;
    }
    if (r->n_cached < 0) {
        r->n_cached = r->n_computed;
        atomic_store_explicit(&r->scheduled_ns, clock_ns(), memory_order_relaxed);
    }
    running_add(s, r);
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
        if (more <= 0 || is_scoring(r))
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
            running_remove(s, r);
            parked_add(s, r);
        }
    }
}

/* ---- the batch ------------------------------------------------------------------------------------ */

static void write_row(struct sched *s, struct sched_row *row, int at, int *n_out)
{
    const struct request *r = row->r;
    int begin = r->n_computed, end = begin + row->n_tok;
    for (int p = begin; p < end; p++) {
        s->tok[at + p - begin] = r->tok[p];
        s->pos[at + p - begin] = p;
        s->slot[at + p - begin] = r->block[p / KV_BLOCK] * KV_BLOCK + p % KV_BLOCK;
    }
    row->out_first = *n_out;
    row->n_score = 0;
    /* The logits of position p score token p + 1. */
    for (int p = r->n_scored - 1; is_scoring(r) && p < end && p + 1 < r->n_prompt; p++) {
        ASSERT(p >= begin);
        s->out_row[(*n_out)++] = at + p - begin;
        row->n_score++;
    }
    row->sample = end == r->n_tok;
    if (row->sample)
        s->out_row[(*n_out)++] = at + row->n_tok - 1;
}

static void write_batch(struct sched *s, struct batch *b)
{
    int n_tok = 0, n_out = 0, n_block_max = 1;
    for (int i = 0; i < s->n_row; i++)
        if (s->row[i].r->n_block > n_block_max)
            n_block_max = s->row[i].r->n_block;
    for (int i = 0; i < s->n_row; i++) {
        const struct request *r = s->row[i].r;
        s->seq_start[i] = n_tok;
        s->home[i] = r->home;
        write_row(s, &s->row[i], n_tok, &n_out);
        n_tok += s->row[i].n_tok;
        int32_t *table = s->block_table + (size_t)i * (size_t)n_block_max;
        memcpy(table, r->block, (size_t)r->n_block * sizeof(*table));
        for (int j = r->n_block; j < n_block_max; j++)
            table[j] = -1;
    }
    s->seq_start[s->n_row] = n_tok;
    ASSERT(n_tok <= s->limit.max_num_batched_tokens);
    ASSERT(n_out <= s->limit.max_num_seqs + s->limit.max_score_rows);
    *b = (struct batch){.n_seq = s->n_row,
                        .n_tok = n_tok,
                        .n_block_max = n_block_max,
                        .n_out = n_out,
                        .tok = s->tok,
                        .pos = s->pos,
                        .slot = s->slot,
                        .seq_start = s->seq_start,
                        .block_table = s->block_table,
                        .out_row = s->out_row,
                        .home = s->limit.n_rank > 1 ? s->home : NULL};
}

/* ---- exported -------------------------------------------------------------------------------------- */

void sched_add(struct sched *s, struct request *r)
{
    if (r->state == REQUEST_NEW) {
        ASSERT(r->n_max <= s->limit.max_len);
        r->number = s->next_number++;
    } else {
        ASSERT(r->state == REQUEST_PARKED);
        parked_remove(s, r);
    }
    waiting_add(s, r);
}

void sched_remove(struct sched *s, struct request *r)
{
    plan_remove(s, r);
    if (r->state == REQUEST_WAITING)
        waiting_remove(s, r);
    else if (r->state == REQUEST_RUNNING)
        running_remove(s, r);
    else if (r->state == REQUEST_PARKED)
        parked_remove(s, r);
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
    write_batch(s, b);
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
        running_remove(s, r);
        drop_blocks(s, r);
        waiting_add(s, r);
    }
}

void sched_check(const struct sched *s)
{
    int n_holder = 0;
    for (int i = 0; i < s->n_waiting; i++) {
        const struct request *r = s->waiting[i];
        ASSERT(r->state == REQUEST_WAITING && r->heap_at == i);
        ASSERT(i == 0 || !is_before(r, s->waiting[(i - 1) / 2]));
        n_holder += r->n_block > 0;
    }
    ASSERT(n_holder == s->n_holder);
    for (int i = 0; i < s->n_running; i++) {
        const struct request *r = s->running[i];
        ASSERT(r->state == REQUEST_RUNNING && (i == 0 || is_before(s->running[i - 1], r)));
        ASSERT(r->n_computed <= r->n_tok && r->n_tok <= r->n_max && r->n_computed <= r->n_block * KV_BLOCK);
    }
    for (int i = 0; i < s->n_parked; i++)
        ASSERT(s->parked[i]->state == REQUEST_PARKED && s->parked[i]->heap_at == i);
    kv_check(s->kv);
}
