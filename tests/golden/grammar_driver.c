/* For grammar_differential.py: reads JSON lines {kind, text, accept?: [texts], walks?, seed?} and writes a
 * line for each: {"error": message}, or {"accept": [bool], "made": [texts]}. Texts are made by walking the
 * automaton at random, byte by byte, which prefers ways that end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "text/grammar.h"

#define MADE_MAX 4000 /* bytes of a text that is made */

static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static bool accepts(struct grammar *g, const char *text, size_t len)
{
    struct grammar_matcher m;
    grammar_matcher_open(&m, g);
    bool fine = grammar_advance(&m, text, len) && grammar_may_end(&m);
    grammar_matcher_close(&m);
    return fine;
}

/* Bytes in a random order until one fits; bytes that close things come first more and more often. */
static bool make(struct grammar *g, uint64_t *seed, struct buf *out)
{
    static const char closing[] = "\"}],:0aeé>1-";
    struct grammar_matcher m;
    bool done = false;
    grammar_matcher_open(&m, g);
    buf_clear(out);
    while (!done && out->len < MADE_MAX) {
        if (grammar_must_end(&m) || (grammar_may_end(&m) && draw(seed) % 4 == 0)) {
            done = true;
            break;
        }
        bool moved = false;
        bool close = draw(seed) % 400 < out->len;
        for (size_t i = 0; close && !moved && i < sizeof(closing) - 1; i++)
            if ((moved = grammar_advance(&m, &closing[i], 1)))
                buf_add_byte(out, closing[i]);
        unsigned from = (unsigned)(draw(seed) & 255);
        for (unsigned i = 0; i < 256 && !moved; i++) {
            char c = (char)((from + i * 37) & 255);
            if ((moved = grammar_advance(&m, &c, 1)))
                buf_add_byte(out, c);
        }
        if (!moved)
            break; /* stuck: a bug where it may not end */
    }
    done = done || grammar_may_end(&m);
    grammar_matcher_close(&m);
    return done || out->len >= MADE_MAX;
}

static json_t *answer(const json_t *row)
{
    static const char *const kinds[] = {"json_object", "json_schema", "regex", "choice", "ebnf", "tags"};
    struct grammar_source s = {.text = json_string_value(json_object_get(row, "text")),
                               .whitespace = json_string_value(json_object_get(row, "whitespace")),
                               .think_open = json_string_value(json_object_get(row, "think_open")),
                               .think_close = json_string_value(json_object_get(row, "think_close"))};
    const char *kind = json_string_value(json_object_get(row, "kind"));
    struct grammar *g;
    struct nyb_err err = {0};
    json_t *out = json_object(), *list = json_array(), *made = json_array(), *item;
    size_t i;
    for (size_t k = 0; k < COUNT_OF(kinds); k++)
        if (!strcmp(kind, kinds[k]))
            s.kind = (enum grammar_kind)k;
    if (grammar_open(&g, &s, NULL, &err) != NYB_OK) {
        json_object_set_new(out, "error", json_string(err.message));
        json_decref(list);
        json_decref(made);
        return out;
    }
    json_array_foreach(json_object_get(row, "accept"), i, item) json_array_append_new(
        list, json_boolean(accepts(g, json_string_value(item), json_string_length(item))));
    uint64_t seed = (uint64_t)json_integer_value(json_object_get(row, "seed"));
    json_int_t walks = json_integer_value(json_object_get(row, "walks"));
    struct buf text = {0};
    for (json_int_t w = 0; w < walks; w++) {
        bool fine = make(g, &seed, &text);
        if (!fine)
            json_object_set_new(out, "stuck", json_stringn_nocheck(text.data ? text.data : "", text.len));
        else if (text.len < MADE_MAX)
            json_array_append_new(made, json_stringn(text.data ? text.data : "", text.len));
    }
    buf_free(&text);
    grammar_release(g);
    json_object_set_new(out, "accept", list);
    json_object_set_new(out, "made", made);
    return out;
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        json_error_t e;
        json_t *row = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &e);
        json_t *out = answer(row);
        char *text = json_dumps(out, JSON_COMPACT | JSON_ENSURE_ASCII);
        puts(text ? text : "{}");
        fflush(stdout);
        free(text);
        json_decref(out);
        json_decref(row);
    }
    free(line);
    return 0;
}
