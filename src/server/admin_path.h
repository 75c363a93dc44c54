/* Which folders new weights may come from. */
#ifndef NYB_SERVER_ADMIN_PATH_H
#define NYB_SERVER_ADMIN_PATH_H

#include "server/config.h"

struct admin_roots {
    char *item[CONFIG_LIST_MAX]; /* resolved */
    int n;
    char *served; /* the folder the server was started with, resolved; NULL: none yet, or it is gone */
};

/* Every root must be a folder. */
enum nyb_code admin_roots_open(struct admin_roots *r, const struct config_list *roots,
                               struct nyb_err *err) NYB_MUST_CHECK;
/* The served folder is allowed, too. */
void admin_roots_serve(struct admin_roots *r, const char *folder);
void admin_roots_close(struct admin_roots *r);

/* The folder that path names, resolved: every `..` and link followed, and then below a root, or the served
 * one. A relative path counts from each root in turn. The links within the folder must not lead out of the
 * roots either. Caller frees. NULL: *status (403 or 400) and err say why not.
 *
 * Who can write below a root while an update runs can still exchange a folder for another between this look
 * and the reading; a root is for people who may choose the weights. */
char *admin_roots_find(const struct admin_roots *r, const char *path, int *status, struct nyb_err *err);

#endif
