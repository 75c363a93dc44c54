/* What the parsers of the two declaration forms share with quant.c. */
#ifndef NYB_CHECKPOINT_QUANT_INTERNAL_H
#define NYB_CHECKPOINT_QUANT_INTERNAL_H

#include <stdatomic.h>

#include "checkpoint/quant.h"
#include "checkpoint/quant_names.h"

#define QUANT_GROUP 16 /* elements a block scale covers; the only size that NVFP4 has */

struct quant_group { /* an entry of config_groups */
    struct quant_names targets;
    enum quant_scheme scheme;
};

struct quant_layer { /* an entry of quantized_layers */
    char *module;
    enum quant_scheme scheme;
};

struct quant {
    const char *form;         /* "modelopt", "compressed-tensors", "fp8"; NULL: nothing is declared */
    const char *algo;         /* for messages: "NVFP4", "FP8", "MIXED_PRECISION", "none"            */
    enum quant_scheme scheme; /* of modules that are not excluded, when there is nothing finer      */
    struct quant_group *group;
    int n_group;
    struct quant_layer *layer; /* sorted by module */
    int n_layer;
    bool mixed; /* group or layer decide, scheme does not */
    struct quant_names exclude;
    bool exclude_parts; /* plain excludes match anywhere in a name */
    char *kv;           /* the declared KV cache algorithm, or NULL */
    bool kv_fp8;
    char *description;
    struct quant_tally *tally;
};

/* Modules that are not stored as declared. Filled by several loading threads. */
struct quant_tally {
    atomic_int n;
    atomic_bool logged;
    char example[320]; /* written by whoever counts the first */
};

/* `q` is zeroed before; on error the caller frees it. path names the file in messages. */
enum nyb_code quant_parse_modelopt(struct quant *q, const json_t *obj, const json_t *producer,
                                   const char *path, struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code quant_parse_compressed(struct quant *q, const json_t *obj, const char *path,
                                     struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code quant_parse_fp8(struct quant *q, const json_t *obj, const char *path,
                              struct nyb_err *err) NYB_MUST_CHECK;

/* A field as text: *out NULL when absent or null; anything but a string is an error. */
enum nyb_code quant_read_text(const json_t *obj, const char *key, const char **out, const char *path,
                              struct nyb_err *err) NYB_MUST_CHECK;
/* The scheme behind a quant_algo spelling, in any case. `module` is named in the error, may be NULL. */
enum nyb_code quant_algo_find(enum quant_scheme *scheme, const char *algo, const char *module,
                              const char *path, struct nyb_err *err) NYB_MUST_CHECK;
/* group_size of obj is absent, null or 16. */
enum nyb_code quant_check_group_size(const json_t *obj, const char *where, const char *path,
                                     struct nyb_err *err) NYB_MUST_CHECK;
/* config_groups into q->group. Both forms have it. */
enum nyb_code quant_read_groups(struct quant *q, const json_t *groups, const char *path,
                                struct nyb_err *err) NYB_MUST_CHECK;
/* kv_cache_scheme (an object or a name) or kv_cache_quant_algo (a name). */
enum nyb_code quant_read_kv(struct quant *q, const json_t *kv, const char *key, const char *path,
                            struct nyb_err *err) NYB_MUST_CHECK;

#endif
