/* What one request got: the server-sent events of a stream, taken apart as they come, with their times. */
#ifndef NYB_CLI_LOAD_REPLY_H
#define NYB_CLI_LOAD_REPLY_H

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

#define LOAD_EVENT_MAX ((size_t)16 << 20) /* bytes of one event        */
#define LOAD_TEXT_MAX  ((size_t)64 << 20) /* bytes of one answer       */

/* A growing list of numbers. */
struct load_list {
    double *v;
    size_t n, cap;
};
void load_list_add(struct load_list *l, double v);
void load_list_free(struct load_list *l);

struct load_reply {
    bool ok;
    char *error; /* why not; NULL when ok */
    long status; /* of HTTP; 0: no answer */

    /* Seconds since the run began; -1: did not happen. */
    double sent;
    double first;             /* first chunk with text: content, reasoning or a tool call */
    double first_answer;      /* first chunk with content                                 */
    double last;              /* last chunk with choices, the one with finish_reason included */
    double ended;             /* the transfer                                              */
    struct load_list chunk;   /* times of the chunks with text                     */
    struct load_list arrival; /* their arrival_time where the server sends it: its clock, seconds */
    double arrival_last;      /* the last arrival_time of any chunk; -1: none       */
    double wall_zero;         /* the wall clock when the run began                  */
    json_t *metrics_first, *metrics_last; /* the "metrics" of events, FastDeploy's; NULL: none */

    struct buf text, reasoning;
    /* From usage; -1: the server did not say. */
    int64_t prompt_tokens, cached_tokens, output_tokens, reasoning_tokens;
    bool finished; /* finish_reason or [DONE] was seen */

    /* the parser */
    struct buf line, data;
    bool after_cr;
};

void load_reply_init(struct load_reply *r);
void load_reply_free(struct load_reply *r);
/* The first error stays. */
void load_reply_fail(struct load_reply *r, const char *fmt, ...) NYB_PRINTF(2, 3);

/* Bytes of the stream that came at `now`. false: the reply has failed and the rest need not be read. */
bool load_reply_feed(struct load_reply *r, const char *bytes, size_t n, double now);

/* Tokens of the answer: usage's, else one for each chunk with text. */
int64_t load_reply_tokens(const struct load_reply *r);

#endif
