/* One sequence over a model, without the engine: what verify, eval and inspect need to watch a forward pass.
 */
#ifndef NYB_CLI_SEQUENCE_H
#define NYB_CLI_SEQUENCE_H

#include "model/model.h"

struct sequence {
    struct model *model;
    int n_past, max_len;
    int32_t *block_table; /* identity */
    int32_t *pos, *slot, *out_row;
};

/* Reserves KV for max_len tokens in the model. */
enum nyb_code sequence_open(struct sequence *s, struct model *m, int max_len,
                            struct nyb_err *err) NYB_MUST_CHECK;
void sequence_close(struct sequence *s);
void sequence_rewind(struct sequence *s, int n_past);

/* Append n tokens in one step. Logits of the last n_out of them into logits (n_out, vocab). */
enum nyb_code sequence_step(struct sequence *s, const int32_t *ids, int n, int n_out, float *logits,
                            const struct model_probe *probe, struct nyb_err *err) NYB_MUST_CHECK;

/* Lowest index among the largest. */
int32_t sequence_argmax(const float *logits, int n);

#endif
