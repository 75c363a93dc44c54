/* A template of any bytes over a fixed context: an answer or an error, soon, and parts that make up the text.
 */
#include <stdint.h>
#include <stdlib.h>

#include "text/chat_json.h"
#include "text/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char context[] = "{\"s\": \"a\\u00e9 b,c\", \"n\": 3, \"f\": 2.5, \"l\": [1, \"x\", null, "
                              "12.0], \"d\": {\"a\": 1, \"b\": [true]}, "
                              "\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": "
                              "\"assistant\", \"content\": null}]}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *ctx;
    struct jinja_template *t;
    struct jinja_output out;
    struct jinja_var var[8];
    struct nyb_err err;
    const char *key;
    json_t *value;
    size_t n = 0, total = 0;
    if (!ctx && chat_json_parse(&ctx, context, sizeof(context) - 1, "context", &err) != NYB_OK)
        abort();
    if (size > 4096 || jinja_open(&t, (const char *)data, size, &err) != NYB_OK)
        return 0;
    json_object_foreach(ctx, key, value) var[n++] =
        (struct jinja_var){.name = key, .value = value, .input = true};
    if (jinja_render(t, var, n, 1754397296, &out, &err) == NYB_OK) {
        for (size_t i = 0; i < out.n_part; i++)
            total += out.part[i].len;
        if (total != out.text.len)
            abort();
        jinja_output_free(&out);
    }
    jinja_close(t);
    return 0;
}
