#include "text/added.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "text/unicode16.h"
#include "text/utf8.h"

struct added_node {
    uint32_t child, sibling; /* node numbers; 0: none (node 0 is the root) */
    uint32_t token;          /* index + 1; 0: none                         */
    unsigned char byte;
};

/* <|...|> and its full-width form frame roles and turns even where the file does not call them special, as in
 * DeepSeek-V3's <|User|>. */
static bool has_control_form(const char *s, size_t len)
{
    static const char WIDE_OPEN[] = "<\xEF\xBD\x9C", WIDE_CLOSE[] = "\xEF\xBD\x9C>";
    if (len >= 4 && memcmp(s, "<|", 2) == 0 && memcmp(s + len - 2, "|>", 2) == 0)
        return true;
    return len >= 8 && memcmp(s, WIDE_OPEN, 4) == 0 && memcmp(s + len - 4, WIDE_CLOSE, 4) == 0;
}

void added_push(struct added *a, struct added_token token)
{
    if (a->n == a->cap) {
        a->cap = a->cap ? a->cap * 2 : 64;
        a->token = mem_grow(a->token, a->cap, sizeof(*a->token));
    }
    char *copy = mem_alloc(token.len + 1, 1);
    memcpy(copy, token.content, token.len);
    token.content = copy;
    token.control = token.special || has_control_form(copy, token.len);
    a->token[a->n++] = token;
}

/* --- The tries
 * ---------------------------------------------------------------------------------------------- */

static uint32_t new_node(struct added *a, bool set, unsigned char byte)
{
    if (a->n_node[set] == a->node_cap[set]) {
        a->node_cap[set] = a->node_cap[set] ? a->node_cap[set] * 2 : 256;
        a->node[set] = mem_grow(a->node[set], a->node_cap[set], sizeof(**a->node));
    }
    a->node[set][a->n_node[set]] = (struct added_node){.byte = byte};
    return (uint32_t)a->n_node[set]++;
}

static uint32_t find_child(const struct added_node *node, uint32_t parent, unsigned char byte)
{
    uint32_t child = node[parent].child;
    while (child && node[child].byte != byte)
        child = node[child].sibling;
    return child;
}

static void insert(struct added *a, bool set, const char *s, size_t len, size_t token)
{
    uint32_t at = 0;
    if (a->n_node[set] == 0)
        (void)new_node(a, set, 0);
    a->starts[set][(unsigned char)s[0]] = true;
    for (size_t i = 0; i < len; i++) {
        uint32_t child = find_child(a->node[set], at, (unsigned char)s[i]);
        if (!child) {
            child = new_node(a, set, (unsigned char)s[i]);
            a->node[set][child].sibling = a->node[set][at].child;
            a->node[set][at].child = child;
        }
        at = child;
    }
    if (!a->node[set][at].token)
        a->node[set][at].token = (uint32_t)token + 1;
}

enum nyb_code added_finish(struct added *a, const struct normalizer *n, struct nyb_err *err)
{
    struct normalizer_work work = {0};
    enum nyb_code code = NYB_OK;
    for (size_t i = 0; i < a->n && code == NYB_OK; i++) {
        struct normalizer_text t = {a->token[i].content, a->token[i].len, NULL};
        if (a->token[i].normalized)
            code = normalizer_apply(n, &work, &t, err);
        if (code == NYB_OK && t.len > 0)
            insert(a, a->token[i].normalized, t.text, t.len, i);
    }
    normalizer_work_free(&work);
    return code;
}

void added_free(struct added *a)
{
    for (size_t i = 0; i < a->n; i++)
        free(a->token[i].content);
    free(a->token);
    free(a->node[0]);
    free(a->node[1]);
    *a = (struct added){0};
}

const struct added_token *added_find_content(const struct added *a, const char *content, size_t len)
{
    for (size_t i = 0; i < a->n; i++)
        if (a->token[i].len == len && memcmp(a->token[i].content, content, len) == 0)
            return &a->token[i];
    return NULL;
}

bool added_has(const struct added *a, bool normalized)
{
    return a->n_node[normalized] > 0;
}

/* --- Searching
 * ---------------------------------------------------------------------------------------------- */

/* \w of the reference's regex library: alphabetic, marks, decimal digits, connectors, joiners. */
static bool is_word(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default: /* circled and squared letters are alphabetic symbols */
        return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
               (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189) ||
               code == 0x200C || code == 0x200D;
    }
}

static size_t previous_char(const char *s, size_t at)
{
    for (at--; at > 0 && utf8_is_tail(s[at]);)
        at--;
    return at;
}

static bool stands_alone(const struct normalizer_text *t, size_t start, size_t end)
{
    if (start > 0 && is_word(utf8_code(t->text + previous_char(t->text, start))))
        return false;
    return end == t->len || !is_word(utf8_code(t->text + end));
}

static bool all_special(const struct normalizer_text *t, size_t from, size_t to)
{
    for (size_t i = from; t->mark && i < to; i++)
        if (!t->mark[i])
            return false;
    return true;
}

/* The longest token that starts at `at` and is allowed there; its end. */
static const struct added_token *longest(const struct added *a, bool set, const struct normalizer_text *t,
                                         size_t at, size_t *end)
{
    const struct added_node *node = a->node[set];
    const struct added_token *best = NULL;
    uint32_t n = 0;
    for (size_t i = at; i < t->len; i++) {
        n = find_child(node, n, (unsigned char)t->text[i]);
        if (!n)
            break;
        if (!node[n].token)
            continue;
        const struct added_token *token = &a->token[node[n].token - 1];
        if (token->control && !all_special(t, at, i + 1))
            continue;
        best = token;
        *end = i + 1;
    }
    return best;
}

static void strip_around(const struct added_token *token, const struct normalizer_text *t, size_t floor,
                         size_t *start, size_t *end)
{
    while (token->lstrip && *start > floor) {
        size_t before = previous_char(t->text, *start);
        if (before < floor || !unicode16_is_space(utf8_code(t->text + before)))
            break;
        *start = before;
    }
    while (token->rstrip && *end < t->len && unicode16_is_space(utf8_code(t->text + *end)))
        *end += utf8_size(t->text[*end]);
}

const struct added_token *added_next(const struct added *a, bool normalized, const struct normalizer_text *t,
                                     size_t *at, size_t floor, size_t *start, size_t *end)
{
    if (!added_has(a, normalized))
        return NULL;
    const bool *starts = a->starts[normalized];
    while (*at < t->len) {
        if (!starts[(unsigned char)t->text[*at]]) {
            ++*at;
            continue;
        }
        const struct added_token *token = longest(a, normalized, t, *at, end);
        if (!token) {
            ++*at;
            continue;
        }
        *start = *at;
        *at = *end;
        if (token->single_word && !stands_alone(t, *start, *end))
            continue; /* the reference drops such a match and goes on behind it */
        strip_around(token, t, floor, start, end);
        if (*end > *at)
            *at = *end;
        return token;
    }
    return NULL;
}
