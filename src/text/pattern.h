/* Regular expressions of tokenizer.json (Oniguruma's syntax, Unicode 16) on PCRE2 with JIT.
 *
 * The pattern is compiled as it stands, and once more rewritten so that its classes are Unicode 16's; the
 * second form, slower, runs only on text that holds a character on which the two differ. What Oniguruma and
 * PCRE2 read differently (\w, \h, nested classes, &&, {n,m}+ ...) is refused by name. */
#ifndef NYB_TEXT_PATTERN_H
#define NYB_TEXT_PATTERN_H

#include "base/err.h"

struct pattern;

enum nyb_code pattern_open(struct pattern **out, const char *regex, size_t len,
                           struct nyb_err *err) NYB_MUST_CHECK;
/* Matches the bytes of `text` themselves. */
enum nyb_code pattern_open_literal(struct pattern **out, const char *text, size_t len,
                                   struct nyb_err *err) NYB_MUST_CHECK;
void pattern_close(struct pattern *p);

/* Finds matches, left to right, not overlapping. One thread, one text at a time:
 *     pattern_scan_text(s, text, len);
 *     while ((code = pattern_next(s, &start, &end, &found, err)) == NYB_OK && found) ...   */
struct pattern_scan;
/* unicode16: the text holds characters for which unicode16_differs. */
struct pattern_scan *pattern_scan_open(const struct pattern *p, bool unicode16);
void pattern_scan_text(struct pattern_scan *s, const char *text, size_t len);
enum nyb_code pattern_next(struct pattern_scan *s, size_t *start, size_t *end, bool *found,
                           struct nyb_err *err) NYB_MUST_CHECK;
void pattern_scan_close(struct pattern_scan *s);

/* The regex with classes spelled out for Unicode 16, as it is compiled; caller frees. For tests. */
enum nyb_code pattern_rewrite(char **out, const char *regex, size_t len, struct nyb_err *err) NYB_MUST_CHECK;

#endif
