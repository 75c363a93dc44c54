/* config.json with its quantization, hf_quant_config.json and generation_config.json: one text serves as all.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/hfconfig.h"
#include "checkpoint/quant.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/tmp/nybble-fuzz-XXXXXX";

static void remove_folder(void)
{
    static const char *const name[] = {"config.json", "hf_quant_config.json", "generation_config.json"};
    for (size_t i = 0; i < COUNT_OF(name); i++) {
        char *path = path_join(folder, name[i]);
        unlink(path);
        free(path);
    }
    rmdir(folder);
}

static void write_file(const char *name, const uint8_t *data, size_t size)
{
    char *path = path_join(folder, name);
    FILE *f = fopen(path, "wb");
    if (f) {
        fwrite(data, 1, size, f);
        fclose(f);
    }
    free(path);
}

static void try_quant(const json_t *config, const char *where)
{
    static const char *const module[] = {"lm_head", "model.layers.1.mlp.experts.3.up_proj",
                                         "model.layers.0.self_attn.q_proj", "aaaaaaaaaaaaaaaaaaaaaaaaa", ""};
    struct quant *q;
    struct nyb_err err;

    if (quant_parse(&q, config, where, &err) != NYB_OK)
        return;
    ASSERT(quant_describe(q)[0]);
    for (size_t i = 0; i < COUNT_OF(module); i++)
        ASSERT(quant_scheme_of(q, module[i]) <= QUANT_FP8);
    quant_free(q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hfconfig c;
    struct hfconfig_generation g;
    struct nyb_err err;
    json_t *root;

    if (!strchr(folder, 'X') || mkdtemp(folder)) {
        static bool registered;
        if (!registered)
            atexit(remove_folder);
        registered = true;
    }
    log_set_level(LOG_ERROR);
    write_file("config.json", data, size);
    write_file("hf_quant_config.json", data, size);
    write_file("generation_config.json", data, size);
    if (json_parse(&root, (const char *)data, size, "fuzz", &err) == NYB_OK) {
        json_t *outer = json_pack("{s:O}", "quantization_config", root);
        if (outer)
            try_quant(outer, NULL);
        json_decref(outer);
        try_quant(root, folder);
        json_decref(root);
    }
    if (hfconfig_open(&c, folder, &err) == NYB_OK) {
        if (hfconfig_generation_read(&g, &c, folder, &err) == NYB_OK)
            hfconfig_generation_free(&g);
        hfconfig_close(&c);
    }
    return 0;
}
