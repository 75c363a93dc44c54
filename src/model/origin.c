#include "model/origin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/mem.h"

/* Of a file, as it is now. */
struct identity {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec changed;
};

struct origin {
    struct ckpt *ckpt;
    int n_ref;           /* only whoever has the update open touches it: no two at a time */
    struct identity *id; /* (ckpt->n_file) */
    struct origin_id all;
};

static bool read_identity(struct identity *id, int fd)
{
    struct stat st;
    if (fstat(fd, &st))
        return false;
    *id = (struct identity){st.st_dev, st.st_ino, st.st_size, st.st_mtim};
    return true;
}

static uint64_t mix(uint64_t hash, uint64_t x)
{
    return XXH3_64bits_withSeed(&x, sizeof(x), hash);
}

/* Of the running system: what it knows of inodes holds as long as it runs. 0: not known. (Files in /proc say
 * that they are empty, so file_read_all would find nothing in this one.) */
static uint64_t hash_machine(void)
{
    char text[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof(text));
    close(fd);
    return n > 0 ? XXH3_64bits(text, (size_t)n) : 0;
}

static const char *name_of(const struct ckpt_file *f)
{
    const char *slash = strrchr(f->path, '/');
    return slash ? slash + 1 : f->path;
}

static struct origin_id identify(const struct origin *o, uint64_t generation)
{
    struct origin_id all = {.generation = generation, .machine = hash_machine()};
    for (int i = 0; i < o->ckpt->n_file; i++) {
        const struct identity *id = &o->id[i];
        const char *name = name_of(&o->ckpt->file[i]);
        all.files = mix(all.files, XXH3_64bits(name, strlen(name)));
        all.files = mix(all.files, (uint64_t)id->size);
        all.state = mix(mix(all.state, (uint64_t)id->device), (uint64_t)id->inode);
        all.state = mix(mix(all.state, (uint64_t)id->changed.tv_sec), (uint64_t)id->changed.tv_nsec);
    }
    return all;
}

bool origin_id_equal(const struct origin_id *a, const struct origin_id *b)
{
    return a->generation == b->generation && a->files == b->files &&
           (a->machine != b->machine || a->state == b->state);
}

struct origin *origin_new(struct ckpt *c, uint64_t generation)
{
    struct origin *o = mem_alloc(1, sizeof(*o));
    *o = (struct origin){.ckpt = c, .n_ref = 1};
    o->id = mem_alloc((size_t)c->n_file, sizeof(*o->id));
    for (int i = 0; i < c->n_file; i++)
        if (!read_identity(&o->id[i], c->file[i].fd))
            o->id[i].size = -1; /* matches no file: origin_check will say so */
    o->all = identify(o, generation);
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

const struct origin_id *origin_id(const struct origin *o)
{
    return &o->all;
}

enum nyb_code origin_check(const struct origin *o, struct nyb_err *err)
{
    for (int i = 0; i < o->ckpt->n_file; i++) {
        const struct ckpt_file *f = &o->ckpt->file[i];
        struct identity now;
        if (!read_identity(&now, f->fd))
            return err_at(err, NYB_E_IO, f->path, -1, "cannot stat: %s", strerror(errno));
        const struct identity *then = &o->id[i];
        if (now.size != then->size)
            return err_at(err, NYB_E_IO, f->path, -1,
                          "has been rewritten since it was read: %lld bytes, expected the %lld of then",
                          (long long)now.size, (long long)then->size);
        if (now.changed.tv_sec != then->changed.tv_sec || now.changed.tv_nsec != then->changed.tv_nsec)
            return err_at(err, NYB_E_IO, f->path, -1, "has been rewritten since it was read");
    }
    return NYB_OK;
}
