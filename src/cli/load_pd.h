/* The times that a server with separate prefill and decode engines tells of in its stream (--pd-metrics). */
#ifndef NYB_CLI_LOAD_PD_H
#define NYB_CLI_LOAD_PD_H

#include "cli/load_reply.h"

enum load_pd {
#define PD(name, unit, label, end, end_key, start, start_key) PD_##name,
#include "cli/load_pd.def"
#undef PD
    PD_COUNT
};

/* In the unit of load_pd.def; NAN where the server did not say. */
double load_pd_value(const struct load_reply *r, enum load_pd which);

/* Every value of a reply that there is, in seconds or tokens as FastDeploy writes them; new reference. */
json_t *load_pd_json(const struct load_reply *r);

#endif
