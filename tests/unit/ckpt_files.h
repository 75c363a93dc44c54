/* Throw-away folders with the files of a checkpoint, for the tests of the checkpoint room. */
#ifndef NYB_TEST_CKPT_FILES_H
#define NYB_TEST_CKPT_FILES_H

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/dtype.h"
#include "test.h"

static inline char *folder_make(void)
{
    char *path = mem_strdup("/tmp/nybble-test-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}

static inline int folder_remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

/* Removes it and frees its name. */
static inline void folder_drop(char *path)
{
    nftw(path, folder_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(path);
}

static inline void folder_write(const char *folder, const char *name, const void *data, size_t len)
{
    char *path = path_join(folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
    free(path);
}

static inline void folder_write_text(const char *folder, const char *name, const char *text)
{
    folder_write(folder, name, text, strlen(text));
}

/* A safetensors file from its parts: claimed header length, header, data of n zero bytes. */
static inline void folder_write_raw(const char *folder, const char *name, uint64_t claimed,
                                    const char *header, size_t data_bytes)
{
    struct buf b = {0};
    for (int i = 0; i < 8; i++)
        buf_add_byte(&b, (char)(claimed >> (8 * i) & 255));
    buf_add_str(&b, header);
    for (size_t i = 0; i < data_bytes; i++)
        buf_add_byte(&b, 0);
    folder_write(folder, name, b.data, b.len);
    buf_free(&b);
}

/* A well-formed safetensors file, tensor by tensor. */
struct writer {
    struct buf header, data;
};

static inline void writer_add(struct writer *w, const char *name, enum dtype dtype, int n_dim,
                              const int64_t *dim, const void *data)
{
    size_t bytes = dtype_size(dtype);
    buf_printf(&w->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", w->header.len ? "," : "{", name,
               dtype_name(dtype));
    for (int i = 0; i < n_dim; i++) {
        bytes *= (size_t)dim[i];
        buf_printf(&w->header, "%s%lld", i ? "," : "", (long long)dim[i]);
    }
    buf_printf(&w->header, "],\"data_offsets\":[%zu,%zu]}", w->data.len, w->data.len + bytes);
    buf_reserve(&w->data, bytes + 1);
    if (data)
        buf_add(&w->data, data, bytes);
    else
        for (size_t i = 0; i < bytes; i++)
            buf_add_byte(&w->data, 0);
}

static inline void writer_add_2d(struct writer *w, const char *name, enum dtype dtype, int64_t n, int64_t k)
{
    writer_add(w, name, dtype, 2, (int64_t[]){n, k}, NULL);
}

static inline void writer_add_f32(struct writer *w, const char *name, float x)
{
    writer_add(w, name, DTYPE_F32, 0, NULL, &x);
}

/* Writes the file and empties the writer. */
static inline void writer_finish(struct writer *w, const char *folder, const char *name)
{
    struct buf b = {0};
    buf_add_byte(&w->header, '}');
    for (int i = 0; i < 8; i++)
        buf_add_byte(&b, (char)(w->header.len >> (8 * i) & 255));
    buf_add(&b, w->header.data, w->header.len);
    if (w->data.len)
        buf_add(&b, w->data.data, w->data.len);
    folder_write(folder, name, b.data, b.len);
    buf_free(&b);
    buf_free(&w->header);
    buf_free(&w->data);
}

#endif
