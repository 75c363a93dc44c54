/* The safetensors container: 8 bytes of header length, a JSON header, then the tensors' bytes.
 *
 * Everything the header says is checked against the file's size before anyone uses it, as the reference
 * implementation does: tensors fill the data part exactly, without gaps, overlaps or left-over bytes. */
#ifndef NYB_CHECKPOINT_SAFETENSORS_H
#define NYB_CHECKPOINT_SAFETENSORS_H

#include "checkpoint/checkpoint.h"

#define SAFETENSORS_HEADER_MAX 100000000u /* bytes; the reference implementation's bound */

struct safetensors {
    struct ckpt_tensor *tensor; /* in file order; names point into `names` */
    int n_tensor;
    char *names;
    size_t name_bytes;
    int n_piece; /* that the header was read in; 0: as a whole */
};

/* Bytes that the header of an open file claims; 0: unreadable, or more than there may be. */
uint64_t safetensors_header_bytes(int fd);

/* The header of an open file of `size` bytes, parsed by at most n_thread threads beside the caller. `path` is
 * for messages. */
enum nyb_code safetensors_read(struct safetensors *st, int fd, const char *path, uint64_t size, int n_thread,
                               struct nyb_err *err) NYB_MUST_CHECK;
/* The same from memory: json is the header text, data_bytes what follows it in the file. */
enum nyb_code safetensors_parse(struct safetensors *st, const char *json, size_t len, uint64_t data_bytes,
                                const char *path, int n_thread, struct nyb_err *err) NYB_MUST_CHECK;
void safetensors_free(struct safetensors *st);

#endif
