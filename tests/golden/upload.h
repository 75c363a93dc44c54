/* An upload of new weights, from a checkpoint's file. */
#ifndef NYB_TEST_UPLOAD_H
#define NYB_TEST_UPLOAD_H

#include "golden/golden_data.h"
#include "model/update.h"

/* The folder's model.safetensors in pieces of `step` bytes, kept in memory or, with a folder for it, in an
 * unlinked file. */
static inline struct update_upload *upload_file(const char *folder, const char *dir, size_t step)
{
    struct nyb_err err;
    struct update_upload *up;
    char *path = path_join(folder, "model.safetensors"), *data;
    size_t n;
    golden_must(file_read_all(path, 1u << 30, &data, &n, &err), &err);
    golden_must(upload_open(&up, dir, n, &err), &err);
    for (size_t at = 0; at < n; at += step < n - at ? step : n - at)
        golden_must(upload_write(up, data + at, step < n - at ? step : n - at, &err), &err);
    assert_int_equal(upload_bytes(up), n);
    assert_int_equal(upload_write(up, "x", 1, &err), NYB_E_RANGE);
    free(data);
    free(path);
    return up;
}

#endif
