#include "server/server.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/admin.h"
#include "server/auth.h"
#include "server/drain.h"
#include "server/http.h"
#include "server/loop.h"
#include "server/notify.h"
#include "server/renew.h"
#include "server/work.h"
#include "text/parse.h"

/* Is one of the format's markers a special token? Then answers must be decoded with special tokens, or it
 * would be lost. Seen from outside: it is one id, and decoding without special tokens leaves nothing. */
static bool is_special(const struct nyb_engine *e, const char *marker)
{
    int32_t *ids;
    size_t n, len = 0;
    char *text = NULL;
    bool special = false;
    if (!marker || nyb_tokenize(e, marker, strlen(marker), false, &ids, &n, NULL) != NYB_OK)
        return false;
    if (n == 1 && nyb_detokenize(e, ids, n, false, &text, &len, NULL) == NYB_OK)
        special = len == 0;
    nyb_free(text);
    nyb_free(ids);
    return special;
}

static bool has_tokenizer(const struct nyb_engine *e)
{
    int32_t *ids;
    size_t n;
    bool has = nyb_tokenize(e, "a", 1, false, &ids, &n, NULL) == NYB_OK;
    nyb_free(ids);
    return has;
}

/* The parser that was asked for, if any. */
static enum nyb_code find_format(struct server *s, struct nyb_err *err)
{
    const char *name = s->config->parser;
    if (!name)
        return NYB_OK;
    s->format = parse_format_find(name);
    return s->format
               ? NYB_OK
               : err_at(err, NYB_E_ARG, "parser", -1, "there is no parser \"%s\"; see docs/SERVING.md", name);
}

static enum nyb_code choose_format(struct server *s, struct nyb_err *err)
{
    if (!s->format)
        TRY(parse_format_for_folder(&s->format, s->info->folder, s->config->chat_template, err));
    const struct parse_format *f = s->format;
    const char *const marker[] = {f->think_open,   f->think_close, f->answer_open,
                                  f->answer_close, f->call_open,   f->call_close};
    for (size_t i = 0; i < COUNT_OF(marker); i++)
        s->format_special = s->format_special || is_special(s->engine, marker[i]);
    log_info("answers are parsed as %s", f->name);
    return NYB_OK;
}

/* The last part of a folder's path; a repository id stays whole. */
static const char *short_name(const char *model)
{
    const char *slash = strrchr(model, '/');
    bool path = model[0] == '/' || model[0] == '.' || model[0] == '~';
    return path && slash && slash[1] ? slash + 1 : model;
}

static enum nyb_code open_all(struct server *s, struct nyb_err *err)
{
    const struct serve_config *c = s->config;
    TRY(find_format(s, err));
    s->renew = renew_open(s);
    TRY(auth_open(&s->auth, &c->api_key, c->api_key_file, "api-key", err));
    TRY(admin_open(s, err));
    TRY(tls_open(&s->tls, c->tls_cert, c->tls_key, err));
    return http_bind(s, err);
}

enum nyb_code server_open(struct server **out, const struct serve_config *config, struct nyb_err *err)
{
    struct server *s = mem_alloc(1, sizeof(*s));
    *s = (struct server){.config = config, .epoll_fd = -1, .event_fd = -1, .listen_fd = -1, .metrics_fd = -1};
    drain_prepare();
    enum nyb_code code = open_all(s, err);
    *out = code == NYB_OK ? s : NULL;
    if (!*out)
        server_close(s);
    return code;
}

static enum nyb_code start_all(struct server *s, struct nyb_err *err)
{
    const struct serve_config *c = s->config;
    s->info = nyb_engine_info(s->engine);
    s->has_tokenizer = has_tokenizer(s->engine);
    s->model = c->served_name.n ? c->served_name.item[0] : short_name(s->info->model);
    s->created_s = (int64_t)(clock_unix_us() / 1000000u);
    TRY(choose_format(s, err));
    TRY(admin_start(s, err));
    TRY(work_open(&s->work, s, (int)c->workers, err));
    return loop_open(s, err);
}

enum nyb_code server_run(struct server *s, struct nyb_engine *engine, struct nyb_err *err)
{
    s->engine = engine;
    enum nyb_code code = start_all(s, err);
    if (code == NYB_OK) {
        notify_send("READY=1");
        loop_run(s);
        if (s->lost.code != NYB_OK) {
            code = s->lost.code;
            if (err)
                *err = s->lost;
        }
    }
    work_close(s->work);
    s->work = NULL;
    admin_stop(s->admin);
    loop_close(s);
    if (code == NYB_OK)
        log_info("stopped");
    return code;
}

void server_close(struct server *s)
{
    if (!s)
        return;
    http_stop(s);
    renew_close(s->renew);
    auth_close(s->auth);
    admin_close(s->admin);
    tls_close(&s->tls);
    free(s);
}
