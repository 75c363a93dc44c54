/* What settings mean together, once all of them are read. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/config_option.h"

#define EPLB_INTERVAL 1000 /* steps, of enable-eplb */

/* rope-scaling is a member of hf-overrides. */
static enum nyb_code fold_rope_scaling(struct serve_config *c, struct nyb_err *err)
{
    if (!c->rope_scaling)
        return NYB_OK;
    json_t *all = json_loads(c->hf_overrides ? c->hf_overrides : "{}", JSON_REJECT_DUPLICATES, NULL);
    json_t *rope = json_loads(c->rope_scaling, JSON_REJECT_DUPLICATES, NULL);
    enum nyb_code code = NYB_OK;
    if (!json_is_object(all))
        code = err_at(err, NYB_E_ARG, NULL, -1, "hf-overrides must be a JSON object, got \"%.200s\"",
                      c->hf_overrides);
    else if (!json_is_object(rope))
        code = err_at(err, NYB_E_ARG, NULL, -1,
                      "rope-scaling must be a JSON object such as {\"rope_type\": \"yarn\", \"factor\": 4.0, "
                      "\"original_max_position_embeddings\": 32768}, got \"%.200s\"",
                      c->rope_scaling);
    if (code == NYB_OK) {
        json_object_set(all, "rope_scaling", rope);
        free(c->hf_overrides);
        c->hf_overrides = json_dumps(all, JSON_COMPACT);
    }
    json_decref(rope);
    json_decref(all);
    return code;
}

static enum nyb_code check_template_kwargs(const struct serve_config *c, struct nyb_err *err)
{
    if (!c->chat_template_kwargs)
        return NYB_OK;
    static const char *const taken[] = {"messages", "tools", "add_generation_prompt"};
    json_t *all = json_loads(c->chat_template_kwargs, JSON_REJECT_DUPLICATES, NULL);
    enum nyb_code code = NYB_OK;
    if (!json_is_object(all))
        code = err_at(err, NYB_E_ARG, NULL, -1,
                      "chat-template-kwargs must be a JSON object such as {\"enable_thinking\": false}, got "
                      "\"%.200s\"",
                      c->chat_template_kwargs);
    for (size_t i = 0; i < COUNT_OF(taken) && code == NYB_OK; i++)
        if (json_object_get(all, taken[i]))
            code =
                err_at(err, NYB_E_ARG, NULL, -1, "chat-template-kwargs: %s is a request's to say", taken[i]);
    json_decref(all);
    return code;
}

/* owner/name@revision is how the rest of the program names it. */
static enum nyb_code fold_revision(struct serve_config *c, struct nyb_err *err)
{
    if (!c->revision)
        return NYB_OK;
    if (!c->model || strchr(c->model, '@'))
        return err_at(err, NYB_E_ARG, NULL, -1,
                      c->model ? "revision is named twice: \"%.100s\" and \"%.100s\""
                               : "revision is for a model of the Hugging Face cache: none is named",
                      c->model, c->revision);
    char *both = mem_printf("%s@%s", c->model, c->revision);
    free(c->model);
    c->model = both;
    return NYB_OK;
}

enum nyb_code config_settle(struct serve_config *c, struct nyb_err *err)
{
    if (c->eplb && !c->expert_rebalance_interval)
        c->expert_rebalance_interval = EPLB_INTERVAL;
    if (!c->max_num_seqs) { /* auto */
        struct nyb_options o;
        nyb_options_init(&o);
        c->max_num_seqs = o.max_num_seqs;
    }
    c->defaults.top_k = (int)c->top_k;
    c->defaults.max_tokens = c->max_tokens ? (int)c->max_tokens : NYB_UNSET;
    TRY(fold_rope_scaling(c, err));
    TRY(fold_revision(c, err));
    return check_template_kwargs(c, err);
}
