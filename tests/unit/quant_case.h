/* Quantization as a configuration declares it, in a few words. */
#ifndef NYB_QUANT_CASE_H
#define NYB_QUANT_CASE_H

#include "checkpoint/hfconfig.h"
#include "checkpoint/quant.h"
#include "ckpt_files.h"

/* Single quotes for double ones keep configs readable here. */
static inline json_t *json_of(const char *text)
{
    char *copy = mem_strdup(text);
    json_t *root;
    struct nyb_err err;
    for (char *c = copy; *c; c++)
        if (*c == '\'')
            *c = '"';
    if (json_parse(&root, copy, strlen(copy), "test", &err) != NYB_OK)
        fail_msg("%s in %s", err.message, copy);
    free(copy);
    return root;
}

static inline struct quant *parse(const char *config, const char *folder)
{
    json_t *root = json_of(config);
    struct quant *q;
    struct nyb_err err = {0};
    if (quant_parse(&q, root, folder, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
    json_decref(root);
    return q;
}

#define CONFIG(body)   "{'quantization_config':{" body "}}"
#define MODELOPT(body) CONFIG("'quant_method':'modelopt'," body)
#define CT(body)       CONFIG("'quant_method':'compressed-tensors'," body)
#define NVFP4_WEIGHTS \
    "'weights':{'num_bits':4,'type':'float','group_size':16,'strategy':'tensor_group','dynamic':false}"
#define NVFP4_INPUTS "'input_activations':{'num_bits':4,'type':'float','group_size':16,'dynamic':'local'}"
#define FP8_WEIGHTS  "'weights':{'num_bits':8,'type':'float','strategy':'tensor'}"

#endif
