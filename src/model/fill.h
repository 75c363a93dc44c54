/* Filling slots in place, in parallel: each is cut into pieces of whole panels, a worker makes the rows of a
 * piece in its staging memory, and weight_write permutes them to where the kernels read them. Rows that lie
 * in files are read several pieces ahead. First load, random weights and updates differ only in who makes the
 * rows. */
#ifndef NYB_MODEL_FILL_H
#define NYB_MODEL_FILL_H

#include "base/pool.h"
#include "model/slots.h"

struct fill_progress {
    void (*fn)(void *arg, uint64_t done, uint64_t total); /* may be NULL */
    void *arg;
};

/* Rows of one slot. A vector is one row. */
struct fill_piece {
    const struct slot *slot;
    int row, n_row;
    uint64_t index;  /* its number in the order of slots                                      */
    uint8_t *rows;   /* staging: logical rows as weight_write takes them; floats for a vector */
    uint8_t *scales; /* staging: block scales                                                 */
};

/* A piece's rows or scales as they lie in a file, without a gap. */
struct fill_extent {
    int fd;
    const char *path;
    uint64_t offset;
    size_t len;
};

struct fill_source {
    /* Write p->rows and p->scales. */
    enum nyb_code (*make)(const void *arg, const struct fill_piece *p, struct nyb_err *err);
    const void *arg;
    /* Either both or none: where a piece's rows ([0]) and scales ([1], len 0 where there are none) can be
     * read; false: only `make` can tell. They are read ahead, and then checked. */
    bool (*locate)(const void *arg, const struct fill_piece *p, struct fill_extent extent[2]);
    enum nyb_code (*check)(const void *arg, const struct fill_piece *p, struct nyb_err *err);
};

/* Rows of a checkpoint, opened and resolved. */
struct fill_source fill_from_checkpoint(const struct ckpt *c);
/* Random rows: the same for the same seed, whatever the number of threads. */
struct fill_source fill_from_seed(const uint64_t *seed);

/* Negative block scales are well defined but not what the kernels take: the sign moves to the codes, n_group
 * times 8 bytes of them. Done to all rows on their way into a slot. */
void fill_settle_signs(uint8_t *codes, uint8_t *scales, size_t n_group);

/* Bytes of staging for that many workers. */
size_t fill_staging_bytes(const struct slots *s, int n_worker);
/* On error some slots are written and some are not; the error is that of the first piece in file order. */
enum nyb_code fill_slots(struct slots *s, const struct fill_source *source, struct pool *pool,
                         const struct fill_progress *progress, struct nyb_err *err) NYB_MUST_CHECK;

#endif
