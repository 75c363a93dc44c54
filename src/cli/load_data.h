/* The requests of a run: what is asked, for how many tokens, and when. */
#ifndef NYB_CLI_LOAD_DATA_H
#define NYB_CLI_LOAD_DATA_H

#include "base/err.h"
#include "base/json.h"

struct load_request {
    json_t *input;   /* a string (prompt) or an array (messages)                         */
    json_t *members; /* NULL, or what the row adds to the body: tools, response_format.. */
    int max_tokens;  /* 0: none is asked for                                             */
    double at_s;     /* when it is due                                                   */
};

struct load_data {
    struct load_request *request;
    int n, cap;
};
void load_data_free(struct load_data *d);

enum load_set {
    LOAD_RANDOM,
    LOAD_EBCHAT,
    LOAD_EB,
    LOAD_CUSTOM,
    LOAD_SHAREGPT,
    LOAD_SONNET,
    LOAD_TRACE,
    LOAD_SET_COUNT
};
bool load_set_parse(const char *name, enum load_set *out); /* any case */
const char *load_set_name(enum load_set s);

enum load_ramp { LOAD_RAMP_NONE, LOAD_RAMP_LINEAR, LOAD_RAMP_EXPONENTIAL };

/* Lengths are in words where the text is made here: a word is one token or a little more. */
struct load_data_options {
    enum load_set set;
    const char *path; /* of the file; NULL: none            */
    int n;            /* requests wanted                    */
    uint64_t seed;
    bool shuffle; /* rows of a file, before the first n are taken */
    int random_input, random_output, random_prefix;
    double random_range; /* lengths are uniform in L (1 - r) to L (1 + r) */
    int sonnet_input, sonnet_output, sonnet_prefix;
    int file_output;           /* --sharegpt-output-len; 0: the row's, else an estimate from its answer */
    int custom_output;         /* --custom-output-len, where the row has none */
    int max_input, max_output; /* cut lengths to this; 0: as they are */
    double trace_speed;        /* 2: twice as fast as recorded */
    double request_rate;       /* a second; infinity: all at once. Not for traces */
    double burstiness;         /* 1: Poisson                   */
    enum load_ramp ramp;       /* the rate goes from ramp_start to ramp_end over the requests instead */
    double ramp_start, ramp_end;
};

/* A file with fewer rows than wanted is drawn from again, with replacement; a trace is not. */
enum nyb_code load_data_make(struct load_data *d, const struct load_data_options *o,
                             struct nyb_err *err) NYB_MUST_CHECK;

#endif
