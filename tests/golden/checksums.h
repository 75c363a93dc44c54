/* Checksums of a model that is open and of a folder. */
#ifndef NYB_TEST_CHECKSUMS_H
#define NYB_TEST_CHECKSUMS_H

#include "golden/golden_data.h"
#include "model/checksum.h"

static inline void show_difference(void *arg, const char *name)
{
    (void)arg;
    print_error("differs: %s\n", name);
}

static inline void assert_same(const struct checksum *a, const char *folder)
{
    struct checksum b;
    struct nyb_err err;
    golden_must(checksum_folder(&b, folder, 2, &err), &err);
    assert_int_equal(checksum_compare(a, &b, show_difference, NULL), 0);
    assert_memory_equal(&a->total, &b.total, sizeof(b.total));
    checksum_free(&b);
}

static inline void assert_checksum(struct model *m, const char *folder)
{
    struct checksum a;
    struct nyb_err err;
    golden_must(checksum_model(&a, m, 2, &err), &err);
    assert_same(&a, folder);
    checksum_free(&a);
}

#endif
