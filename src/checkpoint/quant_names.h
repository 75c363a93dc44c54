/* A set of modules, written as a checkpoint's config writes it: exact names, shell patterns, "re:" regular
 * expressions (Python's re.match: anchored at the start only) and the class name Linear, which means every
 * module that anybody asks about here. */
#ifndef NYB_CHECKPOINT_QUANT_NAMES_H
#define NYB_CHECKPOINT_QUANT_NAMES_H

#include "base/json.h"

struct quant_names {
    char **exact; /* sorted by quant_names_read */
    int n_exact;
    struct quant_pattern *pattern;
    int n_pattern;
    bool every_linear;
};

/* list: a JSON list of strings, or NULL or null for none. path and key are for messages. */
enum nyb_code quant_names_read(struct quant_names *s, const json_t *list, const char *path, const char *key,
                               struct nyb_err *err) NYB_MUST_CHECK;
void quant_names_free(struct quant_names *s);

bool quant_names_has_exact(const struct quant_names *s, const char *module);
bool quant_names_has_pattern(const struct quant_names *s, const char *module);
/* Any of the three ways. */
bool quant_names_has(const struct quant_names *s, const char *module);
/* An exact name is a part of module: how exporters before ModelOpt 0.39 meant them. */
bool quant_names_has_part(const struct quant_names *s, const char *module);

#endif
