/* Chat templates: the part of Python's jinja2 that they use, as transformers sets it up (docs/TEXT.md names
 * the exact subset). The interpreter lives in the files jinja_X.c, each of which exports names that begin
 * with jX_.
 *
 * A template is immutable after jinja_open and may be rendered by any thread. Every render has limits on
 * steps, depth and memory, so that a hostile template gets an error within a tenth of a second. */
#ifndef NYB_TEXT_JINJA_H
#define NYB_TEXT_JINJA_H

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"

#define JINJA_SOURCE_MAX (4u << 20)
/* Memory and steps of one render; both grow with the input, which the caller has bounded. A step is about one
 * node of an expression or 64 bytes of text. */
#define JINJA_HEAP_BASE        (48u << 20)
#define JINJA_HEAP_PER_BYTE    40
#define JINJA_STEPS_BASE       1000000u
#define JINJA_STEPS_PER_VALUE  2000
#define JINJA_DEPTH_MAX        900    /* nested evaluations, counted in nodes */
#define JINJA_SOURCE_DEPTH_MAX 200    /* nested expressions and blocks in the source */
#define JINJA_VALUE_DEPTH_MAX  256    /* nested lists and dicts */
#define JINJA_RANGE_MAX        100000 /* as the sandbox of jinja2 */

struct jinja_template;

enum nyb_code jinja_open(struct jinja_template **out, const char *source, size_t len,
                         struct nyb_err *err) NYB_MUST_CHECK;
void jinja_close(struct jinja_template *t);

/* A variable of the template. Text of input variables is marked in the output, text of others is not. */
struct jinja_var {
    const char *name;
    const json_t *value;
    bool input;
    bool has_roles; /* an array of messages, whose well-known roles count as text of the template */
};

/* A stretch of the output from one origin. */
struct jinja_part {
    size_t len;
    bool input; /* some of it came, or may have come, from an input variable */
};

struct jinja_output {
    struct buf text;
    struct jinja_part *part; /* (n_part), together as long as text */
    size_t n_part;
};

/* An integer that 64 bits cannot hold travels in jansson values as a string: this prefix (a noncharacter,
 * which no text for interchange holds), then its digits. */
#define JINJA_BIG_INT "\xEF\xB7\x90"

/* The message of raise_exception comes back as it is, all other errors name the line of the template. */
enum nyb_code jinja_render(const struct jinja_template *t, const struct jinja_var *var, size_t n_var,
                           int64_t now, struct jinja_output *out, struct nyb_err *err) NYB_MUST_CHECK;
void jinja_output_free(struct jinja_output *o);

#endif
