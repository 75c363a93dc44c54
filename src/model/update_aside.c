/* The way back for slots whose rows no file holds (they came from an upload, or are random): an update that
 * reads in place copies them into this process's memory before it writes the first byte, and keeps the copy
 * until it is closed. */
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "model/budget.h"
#include "model/device.h"
#include "model/fill.h"
#include "model/update_internal.h"

static struct slot *live_of(const struct update *u, int next)
{
    return update_live_slot(u, &u->touched[u->next_touched[next]]);
}

static size_t pad(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* Of a slot on a GPU: the bytes of its rows as a checkpoint has them; block scales follow. */
static size_t row_bytes(const struct slot *s)
{
    size_t n = (size_t)s->n;
    return pad(s->kind == SLOT_MATRIX ? n * weight_row_bytes(s->weight->type, s->k) : n * sizeof(float));
}

static size_t copy_bytes(const struct slot *s)
{
    if (!s->place)
        return slot_bytes(s);
    bool has_scales = s->kind == SLOT_MATRIX && s->weight->type == WEIGHT_NVFP4;
    return row_bytes(s) + (has_scales ? pad((size_t)s->n * ((size_t)s->k / FP4_GROUP)) : 0);
}

/* The facts of the live slots are the old ones whenever it is asked. */
static bool is_in_a_file(const struct update *u, int next)
{
    return live_of(u, next)->origin != NULL;
}

enum nyb_code update_aside_plan(struct update *u, struct nyb_err *err)
{
    struct nyb_err why;
    size_t bytes = 0;
    int n = 0, first = 0;
    if (u->state == UPDATE_INCONSISTENT) /* there is nothing to go back to */
        return NYB_OK;
    for (int i = u->next.n - 1; i >= 0; i--)
        if (!is_in_a_file(u, i)) {
            bytes += copy_bytes(live_of(u, i));
            first = i;
            n++;
        }
    if (bytes == 0)
        return NYB_OK;
    if (budget_check(bytes + bytes / 16, "a copy", &why) == NYB_OK &&
        pages_reserve(&u->aside, bytes, &why) == NYB_OK)
        return NYB_OK;
    return err_at(err, NYB_E_MEMORY, live_of(u, first)->name, -1,
                  "cannot be read again if the update fails, as no file holds what is served, and memory has "
                  "no room for a copy of the %d parameters like it: %.200s",
                  n, why.message);
}

/* A whole slot on a GPU, rows and scales at `at`. */
static struct fill_piece whole(const struct slot *s, uint8_t *at)
{
    return (struct fill_piece){
        .slot = s, .n_row = s->kind == SLOT_MATRIX ? s->n : 1, .rows = at, .scales = at + row_bytes(s)};
}

/* One after the other: a GPU takes one call at a time. */
enum nyb_code update_aside_take(struct update *u, struct nyb_err *err)
{
    uint8_t *at = u->aside.data;
    for (int i = 0; at && i < u->next.n; i++) {
        const struct slot *s = live_of(u, i);
        size_t n = is_in_a_file(u, i) ? 0 : copy_bytes(s);
        if (n == 0)
            continue;
        if (s->place) {
            const struct fill_piece p = whole(s, at);
            TRY(device_place_read(&p, err));
        } else {
            memcpy(at, slot_address(s), n);
        }
        at += n;
    }
    return NYB_OK;
}

enum nyb_code update_aside_put_back(struct update *u, struct nyb_err *err)
{
    uint8_t *at = u->aside.data;
    for (int i = 0; at && i < u->next.n; i++) {
        const struct slot *s = live_of(u, i);
        size_t n = is_in_a_file(u, i) ? 0 : copy_bytes(s);
        if (n == 0)
            continue;
        TRY(update_fault(u, UPDATE_AT_ROLLBACK, err));
        if (s->place) {
            const struct fill_piece p = whole(s, at);
            TRY(device_place_write(&p, err));
        } else {
            memcpy(slot_address(s), at, n);
        }
        at += n;
    }
    return NYB_OK;
}
