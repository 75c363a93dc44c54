#include "cli/load_client.h"

#include <curl/curl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/load_random.h"

#define REFUSAL_MAX 65536 /* bytes kept of an answer that is not 200 */
#define POLL_MS     100

/* One request under way. */
struct transfer {
    struct client *client;
    struct load_reply *reply;
    CURL *easy;
    char *body;
    struct curl_slist *headers; /* NULL: the client's */
    int server;
    struct buf refusal; /* body of an answer that is not 200 */
    char error[CURL_ERROR_SIZE];
};

/* One of the servers: its share of the requests is every n_url-th. */
struct share {
    int next, open;
    double free_since; /* when the limit on concurrency last let a request go; 0: it never held one */
};

struct client {
    const struct load_target *target;
    const struct load_data *data;
    struct load_reply *reply;
    struct load_run *run;
    CURLM *multi;
    struct curl_slist *headers;
    uint64_t zero_ns;
    struct share *share; /* (n_url) */
    int open, done;
    double wall_zero;
};

static double now_of(const struct client *c)
{
    return (double)(clock_ns() - c->zero_ns) * 1e-9;
}

/* ---- bodies -------------------------------------------------------------------------------------- */

static const char *model_of(const struct load_target *t, int i)
{
    if (t->n_lora == 0)
        return t->model;
    uint64_t state = t->lora_seed + (uint64_t)i;
    return t->lora[load_random_bits(&state) % (uint64_t)t->n_lora];
}

static char *make_body(const struct load_target *t, const struct load_request *r, int i)
{
    json_t *body = json_pack("{s:i}", "temperature", 0); /* greedy unless a row or an option says otherwise */
    if (model_of(t, i))
        json_object_set_new(body, "model", json_string(model_of(t, i)));
    if (!t->chat) {
        json_object_set(body, "prompt", r->input);
    } else if (json_is_array(r->input)) {
        json_object_set(body, "messages", r->input);
    } else {
        json_object_set_new(body, "messages", json_pack("[{s:s, s:O}]", "role", "user", "content", r->input));
    }
    if (r->max_tokens > 0)
        json_object_set_new(body, "max_tokens", json_integer(r->max_tokens));
    json_object_set_new(body, "stream", json_true());
    json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_usage", 1));
    if (r->members)
        json_object_update(body, r->members);
    if (t->params)
        json_object_update(body, t->params);
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    return text;
}

static struct curl_slist *make_headers(const char *api_key, const json_t *more)
{
    struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/json");
    list = curl_slist_append(list, "Accept: text/event-stream, application/json");
    list = curl_slist_append(list, "Expect:"); /* or large bodies wait for a 100 */
    if (api_key) {
        char *line = mem_printf("Authorization: Bearer %s", api_key);
        list = curl_slist_append(list, line);
        free(line);
    }
    const char *name;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)more, name, value)
    {
        char *line = mem_printf("%s: %s", name, json_string_value(value));
        list = curl_slist_append(list, line);
        free(line);
    }
    return list;
}

/* ---- one transfer -------------------------------------------------------------------------------- */

static size_t take_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    struct transfer *t = arg;
    double now = now_of(t->client);
    (void)size; /* 1 */
    if (t->reply->status == 0)
        curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->reply->status);
    if (t->reply->status == 200)
        return load_reply_feed(t->reply, bytes, n, now) ? n : 0;
    if (t->refusal.len < REFUSAL_MAX)
        buf_add(&t->refusal, bytes, n < REFUSAL_MAX - t->refusal.len ? n : REFUSAL_MAX - t->refusal.len);
    return n;
}

static void set_trust(CURL *easy, bool insecure)
{
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, insecure ? 0L : 1L);
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, insecure ? 0L : 2L);
    if (getenv("SSL_CERT_FILE")) /* as the curl program does */
        curl_easy_setopt(easy, CURLOPT_CAINFO, getenv("SSL_CERT_FILE"));
}

/* NULL where all requests have the same. */
static struct curl_slist *own_headers(const struct load_target *t, int i)
{
    if (!t->id_prefix)
        return NULL;
    struct curl_slist *list = make_headers(t->api_key, t->headers);
    char *line = mem_printf("X-Request-Id: %s%d", t->id_prefix, i);
    list = curl_slist_append(list, line);
    free(line);
    return list;
}

static void free_transfer(struct transfer *t)
{
    curl_easy_cleanup(t->easy);
    curl_slist_free_all(t->headers);
    buf_free(&t->refusal);
    free(t->body);
    free(t);
}

static bool start_transfer(struct client *c, int i)
{
    const struct load_target *target = c->target;
    struct transfer *t = mem_alloc(1, sizeof(*t));
    t->client = c;
    t->reply = &c->reply[i];
    t->body = make_body(target, &c->data->request[i], i);
    t->server = i % target->n_url;
    t->headers = own_headers(target, i);
    t->easy = curl_easy_init();
    if (!t->easy || !t->body) {
        load_reply_fail(t->reply, "no memory for the request");
        free_transfer(t);
        return false;
    }
    if (target->debug)
        fprintf(stderr, "request %d: %s\n", i + 1, t->body);
    curl_easy_setopt(t->easy, CURLOPT_URL, target->url[t->server]);
    curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers ? t->headers : c->headers);
    curl_easy_setopt(t->easy, CURLOPT_POSTFIELDS, t->body);
    curl_easy_setopt(t->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(t->body));
    curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
    curl_easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->error);
    curl_easy_setopt(t->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(t->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(t->easy, CURLOPT_TIMEOUT_MS, (long)(target->timeout_s * 1e3));
    set_trust(t->easy, target->insecure);
    t->reply->wall_zero = c->wall_zero;
    t->reply->sent = now_of(c);
    curl_multi_add_handle(c->multi, t->easy);
    c->share[t->server].open++;
    c->open++;
    c->run->most_open = c->open > c->run->most_open ? c->open : c->run->most_open;
    return true;
}

/* What an answer that is not 200 says: OpenAI's error object, or its first line. */
static void explain_refusal(struct load_reply *r, const struct buf *body)
{
    json_t *root = NULL;
    const char *message = NULL;
    if (body->len > 0 && json_parse(&root, body->data, body->len, "refusal", NULL) == NYB_OK) {
        const json_t *error = json_object_get(root, "error");
        message = json_string_value(json_object_get(error ? error : root, "message"));
    }
    if (message)
        load_reply_fail(r, "HTTP %ld: %s", r->status, message);
    else
        load_reply_fail(r, "HTTP %ld: %.*s", r->status, (int)strcspn(body->data ? body->data : "", "\r\n"),
                        body->data ? body->data : "");
    json_decref(root);
}

static void finish_transfer(struct client *c, struct transfer *t, CURLcode code)
{
    struct load_reply *r = t->reply;
    r->ended = now_of(c);
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &r->status);
    if (code != CURLE_OK)
        load_reply_fail(r, "%s", t->error[0] ? t->error : curl_easy_strerror(code));
    else if (r->status != 200)
        explain_refusal(r, &t->refusal);
    else if (!r->finished)
        load_reply_fail(r, "the stream ended without finish_reason or [DONE]");
    r->ok = !r->error;
    if (c->target->debug)
        fprintf(stderr, "answer %d: %s%.*s\n", (int)(r - c->reply) + 1, r->error ? r->error : "",
                (int)r->text.len, r->text.data ? r->text.data : "");
    curl_multi_remove_handle(c->multi, t->easy);
    c->share[t->server].open--;
    free_transfer(t);
    c->open--;
    c->done++;
}

/* ---- the loop ------------------------------------------------------------------------------------ */

/* The first servers take what does not divide evenly. 0: no limit. */
static int limit_of(const struct client *c, int server)
{
    int limit = c->target->max_concurrency, n = c->target->n_url;
    return limit / n + (server < limit % n);
}

static bool may_start(const struct client *c, int server)
{
    const struct share *s = &c->share[server];
    int limit = limit_of(c, server);
    return s->next < c->data->n && (limit == 0 || s->open < limit);
}

static void start_share(struct client *c, int server)
{
    struct share *s = &c->share[server];
    while (may_start(c, server) && c->data->request[s->next].at_s <= now_of(c)) {
        double due = c->data->request[s->next].at_s;
        double late = now_of(c) - (due > s->free_since ? due : s->free_since);
        c->run->latest = late > c->run->latest ? late : c->run->latest;
        if (!start_transfer(c, s->next))
            c->done++;
        s->next += c->target->n_url;
    }
}

static int poll_ms(const struct client *c)
{
    double wait = POLL_MS;
    for (int i = 0; i < c->target->n_url; i++)
        if (may_start(c, i))
            wait = fmin(wait, (c->data->request[c->share[i].next].at_s - now_of(c)) * 1e3);
    return wait <= 0 ? 0 : (int)ceil(wait);
}

static void collect(struct client *c)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &left));) {
        struct transfer *t;
        CURLcode code = m->data.result;
        if (m->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &t);
        int server = t->server, limit = limit_of(c, server);
        bool full = limit > 0 && c->share[server].open == limit;
        finish_transfer(c, t, code);
        if (full)
            c->share[server].free_since = now_of(c);
    }
}

static enum nyb_code loop(struct client *c, void (*done)(void *arg, int n_done), void *arg,
                          struct nyb_err *err)
{
    for (int said = 0; c->done < c->data->n;) {
        int running;
        for (int i = 0; i < c->target->n_url; i++)
            start_share(c, i);
        CURLMcode code = curl_multi_perform(c->multi, &running);
        collect(c);
        if (c->done != said && done)
            done(arg, c->done);
        said = c->done;
        if (code == CURLM_OK && c->done < c->data->n)
            code = curl_multi_poll(c->multi, NULL, 0, poll_ms(c), NULL);
        if (code != CURLM_OK)
            return err_set(err, NYB_E_IO, "libcurl: %s", curl_multi_strerror(code));
    }
    return NYB_OK;
}

/* A connection is a file, and the usual soft limit is 1024. */
static void allow_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

enum nyb_code load_client_run(const struct load_target *t, const struct load_data *data,
                              struct load_reply *reply, struct load_run *run,
                              void (*done)(void *arg, int n_done), void *arg, struct nyb_err *err)
{
    struct client c = {.target = t, .data = data, .reply = reply, .run = run};
    *run = (struct load_run){0};
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || !(c.multi = curl_multi_init()))
        return err_set(err, NYB_E_IO, "libcurl does not start");
    allow_files();
    c.headers = make_headers(t->api_key, t->headers);
    c.share = mem_alloc((size_t)t->n_url, sizeof(*c.share));
    for (int i = 0; i < t->n_url; i++)
        c.share[i].next = i;
    curl_multi_setopt(c.multi, CURLMOPT_MAXCONNECTS,
                      (long)(t->max_concurrency ? t->max_concurrency : data->n));
    curl_multi_setopt(c.multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    c.wall_zero = (double)wall.tv_sec + 1e-9 * (double)wall.tv_nsec;
    c.zero_ns = clock_ns();
    enum nyb_code code = loop(&c, done, arg, err);
    for (int i = 0; i < data->n; i++)
        run->duration = reply[i].ended > run->duration ? reply[i].ended : run->duration;
    curl_multi_cleanup(c.multi);
    curl_slist_free_all(c.headers);
    free(c.share);
    return code;
}

/* ---- /v1/models ---------------------------------------------------------------------------------- */

static size_t take_list(char *bytes, size_t size, size_t n, void *arg)
{
    struct buf *b = arg;
    (void)size;
    if (b->len + n > 1u << 20)
        return 0; /* an error to libcurl */
    buf_add(b, bytes, n);
    return n;
}

static enum nyb_code first_model(char **out, const struct buf *b, const char *url, struct nyb_err *err)
{
    json_t *root;
    TRY(json_parse(&root, b->data ? b->data : "", b->len, url, err));
    const char *id =
        json_string_value(json_object_get(json_array_get(json_object_get(root, "data"), 0), "id"));
    *out = id ? mem_strdup(id) : NULL;
    json_decref(root);
    return id ? NYB_OK : err_at(err, NYB_E_NOT_FOUND, url, -1, "lists no model; name one with --model");
}

enum nyb_code load_client_model(char **out, const char *base, const char *api_key, bool insecure,
                                struct nyb_err *err)
{
    char *url = mem_printf("%s/v1/models", base), error[CURL_ERROR_SIZE] = "";
    struct buf b = {0};
    long status = 0;
    *out = NULL;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    CURL *easy = curl_easy_init();
    struct curl_slist *headers = make_headers(api_key, NULL);
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_list);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &b);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, 10000L);
    set_trust(easy, insecure);
    CURLcode done = easy ? curl_easy_perform(easy) : CURLE_FAILED_INIT;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    enum nyb_code code;
    if (done != CURLE_OK)
        code = err_at(err, NYB_E_IO, url, -1, "%s", error[0] ? error : curl_easy_strerror(done));
    else if (status != 200)
        code = err_at(err, NYB_E_IO, url, -1, "HTTP %ld; name the model with --model", status);
    else
        code = first_model(out, &b, url, err);
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    buf_free(&b);
    free(url);
    return code;
}

/* ---- /start_profile, /stop_profile --------------------------------------------------------------- */

enum nyb_code load_client_post(const char *url, const char *api_key, bool insecure, struct nyb_err *err)
{
    struct buf b = {0};
    char error[CURL_ERROR_SIZE] = "";
    long status = 0;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    CURL *easy = curl_easy_init();
    struct curl_slist *headers = make_headers(api_key, NULL);
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, "{}");
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_list);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &b);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, 60000L);
    set_trust(easy, insecure);
    CURLcode done = easy ? curl_easy_perform(easy) : CURLE_FAILED_INIT;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    buf_free(&b);
    if (done != CURLE_OK)
        return err_at(err, NYB_E_IO, url, -1, "%s", error[0] ? error : curl_easy_strerror(done));
    return status == 200 ? NYB_OK : err_at(err, NYB_E_IO, url, -1, "HTTP %ld", status);
}
