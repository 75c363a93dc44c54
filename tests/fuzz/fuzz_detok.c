/* Any ids: the pieces of the incremental detokenizer make the same text as decoding all at once, and each
 * piece is made of whole characters. One decoder with byte fallback and one with byte-level keys. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/bytelevel.h"
#include "text/tok.h"
#include "text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* 256 tokens, one a byte, and two more: a space mark and a special token. */
static struct tokenizer *make(bool byte_level)
{
    struct buf json = {0};
    buf_add_str(&json,
                byte_level
                    ? "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"},"
                    : "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
                      "{\"String\":\"_\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
                      "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}]},");
    buf_add_str(
        &json,
        "\"added_tokens\":[{\"id\":257,\"content\":\"<s>\",\"special\":true}],\"model\":{\"merges\":[],"
        "\"vocab\":{\"__\":256");
    for (int byte = 0; byte < 256; byte++) {
        buf_add_str(&json, ",\"");
        if (byte_level)
            buf_printf(&json, "\\u%04x", bytelevel_char((uint8_t)byte));
        else
            buf_printf(&json, "<0x%02X>", (unsigned)byte);
        buf_printf(&json, "\":%d", byte);
    }
    buf_add_str(&json, "}}}");
    struct tokenizer *t = mem_alloc(1, sizeof(*t));
    if (tokload_parse(t, json.data, json.len, "fuzz", NULL, NULL) != NYB_OK)
        abort();
    buf_free(&json);
    return t;
}

static void check(const struct tokenizer *t, const uint8_t *data, size_t size, bool skip_special)
{
    struct detok *d = detok_open(t, skip_special);
    struct buf pieces = {0}, all = {0};
    int32_t *id = mem_alloc(size + 1, sizeof(*id));
    for (size_t i = 0; i < size; i++)
        id[i] = data[i] == 1 ? 256 : data[i] == 2 ? 257 : data[i] == 3 ? 999 : data[i];
    tok_decode(t, id, size, skip_special, &all);
    for (size_t i = 0; i <= size; i++) {
        size_t before = pieces.len;
        if (i < size)
            detok_push(d, id[i], &pieces);
        else
            detok_finish(d, &pieces);
        size_t n = pieces.len - before;
        if (n > 0 && utf8_valid_prefix(pieces.data + before, n) != n)
            abort();
    }
    if (pieces.len != all.len || (all.len > 0 && memcmp(pieces.data, all.data, all.len) != 0))
        abort();
    free(id);
    buf_free(&pieces);
    buf_free(&all);
    detok_close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *t[2];
    for (int i = 0; i < 2; i++)
        if (!t[i])
            t[i] = make(i);
    if (size == 0)
        return 0;
    check(t[data[0] & 1], data + 1, size - 1, data[0] >> 1 & 1);
    return 0;
}
