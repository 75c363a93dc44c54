/* Data sets that come from files, and the text that is made up. */
#ifndef NYB_CLI_LOAD_FILES_H
#define NYB_CLI_LOAD_FILES_H

#include "base/buf.h"
#include "cli/load_data.h"

#define LOAD_FILE_MAX ((size_t)1 << 30)

/* Takes over input and members. */
void load_data_add(struct load_data *d, json_t *input, json_t *members, int max_tokens, double at_s);

/* n random words, separated by spaces. */
void load_words(struct buf *b, uint64_t *state, int n);

/* All rows of a file. */
enum nyb_code load_files_ebchat(struct load_data *d, const struct load_data_options *o,
                                struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code load_files_eb(struct load_data *d, const struct load_data_options *o,
                            struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code load_files_custom(struct load_data *d, const struct load_data_options *o,
                                struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code load_files_sharegpt(struct load_data *d, const struct load_data_options *o,
                                  struct nyb_err *err) NYB_MUST_CHECK;
/* The first o->n rows: Azure's CSV or Mooncake's JSONL, told apart by their first byte. */
enum nyb_code load_files_trace(struct load_data *d, const struct load_data_options *o,
                               struct nyb_err *err) NYB_MUST_CHECK;

#endif
