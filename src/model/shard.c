#include "model/shard.h"

#include "base/err.h"

static struct shard_range part(int rank, int size, int n)
{
    int begin = (int)((int64_t)n * rank / size), end = (int)((int64_t)n * (rank + 1) / size);
    return (struct shard_range){begin, end - begin};
}

struct shard_range shard_units_of(int rank, int size, int n)
{
    struct shard_range units = part(rank, size, (n + SHARD_UNIT - 1) / SHARD_UNIT);
    int begin = units.begin * SHARD_UNIT, end = (units.begin + units.count) * SHARD_UNIT;
    begin = begin < n ? begin : n; /* the last unit may be short */
    end = end < n ? end : n;
    return (struct shard_range){begin, end - begin};
}

struct shard_range shard_units(const struct shard *s, int n)
{
    return shard_units_of(s->rank, s->size, n);
}

struct shard_range shard_features(const struct shard *s, int n)
{
    if (!s->wide || n % SHARD_WIDE || n / SHARD_WIDE < s->size)
        return shard_units(s, n);
    struct shard_range units = part(s->rank, s->size, n / SHARD_WIDE);
    return (struct shard_range){units.begin * SHARD_WIDE, units.count * SHARD_WIDE};
}

void shard_set(struct shard *s, int rank, int size, int n_head, int n_kv_head)
{
    int per_kv = n_head / n_kv_head;
    ASSERT(rank >= 0 && rank < size && n_head % n_kv_head == 0);
    *s = (struct shard){.rank = rank, .size = size, .ep_size = 1};
    if (n_kv_head >= size) {
        s->kv_head = part(rank, size, n_kv_head);
        s->head = (struct shard_range){s->kv_head.begin * per_kv, s->kv_head.count * per_kv};
        return;
    }
    int kv = (int)((int64_t)rank * n_kv_head / size), first = 0, sharing = 0;
    for (int r = 0; r < size; r++) {
        bool same = (int)((int64_t)r * n_kv_head / size) == kv;
        first += same && r < rank;
        sharing += same;
    }
    struct shard_range heads = part(first, sharing, per_kv);
    s->kv_head = (struct shard_range){kv, 1};
    s->head = (struct shard_range){kv * per_kv + heads.begin, heads.count};
}

void shard_set_experts(struct shard *s, int rank, int size, int n_head, int n_kv_head)
{
    ASSERT(rank >= 0 && rank < size);
    shard_set(s, 0, 1, n_head, n_kv_head);
    s->ep_rank = rank;
    s->ep_size = size;
}
