/* Which files of a folder make up the checkpoint. */
#ifndef NYB_CHECKPOINT_INDEX_H
#define NYB_CHECKPOINT_INDEX_H

#include "base/json.h"

#define INDEX_FILE_NAME "model.safetensors.index.json"

struct index_set {
    char **file; /* names within the folder, sorted, each once */
    int n_file;
    json_t **map; /* (n_map) objects, tensor -> file name: together the index; none without one */
    int n_map;
};

/* With an index, the shards that it names. Without one, model.safetensors; without that, every *.safetensors
 * in the folder except hidden files, golden.safetensors (reference outputs of a test) and, beside
 * model-*.safetensors, the consolidated* copies that some publishers add. A long index is parsed by at most
 * n_thread threads beside the caller; then a tensor may be in two objects of the map. */
enum nyb_code index_read(struct index_set *set, const char *folder, int n_thread,
                         struct nyb_err *err) NYB_MUST_CHECK;
/* What it will most likely name, from the folder's names alone: without a look at the index. Never an error;
 * at most INDEX_GUESS_MAX files. */
#define INDEX_GUESS_MAX 1024
void index_guess(struct index_set *set, const char *folder);
void index_free(struct index_set *set);

#endif
