#include "cli/inspect_checksum.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cpu.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "model/checksum.h"

/* As sha256sum does: the hash, then whose it is. */
static void print_text(const struct checksum *c, const char *folder, bool all)
{
    char text[CHECKSUM_TEXT_BYTES];
    for (int i = 0; all && i < c->n_tensor; i++)
        printf("%s  %s\n", checksum_text(c->tensor[i].hash, text), c->tensor[i].name);
    printf("%s  %s\n", checksum_text(c->total, text), folder);
}

static void print_json(const struct checksum *c, const char *folder, bool all)
{
    char text[CHECKSUM_TEXT_BYTES];
    json_t *root = json_pack("{s:s, s:s}", "folder", folder, "checksum", checksum_text(c->total, text));
    json_t *tensors = json_array();
    for (int i = 0; all && i < c->n_tensor; i++) {
        const struct checksum_tensor *t = &c->tensor[i];
        json_array_append_new(tensors,
                              json_pack("{s:s, s:s, s:[i, i], s:s}", "name", t->name, "type", t->type,
                                        "shape", t->n, t->k, "checksum", checksum_text(t->hash, text)));
    }
    if (all)
        json_object_set(root, "tensors", tensors);
    json_dumpf(root, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(tensors);
    json_decref(root);
}

enum nyb_code inspect_checksum(const char *model, bool all, bool json, struct nyb_err *err)
{
    struct checksum c = {0};
    char *folder = NULL;
    enum nyb_code code = ckpt_resolve(&folder, model, err);
    if (code == NYB_OK)
        code = checksum_folder(&c, folder, cpu_count(), err);
    if (code == NYB_OK && json)
        print_json(&c, folder, all);
    else if (code == NYB_OK)
        print_text(&c, folder, all);
    checksum_free(&c);
    free(folder);
    return code;
}
