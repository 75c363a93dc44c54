/* Whether the tensors of a new checkpoint fit the slots of the served model, judged by headers and scalars.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/glob.h"
#include "model/update_internal.h"

#define NAME_BYTES 512

/* Of an upload, and of a folder under `names`, what is not there stays as it is. */
static bool is_partial(const struct update *u)
{
    return u->o.n_names || u->o.upload;
}

/* A module's tensors in every spelling. */
static const char *const part[] = {
    ".weight",      ".weight_packed",       ".weight_scale",       ".weight_scale_2",
    ".input_scale", ".weight_global_scale", ".input_global_scale",
};
#define N_DATA 2 /* of `part`, at its beginning: what a module cannot do without */

static const char *part_name(char name[NAME_BYTES], const char *module, const char *suffix)
{
    int n = snprintf(name, NAME_BYTES, "%s%s", module, suffix);
    ASSERT(n > 0 && n < NAME_BYTES);
    return name;
}

/* Whether a tensor that the checkpoint lacks should have been there. */
static bool is_required(const struct update *u, const char *tensor)
{
    for (int i = 0; i < u->o.n_names; i++)
        if (glob_match(u->o.names[i], tensor))
            return true;
    return !is_partial(u);
}

static bool has_wanted(const struct update *u, const char *tensor)
{
    return ckpt_find(u->ckpt, tensor) && update_wants(u, tensor);
}

static bool vector_concerns(const struct update *u, const struct slot *s)
{
    return has_wanted(u, s->name) || (!ckpt_find(u->ckpt, s->name) && is_required(u, s->name));
}

static bool matrix_concerns(const struct update *u, const struct slot *s)
{
    char name[NAME_BYTES];
    bool wanted = false, there = false, required = false;
    for (size_t i = 0; i < COUNT_OF(part); i++) {
        part_name(name, s->name, part[i]);
        wanted |= has_wanted(u, name);
        there |= i < N_DATA && ckpt_find(u->ckpt, name);
        required |= i < N_DATA && is_required(u, name);
    }
    return wanted || (!there && required);
}

/* Else those that come after the one which is wrong would be taken for strangers. */
static void mark_parts(struct update *u, const struct slot *s)
{
    char name[NAME_BYTES];
    for (size_t i = 0; i < COUNT_OF(part); i++)
        ckpt_take(u->ckpt, part_name(name, s->name, part[i]));
}

/* What the file says about a slot is a difference; that it cannot be read is an error. */
static enum nyb_code note(struct update *u, enum nyb_code code, const struct nyb_err *found,
                          struct nyb_err *err)
{
    if (code == NYB_E_IO || code == NYB_E_MEMORY) {
        if (err)
            *err = *found;
        return code;
    }
    if (code != NYB_OK)
        update_differs(u, "%s: %s", found->where, found->message);
    return NYB_OK;
}

/* ---- a slot -------------------------------------------------------------------------------------- */

static void take_scales(struct update *u, struct touched *t, const char *module, const struct weight *live,
                        bool *any)
{
    char name[NAME_BYTES];
    bool packed =
        t->weight.type == WEIGHT_NVFP4 && ckpt_find(u->ckpt, part_name(name, module, ".weight_packed"));
    const char *global = t->weight.type == WEIGHT_FP8 ? ".weight_scale"
                         : packed                     ? ".weight_global_scale"
                                                      : ".weight_scale_2";
    const char *input = packed ? ".input_global_scale" : ".input_scale";
    bool scaled = t->weight.type == WEIGHT_NVFP4 || t->weight.type == WEIGHT_FP8; /* else 1 and none */
    bool take_global = scaled ? has_wanted(u, part_name(name, module, global)) : t->data;
    bool take_input = scaled ? has_wanted(u, part_name(name, module, input)) : t->data;
    if (!take_global)
        t->weight.global_scale = live->global_scale;
    if (!take_input && is_partial(u))
        t->weight.input_scale = live->input_scale;
    *any = t->data || take_global || take_input;
}

static enum nyb_code check_matrix(struct update *u, struct touched *t, const struct slot *live, bool *any,
                                  struct nyb_err *err)
{
    struct nyb_err found;
    struct slot s = *live;
    s.weight = &t->weight;
    *any = false;
    mark_parts(u, live);
    enum nyb_code code = source_resolve_slot(&s, u->ckpt, u->quant, &found);
    if (code != NYB_OK)
        return note(u, code, &found, err);
    t->source = s.source;
    if (t->weight.type != live->weight->type) {
        update_differs(u, "%s: is %s, the served model has %s", s.source.weight->name,
                       weight_type_name(t->weight.type), weight_type_name(live->weight->type));
        return NYB_OK;
    }
    t->data = update_wants(u, s.source.weight->name);
    if (s.source.scale && update_wants(u, s.source.scale->name) != t->data) {
        update_differs(u, "%s: `names` select only one of it and %s, which go together",
                       s.source.weight->name, s.source.scale->name);
        return NYB_OK;
    }
    take_scales(u, t, live->name, live->weight, any);
    if (*any && u->m->compute == COMPUTE_W4A4 && t->weight.type == WEIGHT_NVFP4 &&
        !(t->weight.input_scale > 0))
        update_differs(u, "%s: has no usable input scale, which compute w4a4 needs", live->name);
    return NYB_OK;
}

static enum nyb_code check_vector(struct update *u, struct touched *t, const struct slot *live, bool *any,
                                  struct nyb_err *err)
{
    struct nyb_err found;
    struct slot s = *live;
    enum nyb_code code = source_resolve_slot(&s, u->ckpt, u->quant, &found);
    t->tensor = s.tensor;
    t->data = *any = code == NYB_OK;
    return note(u, code, &found, err);
}

/* Scales alone: the elements still come from where they came from. */
static void settle_origin(struct update *u, struct touched *t, const struct slot *live)
{
    if (t->data) {
        t->origin = u->o.upload ? NULL : origin_share(u->origin);
        return;
    }
    t->source = live->source;
    t->tensor = live->tensor;
    t->origin = origin_share(live->origin);
}

enum nyb_code update_check_slot(struct update *u, const struct slot *live, struct touched *t, bool *any,
                                struct nyb_err *err)
{
    bool matrix = live->kind == SLOT_MATRIX;
    *any = false;
    if (matrix ? !matrix_concerns(u, live) : !vector_concerns(u, live))
        return NYB_OK;
    return matrix ? check_matrix(u, t, live, any, err) : check_vector(u, t, live, any, err);
}

static enum nyb_code check_slot(struct update *u, int index, struct nyb_err *err)
{
    const struct slot *live = &u->m->weights.slots.slot[index];
    struct touched *t = &u->touched[u->n_touched];
    bool any;
    *t = (struct touched){.index = index};
    TRY(update_check_slot(u, live, t, &any, err));
    if (any) {
        settle_origin(u, t, live);
        u->n_touched++;
    }
    return NYB_OK;
}

/* ---- the rest ------------------------------------------------------------------------------------ */

static void check_strangers(struct update *u)
{
    for (int i = 0; i < u->ckpt->n_tensor && u->m->unused_known; i++) {
        const struct ckpt_tensor *t = &u->ckpt->tensor[i];
        if (!atomic_load_explicit(&t->used, memory_order_relaxed) && update_wants(u, t->name) &&
            !name_set_has_owner(&u->m->unused, t->name))
            update_differs(u, "%s: the served model has no such tensor", t->name);
    }
}

static void check_names(struct update *u)
{
    for (int i = 0; i < u->o.n_names; i++)
        if (!u->name_used[i])
            update_differs(u, "names: \"%s\" matches no tensor of the new checkpoint", u->o.names[i]);
}

static bool wants_kv_scale(const void *arg, const char *tensor)
{
    return update_wants(arg, tensor);
}

static void start_kv_scales(struct update *u)
{
    const struct model *m = u->m;
    size_t n = (size_t)m->config.n_layer;
    u->k_scale = mem_alloc(n, sizeof(*u->k_scale));
    u->v_scale = mem_alloc(n, sizeof(*u->v_scale));
    for (size_t i = 0; i < n; i++) {
        u->k_scale[i] = is_partial(u) ? m->weights.layer[i].k_scale : 1;
        u->v_scale[i] = is_partial(u) ? m->weights.layer[i].v_scale : 1;
    }
}

static void note_kv_change(struct update *u)
{
    const struct model *m = u->m;
    for (int i = 0; i < m->config.n_layer; i++)
        if (u->k_scale[i] < m->weights.layer[i].k_scale || u->k_scale[i] > m->weights.layer[i].k_scale ||
            u->v_scale[i] < m->weights.layer[i].v_scale || u->v_scale[i] > m->weights.layer[i].v_scale)
            u->facts->kv_changes = m->kv_type == KV_FP8;
}

/* The slots whose elements change, as fill_slots takes them. */
static void collect_next(struct update *u)
{
    u->next_touched = mem_alloc((size_t)u->n_touched + 1, sizeof(*u->next_touched));
    for (int i = 0; i < u->n_touched; i++) {
        struct touched *t = &u->touched[i];
        const struct slot *live = &u->m->weights.slots.slot[t->index];
        if (!t->data)
            continue;
        if (live->kind == SLOT_MATRIX)
            slots_add_matrix(&u->next, &t->weight, live->n, live->k, live->name);
        else
            slots_add_vector(&u->next, &t->vector, live->n, live->dummy, live->name);
        u->next_touched[u->next.n - 1] = i;
        struct slot *s = &u->next.slot[u->next.n - 1];
        s->row = live->row; /* of a parameter that ranks share */
        s->column = live->column;
        s->n_whole = live->n_whole;
        s->k_whole = live->k_whole;
        s->source = t->source;
        s->tensor = t->tensor;
        s->origin = u->origin; /* borrowed: update_close takes it out again */
    }
}

void update_count(struct update *u, const struct slot *s)
{
    struct update_facts *f = u->facts;
    struct weight weight;
    struct slot whole = *s; /* whatever part of it is here */
    whole.n = s->n_whole;
    whole.k = s->k_whole;
    if (s->kind == SLOT_MATRIX) {
        weight = *s->weight;
        weight.n = s->n_whole;
        weight.k = s->k_whole;
        whole.weight = &weight;
    }
    f->weight_bytes += slot_bytes(&whole);
    f->read_bytes += s->tensor ? s->tensor->bytes : 0;
    f->read_bytes += s->source.weight ? s->source.weight->bytes : 0;
    f->read_bytes += s->source.scale ? s->source.scale->bytes : 0;
}

static void count_bytes(struct update *u)
{
    u->facts->n_tensor += u->n_touched;
    for (int i = 0; i < u->next.n; i++)
        update_count(u, &u->next.slot[i]);
}

enum nyb_code update_check_tensors(struct update *u, struct nyb_err *err)
{
    int n = u->m->weights.slots.n;
    struct nyb_err found;
    u->touched = mem_alloc((size_t)n, sizeof(*u->touched)); /* stays where it is: `next` points into it */
    for (int i = 0; i < n; i++)
        TRY(check_slot(u, i, err));
    TRY(update_check_elsewhere(u, err));
    start_kv_scales(u);
    enum nyb_code code =
        weights_read_kv_scales(u->k_scale, u->v_scale, &u->m->config, u->ckpt, wants_kv_scale, u, &found);
    TRY(note(u, code, &found, err));
    check_strangers(u);
    check_names(u);
    note_kv_change(u);
    collect_next(u);
    count_bytes(u);
    return NYB_OK;
}

enum nyb_code update_check_dummy(struct update *u, struct nyb_err *err)
{
    const struct slots *live = &u->m->weights.slots;
    u->touched = mem_alloc((size_t)live->n, sizeof(*u->touched));
    for (int i = 0; i < live->n; i++)
        u->touched[u->n_touched++] = (struct touched){.index = i, .data = true};
    collect_next(u);
    TRY(source_resolve_dummy(&u->next, u->quant, err));
    for (int i = 0; i < live->n; i++) {
        const struct slot *s = &live->slot[i];
        if (s->kind == SLOT_MATRIX && s->weight->type != u->touched[i].weight.type)
            update_differs(u, "%s: is declared %s, the served model has %s", s->name,
                           weight_type_name(u->touched[i].weight.type), weight_type_name(s->weight->type));
    }
    start_kv_scales(u);
    note_kv_change(u);
    if (!u->facts->n_difference)
        count_bytes(u);
    return NYB_OK;
}
