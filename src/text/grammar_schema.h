/* JSON schemas as trees: what the files grammar_schema*.c share. */
#ifndef NYB_TEXT_GRAMMAR_SCHEMA_H
#define NYB_TEXT_GRAMMAR_SCHEMA_H

#include "text/grammar_build.h"

#define SCHEMA_DEPTH_MAX 64  /* schemas within schemas */
#define SCHEMA_NAME_MAX  256 /* bytes of a name beside which others are allowed */

enum schema_type {
    SCHEMA_NULL = 1,
    SCHEMA_BOOLEAN = 2,
    SCHEMA_INTEGER = 4,
    SCHEMA_NUMBER = 8, /* with SCHEMA_INTEGER, which is part of it */
    SCHEMA_STRING = 16,
    SCHEMA_ARRAY = 32,
    SCHEMA_OBJECT = 64,
};

struct schema_ref {
    char *pointer;
    const json_t *target;
    uint32_t rule;
};

struct schema {
    struct grammar_json *j;
    const json_t *root;
    struct buf path; /* JSON pointer of the schema at hand */
    int depth;
    struct schema_ref *ref; /* (n_ref) those built are before n_built */
    size_t n_ref, ref_cap, n_built;
    struct nyb_err *err;
};

/* NYB_E_UNSUPPORTED or NYB_E_ARG; the message is led by the pointer. */
enum nyb_code schema_refuse(struct schema *s, const char *keyword, const char *why) NYB_MUST_CHECK;
enum nyb_code schema_wrong(struct schema *s, const char *keyword, const char *what) NYB_MUST_CHECK;

/* grammar_schema.c: open, build, close. Closing builds what $refs name, and gives `code` back or what went
 * wrong then. */
void schema_open(struct schema *s, struct grammar_json *j, const json_t *root, const char *where,
                 struct nyb_err *err);
enum nyb_code schema_close(struct schema *s, enum nyb_code code) NYB_MUST_CHECK;
enum nyb_code schema_build(struct schema *s, const json_t *schema, uint32_t *node) NYB_MUST_CHECK;
/* The same for a part: keyword, and a name or (where it is NULL) a number below it. */
enum nyb_code schema_build_at(struct schema *s, const json_t *schema, const char *keyword, const char *name,
                              size_t number, uint32_t *node) NYB_MUST_CHECK;
/* The types that the schema names or, where it names none, that its keywords are about; 0: any. */
enum nyb_code schema_types(struct schema *s, const json_t *schema, unsigned *types) NYB_MUST_CHECK;
bool schema_is_annotation(const char *keyword);
/* All of them are known. */
enum nyb_code schema_check_keywords(struct schema *s, const json_t *schema) NYB_MUST_CHECK;

/* grammar_schema_merge.c */
/* A new object without $ref and allOf at its top: what they say is in it. */
enum nyb_code schema_flatten(struct schema *s, const json_t *schema, int depth, json_t **out) NYB_MUST_CHECK;
/* A new object that says what both say. */
enum nyb_code schema_merge(struct schema *s, const json_t *a, const json_t *b, json_t **out) NYB_MUST_CHECK;
/* What a $ref names. */
enum nyb_code schema_resolve(struct schema *s, const char *pointer, const json_t **out) NYB_MUST_CHECK;
/* Can no value satisfy both? */
enum nyb_code schema_disjoint(struct schema *s, const json_t *a, const json_t *b, bool *out) NYB_MUST_CHECK;

/* grammar_schema_types.c: nodes for values of one type under the schema's keywords. */
enum nyb_code schema_string(struct schema *s, const json_t *schema, uint32_t *node) NYB_MUST_CHECK;
enum nyb_code schema_number(struct schema *s, const json_t *schema, bool integer,
                            uint32_t *node) NYB_MUST_CHECK;
enum nyb_code schema_array(struct schema *s, const json_t *schema, uint32_t *node) NYB_MUST_CHECK;
/* grammar_schema_format.c: the expression of a string's format, NULL where the text is free. Texts of min to
 * max characters must be what it has anyway. */
enum nyb_code schema_format(struct schema *s, const json_t *name, uint32_t min, uint32_t max,
                            const char **regex) NYB_MUST_CHECK;
bool schema_format_is_free(const json_t *name);
/* Narrows lo and hi, if it is a known one. */
void schema_integer_format(const json_t *name, int64_t *lo, int64_t *hi);
/* grammar_schema_object.c */
enum nyb_code schema_object(struct schema *s, const json_t *schema, uint32_t *node) NYB_MUST_CHECK;

#endif
