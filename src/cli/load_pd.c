#include "cli/load_pd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum side { FIRST, LAST, TOKEN };

static const struct {
    const char *name, *unit, *end_key, *start_key;
    enum side end, start;
} table[PD_COUNT] = {
#define PD(name, unit, label, end, end_key, start, start_key) {#name, unit, end_key, start_key, end, start},
#include "cli/load_pd.def"
#undef PD
};

static double member(const json_t *o, const char *key, size_t n)
{
    char name[64];
    ASSERT(n < sizeof(name));
    memcpy(name, key, n);
    name[n] = 0;
    const json_t *v = json_object_get(o, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static double side_value(const struct load_reply *r, enum side side, const char *key)
{
    if (side == TOKEN) {
        size_t at = (size_t)atoi(key);
        return at < r->chunk.n ? r->wall_zero + r->chunk.v[at] : NAN;
    }
    const json_t *o = side == FIRST ? r->metrics_first : r->metrics_last;
    size_t n = strcspn(key, "|");
    double v = member(o, key, n);
    return isnan(v) && key[n] ? member(o, key + n + 1, strlen(key + n + 1)) : v;
}

static double in_seconds(const struct load_reply *r, enum load_pd which)
{
    double end = side_value(r, table[which].end, table[which].end_key);
    return table[which].start_key[0] ? end - side_value(r, table[which].start, table[which].start_key) : end;
}

double load_pd_value(const struct load_reply *r, enum load_pd which)
{
    return in_seconds(r, which) * (strcmp(table[which].unit, "ms") ? 1 : 1e3);
}

json_t *load_pd_json(const struct load_reply *r)
{
    json_t *o = json_object();
    for (int i = 0; i < PD_COUNT; i++) {
        double v = in_seconds(r, (enum load_pd)i);
        if (!isnan(v))
            json_object_set_new(o, table[i].name, json_real(v));
    }
    return o;
}
