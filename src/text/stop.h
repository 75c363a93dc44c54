/* Stop strings: end the answer when one of them appears, wherever the text was cut on its way here.
 *
 * The stop string that is complete first wins, for that is where generation would have ended; when two are
 * complete at the same byte, the one named first in the request. This is what vLLM does when it looks after
 * every character, and it depends neither on token borders nor on how many tokens a step yields.
 *
 * Text that may still turn out to be the start of a stop string is held back, and no other: never more than
 * the longest stop string less one byte. Where the stop string belongs to the answer (include) nothing is
 * held back. */
#ifndef NYB_TEXT_STOP_H
#define NYB_TEXT_STOP_H

#include "base/buf.h"
#include "base/err.h"

#define STOP_COUNT_MAX 64    /* strings a request                */
#define STOP_BYTES_MAX 16384 /* bytes of all of them, one request */

struct stop_string {
    const char *text; /* well-formed UTF-8, not empty; copied */
    size_t len;
};

struct stop;

/* n may be 0: then nothing ever stops. An empty, ill-formed or oversized list is the client's error. */
enum nyb_code stop_open(struct stop **out, const struct stop_string *string, size_t n, bool include,
                        struct nyb_err *err) NYB_MUST_CHECK;
void stop_close(struct stop *s);

/* Append to out the text that is now sure to belong to the answer. True: a stop string is complete; what
 * follows it in `text`, and every later push, is dropped. Time O(len * n), no allocation but out's. */
bool stop_push(struct stop *s, const char *text, size_t len, struct buf *out);

/* The answer ended for another reason: release what is held back. */
void stop_finish(struct stop *s, struct buf *out);

int stop_matched(const struct stop *s); /* index of the string that ended the answer, or -1 */
size_t stop_held(const struct stop *s); /* bytes held back now                              */

#endif
