#include "cli/load_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/load_files.h"
#include "cli/load_random.h"

static const char *const set_name[LOAD_SET_COUNT] = {"random",   "EBChat", "EB",   "custom",
                                                     "ShareGPT", "sonnet", "trace"};

bool load_set_parse(const char *name, enum load_set *out)
{
    for (int i = 0; i < LOAD_SET_COUNT; i++)
        if (!strcasecmp(name, set_name[i])) {
            *out = (enum load_set)i;
            return true;
        }
    return false;
}

const char *load_set_name(enum load_set s)
{
    return set_name[s];
}

void load_data_add(struct load_data *d, json_t *input, json_t *members, int max_tokens, double at_s)
{
    if (d->n == d->cap) {
        d->cap = d->cap ? 2 * d->cap : 64;
        d->request = mem_grow(d->request, (size_t)d->cap, sizeof(*d->request));
    }
    d->request[d->n++] = (struct load_request){input, members, max_tokens, at_s};
}

void load_data_free(struct load_data *d)
{
    for (int i = 0; i < d->n; i++) {
        json_decref(d->request[i].input);
        json_decref(d->request[i].members);
    }
    free(d->request);
    *d = (struct load_data){0};
}

/* ---- made up ------------------------------------------------------------------------------------- */

static int spread(uint64_t *state, int len, double range)
{
    int lo = (int)ceil(len * (1 - range)), hi = (int)floor(len * (1 + range));
    return load_random_int(state, lo > 1 ? lo : 1, hi > 1 ? hi : 1);
}

static enum nyb_code make_random(struct load_data *d, const struct load_data_options *o, struct nyb_err *err)
{
    uint64_t prefix_seed = o->seed ^ 0x707265666978, state = o->seed;
    (void)err;
    for (int i = 0; i < o->n; i++) {
        struct buf b = {0};
        uint64_t prefix = prefix_seed;
        load_words(&b, &prefix, o->random_prefix);
        load_words(&b, &state, spread(&state, o->random_input, o->random_range));
        load_data_add(d, json_stringn(b.data, b.len), NULL, spread(&state, o->random_output, o->random_range),
                      0);
        buf_free(&b);
    }
    return NYB_OK;
}

struct poem {
    char *data;
    char **line;
    int *words;
    int n;
};

static int count_words(const char *s)
{
    int n = 0;
    for (; *s; n++) {
        s += strspn(s, " \t");
        if (!*s)
            break;
        s += strcspn(s, " \t");
    }
    return n;
}

static enum nyb_code read_poem(struct poem *p, const struct load_data_options *o, struct nyb_err *err)
{
    size_t len;
    char *save = NULL;
    if (!o->path)
        return err_set(err, NYB_E_ARG,
                       "the data set sonnet needs --dataset-path, a text with a line a verse");
    TRY(file_read_all(o->path, LOAD_FILE_MAX, &p->data, &len, err));
    p->line = mem_alloc(len + 1, sizeof(*p->line));
    p->words = mem_alloc(len + 1, sizeof(*p->words));
    for (char *s = strtok_r(p->data, "\r\n", &save); s; s = strtok_r(NULL, "\r\n", &save))
        if (count_words(s) > 0) {
            p->words[p->n] = count_words(s);
            p->line[p->n++] = s;
        }
    return p->n > 0 ? NYB_OK : err_at(err, NYB_E_FORMAT, o->path, -1, "has no lines");
}

/* Whole lines while fewer than `words` are there: from the top, or drawn. */
static int add_lines(struct buf *b, const struct poem *p, int have, int words, uint64_t *state)
{
    for (int i = 0; have < words; i++) {
        int at = state ? load_random_int(state, 0, p->n - 1) : i % p->n;
        buf_add_str(b, p->line[at]);
        buf_add_byte(b, '\n');
        have += p->words[at];
    }
    return have;
}

static enum nyb_code make_sonnet(struct load_data *d, const struct load_data_options *o, struct nyb_err *err)
{
    struct poem p = {0};
    uint64_t state = o->seed;
    enum nyb_code code = read_poem(&p, o, err);
    for (int i = 0; code == NYB_OK && i < o->n; i++) {
        struct buf b = {0};
        buf_add_str(&b, "Choose the best of these verses and repeat as many of them as you can:\n");
        int have = add_lines(&b, &p, 14, o->sonnet_prefix, NULL);
        add_lines(&b, &p, have, o->sonnet_input, &state);
        load_data_add(d, json_stringn(b.data, b.len), NULL, o->sonnet_output, 0);
        buf_free(&b);
    }
    free(p.line);
    free(p.words);
    free(p.data);
    return code;
}

/* ---- how many, and when -------------------------------------------------------------------------- */

static void swap(struct load_request *a, struct load_request *b)
{
    struct load_request t = *a;
    *a = *b;
    *b = t;
}

static void take_rows(struct load_data *d, const struct load_data_options *o)
{
    uint64_t state = o->seed ^ 0x726f7773;
    for (int i = d->n - 1; o->shuffle && i > 0; i--)
        swap(&d->request[i], &d->request[load_random_int(&state, 0, i)]);
    for (int rows = d->n; d->n < o->n;) {
        struct load_request r = d->request[load_random_int(&state, 0, rows - 1)];
        load_data_add(d, json_incref(r.input), r.members ? json_incref(r.members) : NULL, r.max_tokens, 0);
    }
    while (d->n > o->n) {
        d->n--;
        json_decref(d->request[d->n].input);
        json_decref(d->request[d->n].members);
    }
}

/* Requests a second after request i of n. */
static double rate_at(const struct load_data_options *o, int i, int n)
{
    double part = n > 1 ? (double)i / (n - 1) : 0;
    switch (o->ramp) {
    case LOAD_RAMP_LINEAR:
        return o->ramp_start + (o->ramp_end - o->ramp_start) * part;
    case LOAD_RAMP_EXPONENTIAL:
        return o->ramp_start * pow(o->ramp_end / o->ramp_start, part);
    default:
        return o->request_rate;
    }
}

/* Gaps between arrivals are gamma-distributed with mean 1 / rate and shape `burstiness`. */
static void set_times(struct load_data *d, const struct load_data_options *o)
{
    uint64_t state = o->seed ^ 0x74696d6573;
    double at = 0;
    for (int i = 0; i < d->n && isfinite(rate_at(o, i, d->n)); i++) {
        d->request[i].at_s = at;
        at += load_random_gamma(&state, o->burstiness) / (rate_at(o, i, d->n) * o->burstiness);
    }
}

/* Insertion: traces come in order, or nearly, and rows of one time keep theirs. */
static void sort_by_time(struct load_data *d)
{
    for (int i = 1; i < d->n; i++) {
        struct load_request r = d->request[i];
        int j = i;
        for (; j > 0 && d->request[j - 1].at_s > r.at_s; j--)
            d->request[j] = d->request[j - 1];
        d->request[j] = r;
    }
}

enum nyb_code load_data_make(struct load_data *d, const struct load_data_options *o, struct nyb_err *err)
{
    static enum nyb_code (*const make[LOAD_SET_COUNT])(struct load_data *, const struct load_data_options *,
                                                       struct nyb_err *) = {
        make_random,         load_files_ebchat, load_files_eb,   load_files_custom,
        load_files_sharegpt, make_sonnet,       load_files_trace};
    TRY(make[o->set](d, o, err));
    if (o->set == LOAD_TRACE) {
        sort_by_time(d);
        return NYB_OK;
    }
    take_rows(d, o);
    set_times(d, o);
    for (int i = 0; i < d->n && o->max_output > 0; i++)
        if (d->request[i].max_tokens > o->max_output)
            d->request[i].max_tokens = o->max_output;
    return NYB_OK;
}
