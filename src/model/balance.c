/* Where experts should be, from what they have to do. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "model/placement.h"

/* A copy to be given to a rank. */
struct item {
    int expert;
    double load;
};

struct planning {
    const struct placement *now;
    const double *load;
    int *n_copy;       /* (n_expert) */
    struct item *item; /* (n_slot)   */
    double *rank_load; /* (n_rank)   */
    int *n_given;      /* (n_rank)   */
    bool *has;         /* (n_rank, n_expert) */
};

/* ---- copies -------------------------------------------------------------------------------------- */

/* More copies than ranks are of no use. */
static int busiest(const struct planning *p)
{
    int best = -1;
    for (int e = 0; e < p->now->n_expert; e++)
        if (p->n_copy[e] < p->now->n_rank &&
            (best < 0 || p->load[e] * p->n_copy[best] > p->load[best] * p->n_copy[e]))
            best = e;
    return best;
}

static int by_load(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->load != y->load)
        return x->load > y->load ? -1 : 1;
    return (x->expert > y->expert) - (x->expert < y->expert);
}

static void make_copies(struct planning *p)
{
    int n = 0;
    for (int e = 0; e < p->now->n_expert; e++)
        p->n_copy[e] = 1;
    for (int i = p->now->n_expert; i < p->now->n_slot; i++)
        p->n_copy[busiest(p)]++;
    for (int e = 0; e < p->now->n_expert; e++)
        for (int i = 0; i < p->n_copy[e]; i++)
            p->item[n++] = (struct item){e, p->load[e] / p->n_copy[e]};
    qsort(p->item, (size_t)n, sizeof(*p->item), by_load);
}

/* ---- ranks --------------------------------------------------------------------------------------- */

static bool has(const struct planning *p, int rank, int expert)
{
    return p->has[(size_t)rank * (size_t)p->now->n_expert + (size_t)expert];
}

static int capacity(const struct planning *p, int rank)
{
    return placement_slots(rank, p->now->n_rank, p->now->n_slot).count;
}

static bool had(const struct planning *p, int rank, int expert)
{
    struct shard_range own = placement_slots(rank, p->now->n_rank, p->now->n_slot);
    for (int s = own.begin; s < own.begin + own.count; s++)
        if (p->now->expert[s] == expert)
            return true;
    return false;
}

/* Of equally loaded ranks the one that has the expert already: it need not travel. A second copy on one rank
 * is a slot lost, but may be the only one left at the end. */
static int lightest(const struct planning *p, int expert, bool twice)
{
    int best = -1;
    for (int r = 0; r < p->now->n_rank; r++) {
        if (p->n_given[r] == capacity(p, r) || (!twice && has(p, r, expert)))
            continue;
        if (best < 0 || p->rank_load[r] < p->rank_load[best] ||
            (p->rank_load[r] <= p->rank_load[best] && had(p, r, expert) && !had(p, best, expert)))
            best = r;
    }
    return best;
}

/* given (n_slot): each rank's experts in its slots, in any order. */
static void give_out(struct planning *p, int16_t *given)
{
    for (int i = 0; i < p->now->n_slot; i++) {
        const struct item *t = &p->item[i];
        int r = lightest(p, t->expert, false);
        if (r < 0)
            r = lightest(p, t->expert, true);
        given[placement_slots(r, p->now->n_rank, p->now->n_slot).begin + p->n_given[r]++] =
            (int16_t)t->expert;
        p->rank_load[r] += t->load;
        p->has[(size_t)r * (size_t)p->now->n_expert + (size_t)t->expert] = true;
    }
}

/* One rank's slots: what is there already keeps its slot. */
static void keep_places(const int16_t *now, const int16_t *given, int n, int16_t *expert)
{
    bool *placed = mem_alloc((size_t)n + 1, sizeof(*placed)); /* of given */
    for (int s = 0; s < n; s++) {
        expert[s] = -1;
        for (int i = 0; i < n && expert[s] < 0; i++)
            if (!placed[i] && given[i] == now[s]) {
                expert[s] = given[i];
                placed[i] = true;
            }
    }
    for (int s = 0, i = 0; s < n; s++) {
        if (expert[s] >= 0)
            continue;
        while (placed[i])
            i++;
        expert[s] = given[i++];
    }
    free(placed);
}

void balance_plan(const struct placement *now, const double *load, int16_t *expert)
{
    size_t n_expert = (size_t)now->n_expert, n_slot = (size_t)now->n_slot, n_rank = (size_t)now->n_rank;
    struct planning p = {.now = now,
                         .load = load,
                         .n_copy = mem_alloc(n_expert, sizeof(*p.n_copy)),
                         .item = mem_alloc(n_slot, sizeof(*p.item)),
                         .rank_load = mem_alloc(n_rank, sizeof(*p.rank_load)),
                         .n_given = mem_alloc(n_rank, sizeof(*p.n_given)),
                         .has = mem_alloc(n_rank * n_expert, sizeof(*p.has))};
    int16_t *given = mem_alloc(n_slot, sizeof(*given));
    make_copies(&p);
    give_out(&p, given);
    for (int r = 0; r < now->n_rank; r++) {
        struct shard_range own = placement_slots(r, now->n_rank, now->n_slot);
        keep_places(now->expert + own.begin, given + own.begin, own.count, expert + own.begin);
    }
    free(p.n_copy);
    free(p.item);
    free(p.rank_load);
    free(p.n_given);
    free(p.has);
    free(given);
}

/* ---- judging ------------------------------------------------------------------------------------- */

double balance_of(const struct placement *p, const int16_t *expert, const double *load)
{
    double most = 0, sum = 0;
    int *n_copy = mem_alloc((size_t)p->n_expert, sizeof(*n_copy));
    for (int s = 0; s < p->n_slot; s++)
        n_copy[expert[s]]++;
    for (int r = 0; r < p->n_rank; r++) {
        struct shard_range own = placement_slots(r, p->n_rank, p->n_slot);
        double rank = 0;
        for (int s = own.begin; s < own.begin + own.count; s++)
            rank += load[expert[s]] / n_copy[expert[s]];
        most = rank > most ? rank : most;
        sum += rank;
    }
    free(n_copy);
    return sum > 0 ? most * p->n_rank / sum : 1;
}

/* ---- the way ------------------------------------------------------------------------------------- */

/* A slot that holds the expert; of the same rank, if there is one: then nothing has to travel. */
static int source_of(const struct placement *now, int expert, int to)
{
    int rank = placement_rank(now, to);
    for (int i = now->first[expert]; i < now->first[expert + 1]; i++)
        if (placement_rank(now, now->copy[i]) == rank)
            return now->copy[i];
    return now->copy[now->first[expert]];
}

/* Where the expert is and is not to stay. */
static int leaving_slot(const struct placement *now, const int16_t *target, int expert)
{
    for (int i = now->first[expert]; i < now->first[expert + 1]; i++)
        if (target[now->copy[i]] != expert)
            return now->copy[i];
    return -1;
}

/* First what only overwrites a copy that is elsewhere too. When there is nothing of that kind left, each
 * expert in an unsettled slot is the only one of its name; all of them are wanted, and the settled slots have
 * none of them, so that unsettled slots want just one another's: exchanges settle them. */
bool balance_next(const struct placement *now, const int16_t *target, struct placement_move *move)
{
    int unsettled = -1;
    for (int s = 0; s < now->n_slot; s++) {
        if (now->expert[s] == target[s])
            continue;
        unsettled = unsettled < 0 ? s : unsettled;
        if (placement_copies(now, now->expert[s]) == 1)
            continue;
        *move = (struct placement_move){.from = source_of(now, target[s], s), .to = s};
        return true;
    }
    if (unsettled < 0)
        return false;
    *move = (struct placement_move){
        .from = leaving_slot(now, target, target[unsettled]), .to = unsettled, .exchange = true};
    ASSERT(move->from >= 0);
    return true;
}
