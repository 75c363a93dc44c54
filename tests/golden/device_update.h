/* Updates of weights on an emulated GPU. */
#ifndef NYB_TEST_DEVICE_UPDATE_H
#define NYB_TEST_DEVICE_UPDATE_H

#include "golden/checksums.h"
#include "golden/device_case.h"

#include "model/update.h"

static inline enum nyb_code fault_at(void *arg, enum update_point point, int64_t count)
{
    (void)count;
    return point == *(const enum update_point *)arg ? NYB_E_IO : NYB_OK;
}

static inline enum nyb_code update_to(struct model *m, const char *folder, const enum update_point *fault,
                                      struct nyb_err *err)
{
    struct update *u;
    struct update_facts facts;
    struct update_options o = {.folder = folder, .staging = UPDATE_STAGING_AUTO};
    if (fault) {
        o.fault = fault_at;
        o.fault_arg = (void *)(uintptr_t)fault;
    }
    TRY(update_prepare(&u, m, &o, &facts, err));
    enum nyb_code code = update_stage(u, err);
    if (code == NYB_OK)
        code = update_commit(u, err);
    assert_int_equal(update_state(u), code == NYB_OK ? UPDATE_NEW : UPDATE_OLD);
    update_close(u);
    return code;
}

/* Graphs that were recorded before an update compute with the weights after it, and a failed one leaves all
 * as it was. `m` holds a and `fresh` its twin b. */
static inline void check_update(struct model *m, struct model *fresh, const char *a, const char *b)
{
    struct nyb_err err;
    struct talk before = talk_to(m, 2, -1);
    for (enum update_point point = UPDATE_AT_READ; point <= UPDATE_AT_COMMIT; point++) {
        assert_int_equal(update_to(m, b, &point, &err), NYB_E_IO);
        struct talk same = talk_on(m, 2, -1);
        assert_memory_equal(same.logits, before.logits, talk_bytes(m, &same));
        assert_checksum(m, a);
        free(same.logits);
    }
    golden_must(update_to(m, b, NULL, &err), &err);
    assert_checksum(m, b);
    struct talk after = talk_on(m, 2, -1), want = talk_to(fresh, 2, -1);
    assert_memory_equal(after.logits, want.logits, talk_bytes(m, &after));
    assert_memory_not_equal(after.logits, before.logits, talk_bytes(m, &after));
    free(before.logits);
    free(after.logits);
    free(want.logits);
}

#endif
