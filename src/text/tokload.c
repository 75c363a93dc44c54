/* From tokenizer.json (and tokenizer_config.json) to a tokenizer. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "text/spec.h"
#include "text/tok.h"
#include "text/tokfile.h"

/* --- model
 * -------------------------------------------------------------------------------------------------- */

static enum nyb_code refuse_affix(const json_t *model, const char *field, struct nyb_err *err)
{
    const json_t *value = json_object_get(model, field);
    if (!value || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0))
        return NYB_OK;
    return err_at(err, NYB_E_UNSUPPORTED, "tokenizer.json", -1,
                  "the BPE model sets %s, which is not supported", field);
}

static enum nyb_code read_model(struct tokenizer *t, const json_t *model, struct nyb_err *err)
{
    const char *type = json_string_value(json_object_get(model, "type"));
    const json_t *dropout = json_object_get(model, "dropout"), *unk = json_object_get(model, "unk_token");
    if (type && strcmp(type, "BPE") != 0) /* old files leave it out */
        return spec_unknown("model type", type, err);
    TRY(refuse_affix(model, "continuing_subword_prefix", err));
    TRY(refuse_affix(model, "end_of_word_suffix", err));
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return err_at(err, NYB_E_UNSUPPORTED, "tokenizer.json", -1,
                      "the BPE model sets dropout, which is random");
    TRY(spec_bool(model, "byte_fallback", &t->bpe.byte_fallback, err));
    TRY(spec_bool(model, "fuse_unk", &t->bpe.fuse_unk, err));
    TRY(spec_bool(model, "ignore_merges", &t->bpe.ignore_merges, err));
    t->bpe.unk = -1;
    if (json_is_string(unk)) {
        t->bpe.unk = strmap_find(&t->bpe.vocab, json_string_value(unk), json_string_length(unk));
        if (t->bpe.unk < 0)
            return err_at(err, NYB_E_FORMAT, "tokenizer.json", -1,
                          "unk_token \"%.100s\" is not in the vocabulary", json_string_value(unk));
    }
    return NYB_OK;
}

/* --- added tokens
 * ------------------------------------------------------------------------------------------- */

/* Vocabulary and list must agree on ids. */
static enum nyb_code place(struct tokenizer *t, const struct added_token *a, const char *where,
                           struct nyb_err *err)
{
    int32_t known = strmap_find(&t->bpe.vocab, a->content, a->len);
    size_t len;
    if (known == a->id)
        return NYB_OK;
    if (known >= 0)
        return err_at(err, NYB_E_FORMAT, where, -1,
                      "added token \"%.100s\" has id %d, but %d in the vocabulary", a->content, a->id, known);
    if (strmap_key(&t->bpe.vocab, a->id, &len))
        return err_at(err, NYB_E_FORMAT, where, -1, "added token \"%.100s\" takes id %d, which is \"%.100s\"",
                      a->content, a->id, strmap_key(&t->bpe.vocab, a->id, &len));
    switch (strmap_add(&t->extra, a->content, a->len, a->id)) {
    case STRMAP_ADDED:
        return NYB_OK;
    case STRMAP_KEY_TAKEN:
    case STRMAP_ID_TAKEN:
        return err_at(err, NYB_E_FORMAT, where, -1,
                      "added token \"%.100s\" (id %d) clashes with an earlier one", a->content, a->id);
    case STRMAP_BAD_ID:
    case STRMAP_TOO_LONG:
        break;
    }
    return err_at(err, NYB_E_FORMAT, where, -1,
                  "added token \"%.100s\" has id %d or a length beyond what is accepted", a->content, a->id);
}

static enum nyb_code add_token(struct tokenizer *t, const json_t *spec, json_int_t id, const char *where,
                               struct nyb_err *err)
{
    struct added_token a = {.normalized = true};
    const char *content = NULL;
    TRY(spec_string(spec, "content", &content, &a.len, err));
    if (id < 0 || id >= STRMAP_ID_MAX)
        return err_at(err, NYB_E_FORMAT, where, -1, "added token \"%.100s\" has no id from 0 to %d", content,
                      STRMAP_ID_MAX - 1);
    a.id = (int32_t)id;
    TRY(spec_bool(spec, "special", &a.special, err));
    a.normalized = !a.special; /* the reference's default; the field is always written */
    TRY(spec_bool(spec, "normalized", &a.normalized, err));
    TRY(spec_bool(spec, "single_word", &a.single_word, err));
    TRY(spec_bool(spec, "lstrip", &a.lstrip, err));
    TRY(spec_bool(spec, "rstrip", &a.rstrip, err));
    if (a.len == 0)
        return NYB_OK; /* the reference leaves them out as well */
    a.content = mem_alloc(a.len + 1, 1);
    memcpy(a.content, content, a.len);
    enum nyb_code code = place(t, &a, where, err);
    if (code == NYB_OK)
        added_push(&t->added, a);
    free(a.content);
    return code;
}

static enum nyb_code read_added(struct tokenizer *t, const json_t *list, const char *where,
                                struct nyb_err *err)
{
    if (!list || json_is_null(list))
        return NYB_OK;
    if (!json_is_array(list))
        return err_at(err, NYB_E_FORMAT, where, -1, "\"added_tokens\" is not an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *spec = json_array_get(list, i), *id = json_object_get(spec, "id");
        TRY(add_token(t, spec, json_is_integer(id) ? json_integer_value(id) : -1, where, err));
    }
    return NYB_OK;
}

/* added_tokens_decoder of tokenizer_config.json: {"ID": {content, ...}}. Only what tokenizer.json does not
 * list. */
static enum nyb_code read_config_added(struct tokenizer *t, json_t *map, struct nyb_err *err)
{
    const char *key;
    json_t *spec;
    json_object_foreach(map, key, spec)
    {
        const json_t *content = json_object_get(spec, "content");
        char *end;
        long id = strtol(key, &end, 10);
        if (json_is_string(content) &&
            added_find_content(&t->added, json_string_value(content), json_string_length(content)))
            continue;
        TRY(add_token(t, spec, *key && !*end ? id : -1, "tokenizer_config.json", err));
    }
    return NYB_OK;
}

/* --- tokenizer_config.json
 * ---------------------------------------------------------------------------------- */

/* "bos_token": a string, or an object with its content. -1: none. */
static int32_t named_id(const struct tokenizer *t, const json_t *config, const char *field)
{
    const json_t *value = json_object_get(config, field);
    const char *content =
        json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
    return content ? tok_id_of(t, content) : -1;
}

static enum nyb_code apply_config(struct tokenizer *t, const json_t *config, struct nyb_err *err)
{
    if (!config)
        return NYB_OK;
    TRY(read_config_added(t, json_object_get(config, "added_tokens_decoder"), err));
    return postproc_configure(&t->postproc, config, named_id(t, config, "bos_token"),
                              named_id(t, config, "eos_token"), err);
}

/* --- all together
 * ------------------------------------------------------------------------------------------- */

static enum nyb_code check_frame(const struct tokenizer *t, const struct tok_ids *ids, struct nyb_err *err)
{
    size_t len;
    for (size_t i = 0; i < ids->n; i++)
        if (!tok_spelling(t, ids->id[i], &len))
            return err_at(err, NYB_E_FORMAT, "tokenizer.json", -1, "post-processor: id %d is no token",
                          ids->id[i]);
    return NYB_OK;
}

static void mark_special(struct tokenizer *t)
{
    t->n_id = t->bpe.vocab.n_id > t->extra.n_id ? t->bpe.vocab.n_id : t->extra.n_id;
    t->special = mem_alloc((size_t)t->n_id, sizeof(*t->special));
    for (size_t i = 0; i < t->added.n; i++)
        if (t->added.token[i].special)
            t->special[t->added.token[i].id] = true;
}

static enum nyb_code build(struct tokenizer *t, const json_t *rest, const char *where, const json_t *config,
                           struct nyb_err *err)
{
    TRY(read_model(t, json_object_get(rest, "model"), err));
    TRY(normalizer_open(&t->normalizer, json_object_get(rest, "normalizer"), err));
    TRY(pretok_open(&t->pretok, json_object_get(rest, "pre_tokenizer"), err));
    TRY(decoder_open(&t->decoder, json_object_get(rest, "decoder"), err));
    TRY(postproc_open(&t->postproc, json_object_get(rest, "post_processor"), err));
    TRY(read_added(t, json_object_get(rest, "added_tokens"), where, err));
    TRY(bpe_finish(&t->bpe, pretok_is_byte_level(t->pretok), err));
    TRY(apply_config(t, config, err));
    TRY(added_finish(&t->added, t->normalizer, err));
    TRY(check_frame(t, &t->postproc.before, err));
    TRY(check_frame(t, &t->postproc.behind, err));
    mark_special(t);
    return NYB_OK;
}

enum nyb_code tokload_parse(struct tokenizer *t, const char *text, size_t len, const char *where,
                            const json_t *config, struct nyb_err *err)
{
    json_t *rest = NULL;
    TRY(tokfile_parse(&rest, &t->bpe, text, len, where, err));
    enum nyb_code code = build(t, rest, where, config, err);
    json_decref(rest);
    return code;
}

/* A folder's tokenizer_config.json, or NULL where there is none. */
static enum nyb_code read_config(json_t **config, const char *folder, struct nyb_err *err)
{
    char *path = path_join(folder, "tokenizer_config.json");
    enum nyb_code code = file_exists(path) ? json_read_file(config, path, err) : NYB_OK;
    free(path);
    return code;
}

enum nyb_code tokload_read(struct tokenizer *t, const char *folder, struct nyb_err *err)
{
    bool is_dir = file_is_dir(folder);
    char *path = is_dir ? path_join(folder, "tokenizer.json") : mem_strdup(folder);
    char *text = NULL;
    size_t len = 0;
    json_t *config = NULL;
    enum nyb_code code = file_read_all(path, JSON_FILE_MAX, &text, &len, err);
    if (code == NYB_OK && is_dir)
        code = read_config(&config, folder, err);
    if (code == NYB_OK)
        code = tokload_parse(t, text, len, path, config, err);
    json_decref(config);
    free(text);
    free(path);
    return code;
}
