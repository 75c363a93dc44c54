#include "text/postproc.h"

#include <stdlib.h>
#include <string.h>

#include "text/bpe.h"
#include "text/spec.h"

static enum nyb_code malformed(const char *what, struct nyb_err *err)
{
    return err_at(err, NYB_E_FORMAT, "tokenizer.json", -1, "post-processor: %s", what);
}

static enum nyb_code take_id(const json_t *value, struct tok_ids *ids, struct nyb_err *err)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) >= STRMAP_ID_MAX)
        return malformed("a special token's id is not an id", err);
    bpe_push(ids, (int32_t)json_integer_value(value));
    return NYB_OK;
}

/* {"SpecialToken": {"id": NAME}}: the ids that "special_tokens" gives for NAME. */
static enum nyb_code take_special(const json_t *spec, const json_t *piece, struct tok_ids *ids,
                                  struct nyb_err *err)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *entry = name ? json_object_get(json_object_get(spec, "special_tokens"), name) : NULL;
    const json_t *list = json_object_get(entry, "ids");
    if (!json_is_array(list))
        return malformed("TemplateProcessing names a token that its special_tokens lack", err);
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(take_id(json_array_get(list, i), ids, err));
    return NYB_OK;
}

/* Outer ids go outside those that an earlier processor of a Sequence added. */
static void wrap(struct postproc *p, const struct postproc *outer)
{
    struct tok_ids before = {0};
    for (size_t i = 0; i < outer->before.n; i++)
        bpe_push(&before, outer->before.id[i]);
    for (size_t i = 0; i < p->before.n; i++)
        bpe_push(&before, p->before.id[i]);
    free(p->before.id);
    p->before = before;
    for (size_t i = 0; i < outer->behind.n; i++)
        bpe_push(&p->behind, outer->behind.id[i]);
}

static enum nyb_code read_template(struct postproc *outer, const json_t *spec, struct nyb_err *err)
{
    const json_t *single = NULL;
    bool met = false;
    TRY(spec_array(spec, "single", &single, err));
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *special = json_object_get(piece, "SpecialToken");
        const json_t *sequence = json_object_get(piece, "Sequence");
        if (special) {
            TRY(take_special(spec, special, met ? &outer->behind : &outer->before, err));
            continue;
        }
        const char *which = json_string_value(json_object_get(sequence, "id"));
        if (!which || strcmp(which, "A") != 0 || met)
            return malformed("TemplateProcessing's \"single\" does not hold the text once", err);
        met = true;
    }
    return met ? NYB_OK : malformed("TemplateProcessing's \"single\" does not hold the text", err);
}

static enum nyb_code read_pair(struct postproc *outer, const json_t *spec, struct nyb_err *err)
{
    TRY(take_id(json_array_get(json_object_get(spec, "cls"), 1), &outer->before, err));
    return take_id(json_array_get(json_object_get(spec, "sep"), 1), &outer->behind, err);
}

static enum nyb_code add(struct postproc *p, const json_t *spec, int depth, struct nyb_err *err)
{
    const char *type = NULL;
    const json_t *parts = NULL;
    struct postproc outer = {{0}, {0}};
    enum nyb_code code;
    TRY(spec_type(spec, "post-processor", &type, err));
    if (strcmp(type, "ByteLevel") == 0)
        return NYB_OK; /* moves offsets, not ids */
    if (strcmp(type, "Sequence") == 0) {
        TRY(spec_array(spec, "processors", &parts, err));
        if (depth == SPEC_DEPTH_MAX)
            return malformed("Sequences nest too deep", err);
        for (size_t i = 0; i < json_array_size(parts); i++)
            TRY(add(p, json_array_get(parts, i), depth + 1, err));
        return NYB_OK;
    }
    if (strcmp(type, "TemplateProcessing") == 0)
        code = read_template(&outer, spec, err);
    else if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0)
        code = read_pair(&outer, spec, err);
    else
        code = spec_unknown("post-processor", type, err);
    if (code == NYB_OK)
        wrap(p, &outer);
    postproc_close(&outer);
    return code;
}

enum nyb_code postproc_open(struct postproc *p, const json_t *spec, struct nyb_err *err)
{
    *p = (struct postproc){{0}, {0}};
    enum nyb_code code = !spec || json_is_null(spec) ? NYB_OK : add(p, spec, 0, err);
    if (code != NYB_OK)
        postproc_close(p);
    return code;
}

static enum nyb_code flag(const json_t *config, const char *name, bool *out, struct nyb_err *err)
{
    const json_t *value = json_object_get(config, name);
    if (!value || json_is_null(value))
        return NYB_OK;
    if (!json_is_boolean(value))
        return err_at(err, NYB_E_FORMAT, "tokenizer_config.json", -1, "\"%s\" is not true or false", name);
    *out = json_is_true(value);
    return NYB_OK;
}

enum nyb_code postproc_configure(struct postproc *p, const json_t *config, int32_t bos, int32_t eos,
                                 struct nyb_err *err)
{
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    bool llama = class && (strcmp(class, "LlamaTokenizer") == 0 || strcmp(class, "LlamaTokenizerFast") == 0);
    bool add_bos = llama, add_eos = false;
    TRY(flag(config, "add_bos_token", &add_bos, err));
    TRY(flag(config, "add_eos_token", &add_eos, err));
    if (llama && (bos >= 0 || !add_bos))
        p->before.n = 0;
    if (llama && (eos >= 0 || !add_eos))
        p->behind.n = 0;
    if (add_bos && bos >= 0 && p->before.n == 0)
        bpe_push(&p->before, bos);
    if (add_eos && eos >= 0 && p->behind.n == 0)
        bpe_push(&p->behind, eos);
    return NYB_OK;
}

void postproc_close(struct postproc *p)
{
    free(p->before.id);
    free(p->behind.id);
    *p = (struct postproc){{0}, {0}};
}
