/* `format` of strings and integers. */
#include <string.h>

#include "base/mem.h"
#include "text/grammar_schema.h"

#define CLOCK "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
#define TIME  CLOCK "(\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define DATE                                                                                                 \
    "[0-9]{3}[1-9]-(((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01]))|((0[469]|11)-(0[1-9]|[12][0-9]|30))|(02-(0[" \
    "1-9]|1[0-9]|2[0-8])))"
#define MINUTES   "M([0-9]{1,2}S)?"
#define HOURS     "([0-9]{1,4}H([0-9]{1,2}" MINUTES ")?|[0-9]{1,4}" MINUTES "|[0-9]{1,5}S)"
#define LABEL     "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define BYTE      "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define HEX       "[0-9a-f]"
#define UUID(v)   "^" HEX "{8}-" HEX "{4}-" v HEX "{3}-[89ab]" HEX "{3}-" HEX "{12}$"
#define GROUP     HEX "{1,4}"
#define GROUPS(n) GROUP "(:" GROUP "){0," n "}"
#define BASE64    "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

/* RFC 3339, 1123, 5321 (the common part), 3986, 4122, 4291, 4648: texts that every reader of the format
 * accepts, of min to max characters. February has 28 days, and years do not end in 0, so that no year 0
 * occurs. Without an expression: the format is about what a text is for, not about its characters. */
static const struct format {
    const char *name, *regex;
    uint32_t min, max;
} formats[] = {
    {"date", "^" DATE "$", 10, 10},
    {"time", "^" TIME "$", 9, 24},
    {"date-time", "^" DATE "T" TIME "$", 20, 35},
    {"duration", "^P([0-9]{1,4}W|[0-9]{1,4}D(T" HOURS ")?|T" HOURS ")$", 3, 18},
    {"uuid", "^" HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}$", 36, 36},
    {"uuid1", UUID("1"), 36, 36},
    {"uuid3", UUID("3"), 36, 36},
    {"uuid4", UUID("4"), 36, 36},
    {"uuid5", UUID("5"), 36, 36},
    {"uuid6", UUID("6"), 36, 36},
    {"uuid7", UUID("7"), 36, 36},
    {"ipv4", "^" BYTE "\\." BYTE "\\." BYTE "\\." BYTE "$", 7, 15},
    {"ipv6",
     "^(" GROUP "(:" GROUP "){7}|::(" GROUPS("5") ")?|" GROUP "::(" GROUPS(
         "4") ")?|" GROUP "(:" GROUP "){1,2}::(" GROUPS("3") ")?)$",
     2, 39},
    {"hostname", "^" LABEL "(\\." LABEL "){0,7}$", 1, 511},
    {"email", "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,16}){0,3}@" LABEL "(\\." LABEL "){1,3}$", 5, 339},
    {"uri",
     "^[A-Za-z][A-Za-z0-9+.-]{0,15}://" LABEL "(\\." LABEL "){0,7}(:[0-9]{1,4})?(/[A-Za-z0-9._~-]{0,64}){"
     "0,16}(\\?[A-Za-z0-9._~=&-]{0,256})?$",
     5, 1832},
    {"byte", BASE64, 0, GRAMMAR_REPEAT},
    {"base64", BASE64, 0, GRAMMAR_REPEAT},
    {"binary", NULL, 0, 0},
    {"password", NULL, 0, 0},
    {"path", NULL, 0, 0},
    {"file-path", NULL, 0, 0},
    {"directory-path", NULL, 0, 0},
};

static const struct format *format_of(const json_t *name)
{
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if (!strcmp(json_string_value(name), formats[i].name))
            return &formats[i];
    return NULL;
}

bool schema_format_is_free(const json_t *name)
{
    const struct format *f = json_is_string(name) ? format_of(name) : NULL;
    return f && !f->regex;
}

enum nyb_code schema_format(struct schema *s, const json_t *name, uint32_t min, uint32_t max,
                            const char **regex)
{
    const struct format *f = format_of(name);
    *regex = NULL;
    if (!f)
        return schema_refuse(
            s, "format",
            "known are date, time, date-time, duration, uuid, uuid1 to uuid7, ipv4, ipv6, hostname, email, "
            "uri, byte, base64, binary, password, path, file-path, directory-path");
    if (f->regex && min > f->min)
        return schema_refuse(s, "minLength", "together with this format, some of whose texts are shorter");
    if (f->regex && max < f->max)
        return schema_refuse(s, "maxLength", "together with this format, some of whose texts are longer");
    *regex = f->regex;
    return NYB_OK;
}

/* Of what programs keep in so many bits. Others say nothing here: 64 bits hold every integer that is made. */
void schema_integer_format(const json_t *name, int64_t *lo, int64_t *hi)
{
    static const struct {
        const char *name;
        int64_t lo, hi;
    } table[] = {{"int8", INT8_MIN, INT8_MAX},    {"int16", INT16_MIN, INT16_MAX},
                 {"int32", INT32_MIN, INT32_MAX}, {"uint8", 0, UINT8_MAX},
                 {"uint16", 0, UINT16_MAX},       {"uint32", 0, UINT32_MAX},
                 {"uint64", 0, INT64_MAX},        {"uint", 0, INT64_MAX}};
    for (size_t i = 0; i < COUNT_OF(table) && json_is_string(name); i++)
        if (!strcmp(json_string_value(name), table[i].name)) {
            *lo = table[i].lo;
            *hi = table[i].hi;
        }
}
