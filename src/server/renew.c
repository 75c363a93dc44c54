#include "server/renew.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"
#include "server/admin.h"
#include "server/auth.h"
#include "server/loop.h"

#define LOOK_EVERY_NS 1000000000u
#define FILES_MAX     2

/* What another file, or other contents, would have otherwise. All zero: there is no file. */
struct stamp {
    uint64_t device, inode, size;
    int64_t written_s, written_ns, changed_s, changed_ns;
};

/* Files that are read together. */
struct set {
    const char *option, *file[FILES_MAX]; /* option: for the log; file: NULL: none */
    enum nyb_code (*read)(struct server *s, struct nyb_err *err);
    struct stamp used[FILES_MAX], seen[FILES_MAX]; /* when they were read; at the last look */
    char fault[sizeof(struct nyb_err)];            /* why they could not be used; empty: they could */
};

struct renew {
    struct server *s;
    struct set set[3];
    uint64_t looked_ns;
};

static struct stamp stamp_of(const char *file)
{
    struct stat st;
    if (!file || stat(file, &st) != 0)
        return (struct stamp){0};
    return (struct stamp){st.st_dev,          st.st_ino,         (uint64_t)st.st_size, st.st_mtim.tv_sec,
                          st.st_mtim.tv_nsec, st.st_ctim.tv_sec, st.st_ctim.tv_nsec};
}

static bool is_same(const struct stamp *a, const struct stamp *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->written_s == b->written_s && a->written_ns == b->written_ns && a->changed_s == b->changed_s &&
           a->changed_ns == b->changed_ns;
}

static enum nyb_code read_keys(struct server *s, struct nyb_err *err)
{
    return auth_renew(&s->auth, &s->config->api_key, s->config->api_key_file, "api-key", err);
}

static enum nyb_code read_admin_keys(struct server *s, struct nyb_err *err)
{
    return admin_renew(s, err);
}

static enum nyb_code read_certificate(struct server *s, struct nyb_err *err)
{
    return tls_renew(&s->tls, s->config->tls_cert, s->config->tls_key, err);
}

struct renew *renew_open(struct server *s)
{
    const struct serve_config *c = s->config;
    if (!c->api_key_file && !c->admin_api_key_file && !c->tls_cert)
        return NULL;
    struct renew *r = mem_alloc(1, sizeof(*r));
    *r = (struct renew){
        .s = s,
        .set = {{.option = "api-key-file", .file = {c->api_key_file}, .read = read_keys},
                {.option = "admin-api-key-file", .file = {c->admin_api_key_file}, .read = read_admin_keys},
                {.option = "tls-cert", .file = {c->tls_cert, c->tls_key}, .read = read_certificate}}};
    for (size_t i = 0; i < COUNT_OF(r->set); i++)
        for (int k = 0; k < FILES_MAX; k++)
            r->set[i].used[k] = r->set[i].seen[k] = stamp_of(r->set[i].file[k]);
    return r;
}

void renew_close(struct renew *r)
{
    free(r);
}

/* The reason may pass without any change of the file (no descriptor left, a file system that was away), so it
 * is tried until it succeeds. The same reason is said once. */
static void read_again(struct server *s, struct set *set)
{
    struct nyb_err err = {0};
    char fault[sizeof(set->fault)];
    if (set->read(s, &err) == NYB_OK) {
        log_info("%s %s has changed and is used from now on", set->option, set->file[0]);
        set->fault[0] = 0;
        return;
    }
    err_format(&err, fault, sizeof(fault));
    if (strcmp(fault, set->fault))
        log_warn("%s %s has changed and cannot be used, what was read before stays: %s", set->option,
                 set->file[0], fault);
    memcpy(set->fault, fault, sizeof(fault));
}

static void look_at(struct server *s, struct set *set)
{
    bool changed = false, still = true;
    for (int k = 0; k < FILES_MAX; k++) {
        const struct stamp now = stamp_of(set->file[k]);
        still = still && is_same(&now, &set->seen[k]);
        changed = changed || !is_same(&now, &set->used[k]);
        set->seen[k] = now;
    }
    if (!still || !(changed || set->fault[0]))
        return;
    for (int k = 0; k < FILES_MAX; k++)
        set->used[k] = set->seen[k];
    read_again(s, set);
}

void renew_look(struct renew *r, uint64_t now_ns)
{
    if (!r || now_ns - r->looked_ns < LOOK_EVERY_NS)
        return;
    r->looked_ns = now_ns;
    for (size_t i = 0; i < COUNT_OF(r->set); i++)
        look_at(r->s, &r->set[i]);
}
