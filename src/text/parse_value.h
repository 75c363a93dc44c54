/* Untyped argument text to JSON, by the JSON schema in the request's tools. */
#ifndef NYB_TEXT_PARSE_VALUE_H
#define NYB_TEXT_PARSE_VALUE_H

#include "base/json.h"

/* The properties of the function's parameters; NULL when the tools (may be NULL) do not tell. */
const json_t *parse_value_properties(const json_t *tools, const char *function, size_t len);
/* The schema of one of them (properties may be NULL); NULL: none. */
const json_t *parse_value_schema(const json_t *properties, const char *key, size_t len);

/* Append the text as a JSON value. With a schema: of the first type that the schema allows and the text can
 * be read as, in the order null, boolean, integer, number, object, array; else a string. Without: whatever
 * JSON the text is when guess is set, else a string. Nothing is ever refused or altered to fit. */
void parse_value_add(struct buf *out, const char *text, size_t len, const json_t *schema, bool guess);

#endif
