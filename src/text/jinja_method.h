/* Methods of values. Each part has a table that a row without a name ends. */
#ifndef NYB_TEXT_JINJA_METHOD_H
#define NYB_TEXT_JINJA_METHOD_H

#include "text/jinja_run.h"

extern const struct jmethod jmethod_str_cut[];  /* split, strip and what else takes a string apart */
extern const struct jmethod jmethod_str_case[]; /* case, classes, padding                          */
extern const struct jmethod jmethod_seq[];      /* lists, tuples, dicts, cycler                    */
extern const struct jmethod jloop_methods[];

/* s without the characters (NULL: whitespace) at its ends. */
const struct jstr *jmethod_strip(struct jrun *r, const struct jstr *s, const struct jstr *chars, bool left,
                                 bool right);
/* Lines, with their ends where keep holds. */
struct jlist *jmethod_split_lines(struct jrun *r, const struct jstr *s, bool keep);
/* count < 0: all */
const struct jstr *jmethod_replace(struct jrun *r, const struct jstr *s, const struct jstr *from,
                                   const struct jstr *to, int64_t count);
const struct jstr *jmethod_pad(struct jrun *r, const struct jstr *s, int64_t width, const struct jstr *fill,
                               char align);

#endif
