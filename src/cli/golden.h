/* The right answers that lie beside a checkpoint: golden.safetensors and golden.json, made by an independent
 * implementation in fp32 on the dequantized weights.
 *
 * golden.safetensors: ids (n), hidden.0 (embedding), hidden.i (the residual stream after layer i - 1; the
 * last one after the final norm), logits (n, vocab), logits_w4a4 (the same with NVFP4 activations).
 * golden.json: prompt_ids and greedy_ids, with greedy_margin where known; or a list of such under "greedy".
 */
#ifndef NYB_CLI_GOLDEN_H
#define NYB_CLI_GOLDEN_H

#include "base/err.h"

struct golden_case {
    int32_t *prompt, *greedy;
    double *margin; /* (n_greedy) logit distance of the runner-up, or NULL */
    int n_prompt, n_greedy;
};

struct golden {
    int n_tok, n_hidden, hidden_size, vocab; /* all 0 without golden.safetensors */
    int32_t *ids;                            /* (n_tok) */
    float **hidden;                          /* (n_hidden) of (n_tok, hidden_size) */
    float *logits, *logits_w4a4;             /* (n_tok, vocab); the second may be NULL */
    struct golden_case *cases;
    int n_case;
};

/* An error when the folder has neither file, or they do not fit the model. */
enum nyb_code golden_read(struct golden *g, const char *folder, int vocab, int hidden_size, int n_layer,
                          struct nyb_err *err) NYB_MUST_CHECK;
void golden_free(struct golden *g);

#endif
