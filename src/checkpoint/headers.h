/* Headers of a checkpoint's files, read and parsed by threads of their own, a header by several if there are
 * more of them than files: that is JSON of several megabytes, some 50 ms each. It begins before the index,
 * which is as long as all of them together, has been parsed, with the files that it will most likely name. */
#ifndef NYB_CHECKPOINT_HEADERS_H
#define NYB_CHECKPOINT_HEADERS_H

#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"

struct headers;

/* Begin with these files of the folder, in at most n_thread threads (0: as they are taken). Files that cannot
 * be read or parsed matter only if they are taken. */
void headers_start(struct headers **out, const char *folder, const struct index_set *set, int n_thread);

/* The header of file->path, which is opened unless file->fd is there already: waits for it, or does it now.
 */
enum nyb_code headers_take(struct headers *h, struct ckpt_file *file, struct safetensors *st,
                           struct nyb_err *err) NYB_MUST_CHECK;

/* Those that nobody has taken are dropped. */
void headers_stop(struct headers *h);

#endif
