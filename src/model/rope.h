/* Tables of cosines and sines, filled as far as positions have been seen. */
#ifndef NYB_MODEL_ROPE_H
#define NYB_MODEL_ROPE_H

#include "model/config.h"

struct rope {
    int half;         /* rotary_dim / 2                         */
    int64_t max_pos;  /* rows that there is room for            */
    int64_t filled;   /* rows that hold values                  */
    float *cos, *sin; /* (max_pos, half); pages come with use   */
    size_t mapped;    /* bytes of both, from cos on             */
    float *frequency; /* (half) radians a position              */
    float magnitude;  /* multiplies both: YaRN's attention factor */
};

enum nyb_code rope_open(struct rope *r, const struct rope_config *c, int64_t max_pos,
                        struct nyb_err *err) NYB_MUST_CHECK;
void rope_close(struct rope *r);
/* Make rows 0..pos valid; pos < max_pos. */
void rope_extend(struct rope *r, int64_t pos);

#endif
