/* Token ids and text for callers of the public interface. */
#include <stdlib.h>

#include "engine/instance.h"

enum nyb_code text_need_tokenizer(const struct nyb_engine *e, struct nyb_err *err)
{
    return e->tokenizer ? NYB_OK
                        : err_at(err, NYB_E_UNSUPPORTED, e->folder, -1,
                                 "there is no tokenizer.json: this model takes and gives token ids only");
}

void nyb_free(void *p)
{
    free(p);
}

enum nyb_code nyb_tokenize(const struct nyb_engine *e, const char *text, size_t text_bytes,
                           bool add_special_tokens, int32_t **ids, size_t *n, struct nyb_err *err)
{
    struct tok_ids list = {0};
    *ids = NULL;
    *n = 0;
    TRY(text_need_tokenizer(e, err));
    enum nyb_code code = tok_encode(e->tokenizer, text, text_bytes, add_special_tokens, &list, err);
    if (code != NYB_OK) {
        tok_ids_free(&list);
        return code;
    }
    *ids = list.id;
    *n = list.n;
    return NYB_OK;
}

enum nyb_code nyb_detokenize(const struct nyb_engine *e, const int32_t *ids, size_t n,
                             bool keep_special_tokens, char **text, size_t *text_bytes, struct nyb_err *err)
{
    struct buf b = {0};
    TRY(text_need_tokenizer(e, err));
    tok_decode(e->tokenizer, ids, n, !keep_special_tokens, &b);
    if (text_bytes)
        *text_bytes = b.len;
    *text = buf_steal(&b);
    return NYB_OK;
}

enum nyb_code nyb_token_bytes(const struct nyb_engine *e, int32_t id, char **bytes, size_t *n,
                              struct nyb_err *err)
{
    struct buf b = {0};
    TRY(text_need_tokenizer(e, err));
    if (!tok_text_of(e->tokenizer, id))
        return err_set(err, NYB_E_NOT_FOUND, "there is no token %d", id);
    if (!tok_token_bytes(e->tokenizer, id, &b)) {
        buf_free(&b);
        return err_set(err, NYB_E_UNSUPPORTED, "the bytes of token %d depend on the tokens around it", id);
    }
    *n = b.len;
    *bytes = buf_steal(&b);
    return NYB_OK;
}

const char *nyb_token_text(const struct nyb_engine *e, int32_t id)
{
    return e->tokenizer ? tok_text_of(e->tokenizer, id) : NULL;
}
