#include "model/origin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"

struct identity {
    off_t size;
    struct timespec changed;
};

struct origin {
    struct ckpt *ckpt;
    int n_ref;           /* only whoever has the update open touches it: no two at a time */
    struct identity *id; /* (ckpt->n_file) */
};

static bool read_identity(struct identity *id, int fd)
{
    struct stat st;
    if (fstat(fd, &st))
        return false;
    *id = (struct identity){st.st_size, st.st_mtim};
    return true;
}

struct origin *origin_new(struct ckpt *c)
{
    struct origin *o = mem_alloc(1, sizeof(*o));
    *o = (struct origin){.ckpt = c, .n_ref = 1};
    o->id = mem_alloc((size_t)c->n_file, sizeof(*o->id));
    for (int i = 0; i < c->n_file; i++)
        if (!read_identity(&o->id[i], c->file[i].fd))
            o->id[i].size = -1; /* matches no file: origin_check will say so */
    return o;
}

struct origin *origin_share(struct origin *o)
{
    if (o)
        o->n_ref++;
    return o;
}

void origin_drop(struct origin *o)
{
    if (!o || --o->n_ref)
        return;
    ckpt_close(o->ckpt);
    free(o->id);
    free(o);
}

const struct ckpt *origin_ckpt(const struct origin *o)
{
    return o->ckpt;
}

enum nyb_code origin_check(const struct origin *o, struct nyb_err *err)
{
    for (int i = 0; i < o->ckpt->n_file; i++) {
        const struct ckpt_file *f = &o->ckpt->file[i];
        struct identity now;
        if (!read_identity(&now, f->fd))
            return err_at(err, NYB_E_IO, f->path, -1, "cannot stat: %s", strerror(errno));
        const struct identity *then = &o->id[i];
        if (now.size != then->size || now.changed.tv_sec != then->changed.tv_sec ||
            now.changed.tv_nsec != then->changed.tv_nsec)
            return err_at(err, NYB_E_IO, f->path, -1,
                          "has been rewritten since it was read: %lld bytes, expected the %lld of then",
                          (long long)now.size, (long long)then->size);
    }
    return NYB_OK;
}
