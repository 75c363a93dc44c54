/* tokenizer.json from anywhere: opening it fails cleanly or gives a tokenizer that encodes and decodes. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/tok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char TEXT[] = "Hi <s> abc  12\n\xC3\xA9\xE2\x96\x81\xF0\x9F\x98\x80 a\xCC\x81\xCC\xA3";
    struct tokenizer *t = mem_alloc(1, sizeof(*t));
    struct nyb_err err;
    char *copy = mem_alloc(size + 1, 1);
    memcpy(copy, data, size);
    if (tokload_parse(t, copy, size, "fuzz", NULL, &err) == NYB_OK) {
        struct tok_ids ids = {0};
        struct buf text = {0};
        if (tok_encode(t, TEXT, sizeof(TEXT) - 1, true, &ids, &err) == NYB_OK)
            tok_decode(t, ids.id, ids.n, false, &text);
        buf_free(&text);
        tok_ids_free(&ids);
    }
    tok_close(t);
    free(copy);
    return 0;
}
