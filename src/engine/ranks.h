/* struct nyb_ranks is a communicator that no model owns yet. */
#ifndef NYB_ENGINE_RANKS_H
#define NYB_ENGINE_RANKS_H

#include "comm/comm.h"
#include "model/model.h"

struct comm *ranks_comm(struct nyb_ranks *r); /* NULL: NULL */
/* What all ranks open the model with, so that it is the same model. */
struct model_options ranks_model_options(const struct nyb_options *o, const char *folder, struct comm *comm);
/* The most tokens of a step: as asked for, or as suits the device. */
int ranks_step_tokens(const struct nyb_options *o, bool gpu);

#endif
