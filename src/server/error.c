#include "server/error.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/route.h"

static const char *type_of(int status)
{
    static const struct {
        int status;
        const char *type;
    } table[] = {
        {400, "BadRequestError"},          {401, "AuthenticationError"},
        {403, "PermissionDeniedError"},    {404, "NotFoundError"},
        {405, "MethodNotAllowedError"},    {409, "ConflictError"},
        {413, "RequestTooLargeError"},     {415, "UnsupportedMediaTypeError"},
        {422, "UnprocessableEntityError"}, {429, "RateLimitError"},
        {431, "RequestTooLargeError"},     {501, "NotImplementedError"},
        {503, "ServiceUnavailableError"},
    };
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (table[i].status == status)
            return table[i].type;
    return status < 500 ? "BadRequestError" : "InternalServerError";
}

/* code: the one that OpenAI's clients look for, or NULL. */
static void add_object(struct buf *b, int status, const char *code, const char *param, const char *message)
{
    buf_add_str(b, "{\"error\":{\"message\":");
    json_add_string(b, message, strlen(message));
    buf_printf(b, ",\"type\":\"%s\",\"param\":", type_of(status));
    if (param && *param)
        json_add_string(b, param, strlen(param));
    else
        buf_add_str(b, "null");
    if (code)
        buf_printf(b, ",\"code\":\"%s\"}}", code);
    else
        buf_printf(b, ",\"code\":%d}}", status);
}

void error_add_object(struct buf *b, int status, const char *param, const char *message)
{
    add_object(b, status, NULL, param, message);
}

void error_add_anthropic(struct buf *b, int status, const char *message)
{
    static const struct {
        int status;
        const char *type;
    } table[] = {{401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
                 {413, "request_too_large"},    {429, "rate_limit_error"}, {503, "overloaded_error"}};
    const char *type = status < 499 ? "invalid_request_error" : "api_error";
    for (size_t i = 0; i < COUNT_OF(table); i++)
        type = table[i].status == status ? table[i].type : type;
    buf_printf(b, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    json_add_string(b, message, strlen(message));
    buf_add_str(b, "}}");
}

static bool is_anthropic(const struct exchange *x)
{
    return x->route && (x->route->run == api_messages || x->route->run == api_count_tokens);
}

static void reply(struct exchange *x, int status, const char *code, const char *param, const char *message)
{
    x->status = status;
    x->content_type = "application/json";
    if (status == 429 || status == 503)
        x->retry_after_s = 1;
    buf_clear(&x->reply);
    if (is_anthropic(x))
        error_add_anthropic(&x->reply, status, message);
    else
        add_object(&x->reply, status, code, param, message);
}

void error_reply(struct exchange *x, int status, const char *param, const char *fmt, ...)
{
    char message[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    reply(x, status, NULL, param, message);
}

/* What a client asks for and this build or model cannot do is the client's to change: 400, not 501. */
void error_reply_err(struct exchange *x, const struct nyb_err *err)
{
    int status = err->code == NYB_E_UNSUPPORTED ? 400 : err_http_status(err->code);
    bool is_param = err->where[0] && !strchr(err->where, '/'); /* else a file of the model */
    /* Agents shorten their conversation when they see this code. */
    const char *code = err->code == NYB_E_TOO_LONG ? "context_length_exceeded" : NULL;
    reply(x, status, code, is_param ? err->where : NULL, err->message);
}
