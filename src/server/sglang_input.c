#include "server/sglang_input.h"

#include <string.h>

#include "base/mem.h"
#include "server/asked.h"
#include "server/params_json.h"
#include "server/rename.h"

static const struct rename names[] = {{"max_tokens", "max_new_tokens"},
                                      {"min_tokens", "min_new_tokens"},
                                      {"seed", "sampling_seed"},
                                      {"include_stop_str_in_output", "no_stop_trim"},
                                      {"prompt_logprobs", "top_logprobs_num"},
                                      {"logprobs", "top_logprobs_num"},
                                      {"prompt", "text"},
                                      {"request_id", "rid"}};

/* Of completions, but no sampling parameters: the request itself says them. */
static const char *const not_sampling[] = {
    "prompt",          "stream", "stream_options",   "logprobs",   "echo",
    "prompt_logprobs", "model",  "return_token_ids", "request_id", "rid"};

static enum nyb_code check_unsupported(const json_t *asked, struct nyb_err *err)
{
    static const struct {
        const char *name, *why;
    } table[] = {
        {"image_data", "the model takes and gives text alone"},
        {"video_data", "the model takes and gives text alone"},
        {"audio_data", "the model takes and gives text alone"},
        {"input_embeds", "prompts are texts or token ids"},
        {"token_ids_logprob", "log-probabilities are those of the chosen and the most likely tokens"},
        {"session_params", "each request brings its whole prompt"},
        {"bootstrap_host", "one server computes the prompt and its answer"}};
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const json_t *v = asked_member(asked, table[i].name);
        if (v && !(json_is_array(v) && json_array_size(v) == 0))
            return err_at(err, NYB_E_UNSUPPORTED, table[i].name, -1,
                          "%s is not supported: %s. (parameter=%s)", table[i].name, table[i].why,
                          table[i].name);
    }
    return NYB_OK;
}

/* text or input_ids: one, or a list of them. */
static enum nyb_code read_prompt(const json_t *asked, json_t *body, struct sglang *how, struct nyb_err *err)
{
    json_t *text = asked_member(asked, "text"), *ids = asked_member(asked, "input_ids"),
           *prompt = text ? text : ids;
    if (!prompt)
        return err_at(err, NYB_E_ARG, "text", -1, "text or input_ids must be given. (parameter=text)");
    if (text && ids)
        return err_at(err, NYB_E_ARG, "input_ids", -1,
                      "text and input_ids cannot be given together. (parameter=input_ids)");
    if (ids && !json_is_array(ids))
        return params_wrong_type(err, "input_ids", "a list of token ids, or of such lists", ids);
    how->list = json_is_array(prompt) && !json_is_number(json_array_get(prompt, 0));
    json_object_set(body, "prompt", prompt);
    return NYB_OK;
}

static bool is_sampling(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(not_sampling); i++)
        if (!strcmp(name, not_sampling[i]))
            return false;
    return true;
}

static enum nyb_code read_sampling(const json_t *asked, json_t *body, struct sglang *how, struct nyb_err *err)
{
    json_t *sampling = asked_member(asked, "sampling_params"), *value;
    const char *key;
    int n = 1;
    if (sampling && !json_is_object(sampling))
        return params_wrong_type(err, "sampling_params", "an object, the same for all prompts", sampling);
    json_object_foreach(sampling, key, value)
    {
        const char *name = key;
        for (size_t i = 0; i < 4; i++) /* the rest are not among the sampling parameters */
            name = strcmp(key, names[i].asked) ? name : names[i].chat;
        if (!json_is_null(value) && is_sampling(name))
            json_object_set(body, name, value);
    }
    TRY(params_int(body, "n", &n, err));
    how->list = how->list || n > 1;
    return NYB_OK;
}

static enum nyb_code read_logprobs(const json_t *asked, json_t *body, struct sglang *how, struct nyb_err *err)
{
    bool wanted = false, stream = false;
    int top = 0;
    how->start = -1;
    TRY(params_bool(asked, "stream", &stream, err));
    TRY(params_bool(asked, "return_logprob", &wanted, err));
    TRY(params_bool(asked, "return_text_in_logprobs", &how->texts, err));
    TRY(params_int(asked, "top_logprobs_num", &top, err));
    TRY(params_int(asked, "logprob_start_len", &how->start, err));
    if (wanted && stream) /* every event would have all of them */
        return err_at(err, NYB_E_ARG, "return_logprob", -1,
                      "return_logprob is not available when stream is true. (parameter=return_logprob)");
    if (!wanted)
        how->start = -1;
    if (wanted)
        json_object_set_new(body, "logprobs", json_integer(top));
    if (how->start >= 0)
        json_object_set_new(body, "prompt_logprobs", json_integer(top));
    return NYB_OK;
}

static enum nyb_code convert(const json_t *asked, json_t *body, struct sglang *how, struct nyb_err *err)
{
    static const char *const same[] = {
        "stream", "rid", "priority", "lora_path", "custom_logit_processor", "return_hidden_states"};
    TRY(check_unsupported(asked, err));
    TRY(read_prompt(asked, body, how, err));
    TRY(read_sampling(asked, body, how, err));
    TRY(read_logprobs(asked, body, how, err));
    for (size_t i = 0; i < COUNT_OF(same); i++)
        if (asked_member(asked, same[i]))
            json_object_set(body, same[i], asked_member(asked, same[i]));
    json_object_set_new(body, "return_token_ids", json_true());
    return NYB_OK;
}

enum nyb_code sglang_input(const json_t *asked, json_t **completion, struct sglang *how, struct nyb_err *err)
{
    *how = (struct sglang){0};
    *completion = json_object();
    enum nyb_code code = convert(asked, *completion, how, err);
    if (code == NYB_OK)
        return NYB_OK;
    json_decref(*completion);
    *completion = NULL;
    return code;
}

void sglang_rename_fault(struct nyb_err *err)
{
    rename_fault(err, names, COUNT_OF(names), "prompts");
}
