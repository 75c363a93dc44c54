/* Reading large files ahead: several reads under way while the data of earlier ones is worked on.
 *
 * What the page cache holds is copied from there when it is wanted. The rest comes from the disk directly
 * (O_DIRECT), past the page cache, which would otherwise hold a second copy of memory's largest contents: by
 * io_uring, or by threads of ours where the kernel refuses that (containers often do). Where a file system
 * refuses O_DIRECT the same reads go through the page cache. All of it is found out at run time. */
#ifndef NYB_BASE_READER_H
#define NYB_BASE_READER_H

#include "base/err.h"

#define READER_ALIGN 4096u /* of direct reads: no smaller than the blocks of today's disks */
/* Bytes that a buffer needs for a read of `len`: it is widened to whole blocks. */
#define READER_ROOM(len) (((len) + 3 * (size_t)READER_ALIGN - 1) / READER_ALIGN * READER_ALIGN)

enum reader_way { READER_URING, READER_THREADS };

struct reader_options {
    enum reader_way way; /* READER_URING falls back to the other */
    bool cold;           /* ask the disk even for what the page cache holds: to measure it */
    bool buffered;       /* never O_DIRECT                                                 */
};

/* What several readers share. A reader belongs to one thread at a time. */
struct reader_set;
struct reader;

/* At most `depth` reads under way in each of n readers. */
enum nyb_code reader_set_open(struct reader_set **out, int n, int depth, const struct reader_options *o,
                              struct nyb_err *err) NYB_MUST_CHECK;
void reader_set_close(struct reader_set *s); /* every read finished */
struct reader *reader_get(struct reader_set *s, int i);
/* "io_uring, direct", as the last reads went. */
const char *reader_set_describe(const struct reader_set *s);

struct reader_read {
    int fd;
    const char *path; /* for messages */
    uint64_t offset;
    size_t len;
    uint8_t *buffer; /* READER_ROOM(len) bytes, aligned to READER_ALIGN */
    uint8_t *hot;    /* as large; for what the page cache holds, NULL: buffer. Reads that are finished one
                      * after another may share it: the same few bytes stay in a core's cache */
    uint8_t *data;   /* after reader_finish: the len bytes, in one of the two */
    /* private */
    bool asked; /* the caller's: the read has been handed over         */
    int state, ask_fd;
    uint64_t ask_offset;
    size_t ask_len;
    long got; /* bytes, or -errno */
    struct reader_read *next;
};

/* The read may be under way until reader_finish, which must follow. */
void reader_start(struct reader *r, struct reader_read *read);
/* Wait for it. A short file is an error, as for file_read_at. */
enum nyb_code reader_finish(struct reader *r, struct reader_read *read, struct nyb_err *err) NYB_MUST_CHECK;

#endif
