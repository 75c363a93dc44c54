#include "cli/load_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/load_random.h"

#define EBCHAT_TOKENS  12288 /* FastDeploy's, where neither the row nor an option says */
#define BYTES_A_TOKEN  4     /* of English, for estimates */
#define MOONCAKE_BLOCK 512   /* tokens that a hash id stands for */
#define TRACE_LEN_MAX  (1 << 22)

void load_words(struct buf *b, uint64_t *state, int n)
{
    static const char *const word[] = {
        "time",    "river",  "stone",   "light",  "house",   "water",   "night",    "garden",
        "people",  "music",  "winter",  "road",   "table",   "voice",   "paper",    "answer",
        "forest",  "window", "bread",   "horse",  "story",   "summer",  "green",    "small",
        "quiet",   "early",  "bright",  "strong", "open",    "round",   "simple",   "heavy",
        "follow",  "carry",  "write",   "begin",  "listen",  "gather",  "remember", "change",
        "believe", "travel", "under",   "above",  "before",  "after",   "while",    "between",
        "without", "toward", "perhaps", "always", "never",   "often",   "twelve",   "seven",
        "hundred", "first",  "second",  "again",  "because", "however", "slowly",   "together",
    };
    for (int i = 0; i < n; i++) {
        if (b->len > 0)
            buf_add_byte(b, ' ');
        buf_add_str(b, word[load_random_int(state, 0, (int)COUNT_OF(word) - 1)]);
    }
}

/* ---- reading ------------------------------------------------------------------------------------- */

static enum nyb_code read_text(const struct load_data_options *o, char **data, size_t *len,
                               struct nyb_err *err)
{
    static const char xz[] = {(char)0xfd, '7', 'z', 'X', 'Z'};
    if (!o->path)
        return err_set(err, NYB_E_ARG, "the data set %s needs --dataset-path", load_set_name(o->set));
    TRY(file_read_all(o->path, LOAD_FILE_MAX, data, len, err));
    if (*len >= sizeof(xz) && !memcmp(*data, xz, sizeof(xz))) {
        free(*data);
        *data = NULL;
        return err_at(err, NYB_E_FORMAT, o->path, 0, "is compressed; unpack it with: xz -dk FILE");
    }
    return NYB_OK;
}

/* The next line of *at, terminated in place; NULL at the end. */
static char *next_line(char **at, char *end)
{
    char *line = *at;
    if (line >= end)
        return NULL;
    char *stop = memchr(line, '\n', (size_t)(end - line));
    *at = stop ? stop + 1 : end;
    stop = stop ? stop : end;
    if (stop > line && stop[-1] == '\r')
        stop--;
    *stop = 0; /* file_read_all leaves room after the last byte */
    return line;
}

typedef enum nyb_code row_fn(struct load_data *d, const struct load_data_options *o, const json_t *row,
                             const char *where, struct nyb_err *err);

/* Each line of a JSONL file; blank ones are skipped. At most `most` rows. */
static enum nyb_code each_row(struct load_data *d, const struct load_data_options *o, char *data, size_t len,
                              int most, row_fn *fn, struct nyb_err *err)
{
    char *at = data, where[300], *line;
    for (int number = 1; d->n < most && (line = next_line(&at, data + len)); number++) {
        if (!line[strspn(line, " \t")])
            continue;
        json_t *row;
        snprintf(where, sizeof(where), "%.250s line %d", o->path, number);
        TRY(json_parse(&row, line, strlen(line), where, err));
        enum nyb_code code = json_is_object(row)
                                 ? fn(d, o, row, where, err)
                                 : err_at(err, NYB_E_FORMAT, where, -1, "expected a JSON object");
        json_decref(row);
        if (code != NYB_OK)
            return code;
    }
    return d->n > 0 ? NYB_OK : err_at(err, NYB_E_FORMAT, o->path, -1, "has no rows");
}

static enum nyb_code all_rows(struct load_data *d, const struct load_data_options *o, row_fn *fn,
                              struct nyb_err *err)
{
    char *data;
    size_t len;
    TRY(read_text(o, &data, &len, err));
    enum nyb_code code = each_row(d, o, data, len, INT32_MAX, fn, err);
    free(data);
    return code;
}

/* *out is left alone where the row has no such member. */
static enum nyb_code take_count(const json_t *row, const char *key, const char *where, int *out,
                                struct nyb_err *err)
{
    const json_t *v = json_object_get(row, key);
    if (!v)
        return NYB_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > INT32_MAX)
        return err_at(err, NYB_E_FORMAT, where, -1, "\"%s\" is not a positive whole number", key);
    *out = (int)json_integer_value(v);
    return NYB_OK;
}

/* ---- EBChat -------------------------------------------------------------------------------------- */

static enum nyb_code ebchat_row(struct load_data *d, const struct load_data_options *o, const json_t *row,
                                const char *where, struct nyb_err *err)
{
    static const char *const passed[] = {"response_format", "tools", "tool_choice", "stop",
                                         "temperature",     "top_p"};
    json_t *messages = json_object_get(row, "messages"), *members = NULL;
    int n = o->file_output > 0 ? o->file_output : EBCHAT_TOKENS;
    if (json_array_size(messages) == 0)
        return err_at(err, NYB_E_FORMAT, where, -1, "\"messages\" is not an array of messages");
    TRY(take_count(row, "max_tokens", where, &n, err));
    for (size_t i = 0; i < COUNT_OF(passed); i++) {
        json_t *v = json_object_get(row, passed[i]);
        if (v && !members)
            members = json_object();
        if (v)
            json_object_set(members, passed[i], v);
    }
    load_data_add(d, json_incref(messages), members, n, 0);
    return NYB_OK;
}

enum nyb_code load_files_ebchat(struct load_data *d, const struct load_data_options *o, struct nyb_err *err)
{
    return all_rows(d, o, ebchat_row, err);
}

/* ---- EB and custom ------------------------------------------------------------------------------- */

/* FastDeploy's other form. Its own benchmark reads the sampling members and sends none of them; they are sent
 * here, under OpenAI's names. */
static enum nyb_code eb_row(struct load_data *d, const struct load_data_options *o, const json_t *row,
                            const char *where, struct nyb_err *err)
{
    static const char *const renamed[][2] = {{"temperature", "temperature"},
                                             {"topp", "top_p"},
                                             {"penalty_score", "repetition_penalty"},
                                             {"frequency_score", "frequency_penalty"},
                                             {"presence_score", "presence_penalty"}};
    json_t *text = json_object_get(row, "text"), *members = NULL;
    int n = o->file_output;
    if (!json_is_string(text))
        return err_at(err, NYB_E_FORMAT, where, -1, "\"text\" is not a string");
    TRY(take_count(row, "max_dec_len", where, &n, err));
    for (size_t i = 0; i < COUNT_OF(renamed); i++) {
        json_t *v = json_object_get(row, renamed[i][0]);
        if (!v)
            continue;
        members = members ? members : json_object();
        json_object_set(members, renamed[i][1], v);
    }
    load_data_add(d, json_incref(text), members, n, 0);
    return NYB_OK;
}

/* vLLM's form for rows of one's own. */
static enum nyb_code custom_row(struct load_data *d, const struct load_data_options *o, const json_t *row,
                                const char *where, struct nyb_err *err)
{
    json_t *prompt = json_object_get(row, "prompt");
    int n = o->custom_output;
    if (!json_is_string(prompt))
        return err_at(err, NYB_E_FORMAT, where, -1, "\"prompt\" is not a string");
    TRY(take_count(row, "output_tokens", where, &n, err));
    load_data_add(d, json_incref(prompt), NULL, n, 0);
    return NYB_OK;
}

enum nyb_code load_files_eb(struct load_data *d, const struct load_data_options *o, struct nyb_err *err)
{
    return all_rows(d, o, eb_row, err);
}

enum nyb_code load_files_custom(struct load_data *d, const struct load_data_options *o, struct nyb_err *err)
{
    return all_rows(d, o, custom_row, err);
}

/* ---- ShareGPT ------------------------------------------------------------------------------------ */

/* The first two turns, as vLLM takes them; what is too short or too long for its filter is left out. */
static void sharegpt_row(struct load_data *d, const struct load_data_options *o, const json_t *row)
{
    const json_t *turns = json_object_get(row, "conversations");
    json_t *ask = json_object_get(json_array_get(turns, 0), "value");
    json_t *answer = json_object_get(json_array_get(turns, 1), "value");
    if (!json_is_string(ask) || !json_is_string(answer))
        return;
    size_t in = json_string_length(ask) / BYTES_A_TOKEN, out = json_string_length(answer) / BYTES_A_TOKEN;
    if (o->file_output > 0)
        out = (size_t)o->file_output;
    if (in < 4 || out < 4 || in > 1024 || (o->file_output == 0 && in + out > 2048))
        return;
    load_data_add(d, json_incref(ask), NULL, (int)out, 0);
}

enum nyb_code load_files_sharegpt(struct load_data *d, const struct load_data_options *o, struct nyb_err *err)
{
    json_t *root;
    if (!o->path)
        return err_set(err, NYB_E_ARG, "the data set ShareGPT needs --dataset-path");
    TRY(json_read_file(&root, o->path, err));
    for (size_t i = 0; i < json_array_size(root); i++)
        sharegpt_row(d, o, json_array_get(root, i));
    json_decref(root);
    if (d->n == 0)
        return err_at(err, NYB_E_FORMAT, o->path, -1,
                      "has no conversation of two turns and 4 to 1024 tokens: expected an array of "
                      "{\"conversations\": [{\"from\", \"value\"}, ...]}");
    return NYB_OK;
}

/* ---- traces -------------------------------------------------------------------------------------- */

static int capped(double n, int most)
{
    double max = most > 0 ? most : TRACE_LEN_MAX;
    return !(n >= 1) ? 1 : n > max ? (int)max : (int)n;
}

/* A prompt of random words of its own. */
static json_t *words_prompt(uint64_t *state, int n)
{
    struct buf b = {0};
    load_words(&b, state, n);
    json_t *text = json_stringn(b.data, b.len);
    buf_free(&b);
    return text;
}

/* "2023-11-16 18:15:46.6805900" in seconds; false where it is none. */
static bool parse_stamp(const char *text, double *out)
{
    struct tm tm = {0};
    double seconds;
    if (sscanf(text, "%4d-%2d-%2d %2d:%2d:%lf", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min,
               &seconds) != 6)
        return false;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    *out = (double)timegm(&tm) + seconds;
    return true;
}

/* TIMESTAMP,ContextTokens,GeneratedTokens, as Azure's traces of 2023 have it. */
static enum nyb_code azure_rows(struct load_data *d, const struct load_data_options *o, char *data,
                                size_t len, struct nyb_err *err)
{
    char *at = data, *line = next_line(&at, data + len);
    uint64_t state = o->seed;
    double zero = 0;
    if (!line || strcmp(line, "TIMESTAMP,ContextTokens,GeneratedTokens"))
        return err_at(err, NYB_E_FORMAT, o->path, 0,
                      "expected the header \"TIMESTAMP,ContextTokens,GeneratedTokens\" or JSON lines");
    for (int number = 2; d->n < o->n && (line = next_line(&at, data + len)); number++) {
        double stamp, in, out;
        const char *comma = strchr(line, ',');
        if (!*line)
            continue;
        if (!comma || !parse_stamp(line, &stamp) || !isfinite(stamp) ||
            sscanf(comma, ",%lf,%lf", &in, &out) != 2)
            return err_at(err, NYB_E_FORMAT, o->path, -1, "line %d is not \"time,tokens,tokens\"", number);
        zero = d->n == 0 ? stamp : zero;
        load_data_add(d, words_prompt(&state, capped(in, o->max_input)), NULL, capped(out, o->max_output),
                      fmax(stamp - zero, 0) / o->trace_speed);
    }
    return d->n > 0 ? NYB_OK : err_at(err, NYB_E_FORMAT, o->path, -1, "has no rows");
}

/* Equal hash ids stand for equal blocks, so that prefixes are shared as they were. */
static enum nyb_code mooncake_row(struct load_data *d, const struct load_data_options *o, const json_t *row,
                                  const char *where, struct nyb_err *err)
{
    const json_t *stamp = json_object_get(row, "timestamp"), *in = json_object_get(row, "input_length"),
                 *out = json_object_get(row, "output_length"), *ids = json_object_get(row, "hash_ids");
    if (!json_is_number(stamp) || !json_is_number(in) || !json_is_number(out))
        return err_at(err, NYB_E_FORMAT, where, -1,
                      "expected the numbers \"timestamp\", \"input_length\" and \"output_length\"");
    int left = capped(json_number_value(in), o->max_input);
    struct buf b = {0};
    for (size_t i = 0; left > 0; i++) {
        const json_t *id = json_array_get(ids, i);
        bool last = i + 1 >= json_array_size(ids);
        uint64_t state = o->seed + (id ? (uint64_t)json_integer_value(id) : UINT64_MAX - (uint64_t)d->n);
        state = load_random_bits(&state); /* neighbouring ids must not share a sequence */
        int n = last || left < MOONCAKE_BLOCK ? left : MOONCAKE_BLOCK;
        load_words(&b, &state, n);
        left -= n;
    }
    load_data_add(d, json_stringn(b.data, b.len), NULL, capped(json_number_value(out), o->max_output),
                  fmax(json_number_value(stamp), 0) * 1e-3 / o->trace_speed);
    buf_free(&b);
    return NYB_OK;
}

enum nyb_code load_files_trace(struct load_data *d, const struct load_data_options *o, struct nyb_err *err)
{
    char *data;
    size_t len;
    TRY(read_text(o, &data, &len, err));
    enum nyb_code code = len > 0 && data[0] == '{' ? each_row(d, o, data, len, o->n, mooncake_row, err)
                                                   : azure_rows(d, o, data, len, err);
    free(data);
    return code;
}
