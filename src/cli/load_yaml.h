/* A YAML file as JSON: the sampling parameters that FastDeploy's benchmark keeps in such files. */
#ifndef NYB_CLI_LOAD_YAML_H
#define NYB_CLI_LOAD_YAML_H

#include "base/err.h"
#include "base/json.h"

/* One document, a mapping at its top. Plain scalars are null, true, false, whole numbers, numbers or texts,
 * by YAML 1.2's core schema; quoted ones are texts. JSON is YAML too. Errors name line and column. */
enum nyb_code load_yaml_read(json_t **out, const char *path, struct nyb_err *err) NYB_MUST_CHECK;

#endif
