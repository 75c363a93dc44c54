/* For jinja_differential.py: JSON lines {"t": template, "ctx": {...}} in, {"out": text} or {"err": message}
 * out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat_json.h"
#include "text/jinja.h"

#define VARS_MAX 64

static enum nyb_code answer(const json_t *in, struct jinja_output *out, struct nyb_err *err)
{
    struct jinja_template *t;
    struct jinja_var var[VARS_MAX];
    size_t n = 0;
    const json_t *source = json_object_get(in, "t");
    const char *key;
    json_t *value;
    if (!json_is_string(source))
        return err_set(err, NYB_E_ARG, "t is not a string");
    json_object_foreach(json_object_get(in, "ctx"), key, value) if (n < VARS_MAX) var[n++] =
        (struct jinja_var){.name = key, .value = value, .input = true};
    TRY(jinja_open(&t, json_string_value(source), json_string_length(source), err));
    enum nyb_code code = jinja_render(t, var, n, 1754397296, out, err);
    jinja_close(t);
    return code;
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        json_t *in = NULL;
        struct nyb_err err;
        struct jinja_output out = {0};
        struct buf reply = {0};
        enum nyb_code code = chat_json_parse(&in, line, (size_t)n, "line", &err);
        if (code == NYB_OK)
            code = answer(in, &out, &err);
        buf_add_str(&reply, code == NYB_OK ? "{\"out\": " : "{\"err\": ");
        if (code == NYB_OK)
            json_add_string(&reply, out.text.data, out.text.len);
        else
            json_add_string(&reply, err.message, strlen(err.message));
        buf_add_str(&reply, "}\n");
        fwrite(reply.data, 1, reply.len, stdout);
        fflush(stdout);
        buf_free(&reply);
        jinja_output_free(&out);
        json_decref(in);
    }
    free(line);
    return 0;
}
