/* The formats in which models write reasoning and tool calls. A format is a row of parse_formats.def; the
 * shape of its calls is a syntax (parse_syntax.h), shared by the formats that write calls alike. */
#ifndef NYB_TEXT_PARSE_FORMAT_H
#define NYB_TEXT_PARSE_FORMAT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct parse_syntax;
struct tokenizer;

/* A marker that is NULL does not exist in the format. No marker repeats its first byte, so a failed partial
 * match can only restart at the byte that broke it. */
struct parse_format {
    const char *name;
    const char *aliases;    /* other names, comma-separated: those of vLLM's and SGLang's parsers */
    const char *think_open; /* reasoning begins; only at the start of the answer */
    const char *think_close;
    const char *answer_open; /* wrapper around the content, dropped */
    const char *answer_close;
    const char *call_open;
    const char *call_close; /* NULL: the call ends by itself */
    const struct parse_syntax *syntax;
    bool call_ends_thinking; /* a well-formed call within open reasoning is a call, and ends the reasoning */
    bool short_ids;          /* ids of nine letters and digits; else call_ and 24 hexadecimal digits        */
    const char *needle[2];   /* a chat template that contains these (non-NULL) writes this format */
};

const struct parse_format *parse_format_plain(void);

/* By name or alias; NULL: unknown. */
const struct parse_format *parse_format_find(const char *name);

/* The i-th format in the table's order, NULL past the end. */
const struct parse_format *parse_format_at(size_t i);

/* The format that a chat template's source (may be NULL) teaches the model; plain when it teaches none. */
const struct parse_format *parse_format_for_template(const char *template_source);

/* The same for the template that chat_open() would take; all of them where the folder has several. folder may
 * be NULL when override_path is given. A folder without a template is plain. */
enum nyb_code parse_format_for_folder(const struct parse_format **out, const char *folder,
                                      const char *override_path, struct nyb_err *err) NYB_MUST_CHECK;

/* Is one of the format's markers a special token, as [TOOL_CALLS] is for Mistral? Then the answer must be
 * decoded with its special tokens, or the marker would be lost. */
bool parse_format_needs_special(const struct parse_format *f, const struct tokenizer *tok);

/* Does the prompt end within an open reasoning block, so that the answer starts in it? */
bool parse_format_opens(const struct parse_format *f, const char *prompt, size_t len);

/* Given the whole answer alone: does it close a reasoning block that it never opened? */
bool parse_format_was_opened(const struct parse_format *f, const char *answer, size_t len);

#endif
