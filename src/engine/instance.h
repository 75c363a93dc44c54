/* What is behind the opaque struct nyb_engine. */
#ifndef NYB_ENGINE_INSTANCE_H
#define NYB_ENGINE_INSTANCE_H

#include "engine/engine.h"
#include "engine/experts.h"
#include "engine/live.h"
#include "model/update.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct nyb_engine {
    struct engine *engine;
    struct model *model;
    struct live *live;           /* of the weights; never NULL */
    struct experts experts;      /* the engine's thread's */
    struct tokenizer *tokenizer; /* NULL: a dummy model without tokenizer.json */
    struct chat_template *chat;  /* NULL: the checkpoint has none */
    struct constraint_cache *constraints;
    struct params_context defaults;
    int64_t seed;             /* of requests that have none; -1: random */
    _Atomic uint64_t n_seeds; /* such requests so far */
    struct nyb_info info;
    char *name, *folder, *model_type, *quant;
    int32_t *eos;
};

/* text.c: NYB_E_UNSUPPORTED where there is no tokenizer. */
enum nyb_code text_need_tokenizer(const struct nyb_engine *e, struct nyb_err *err) NYB_MUST_CHECK;

#endif
