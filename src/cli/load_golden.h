/* The answers that a run must get, so that a broken server cannot look fast: JSON lines
 * {"input": prompt or messages, "max_tokens": N, "text": answer}, as --save-golden writes them. */
#ifndef NYB_CLI_LOAD_GOLDEN_H
#define NYB_CLI_LOAD_GOLDEN_H

#include "cli/load_data.h"
#include "cli/load_reply.h"

struct load_golden {
    json_t *text; /* by the request, as text */
};

/* Fails where the file has no answer for one of the requests. */
enum nyb_code load_golden_open(struct load_golden *g, const char *path, const struct load_data *d,
                               struct nyb_err *err) NYB_MUST_CHECK;
void load_golden_close(struct load_golden *g);
/* A reply with another text fails. Returns the number of those. */
int load_golden_check(const struct load_golden *g, const struct load_data *d, struct load_reply *reply);
/* The answers of the replies that are ok. */
enum nyb_code load_golden_save(const char *path, const struct load_data *d, const struct load_reply *reply,
                               struct nyb_err *err) NYB_MUST_CHECK;

#endif
