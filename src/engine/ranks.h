/* struct nyb_ranks is a communicator that no model owns yet. */
#ifndef NYB_ENGINE_RANKS_H
#define NYB_ENGINE_RANKS_H

#include "comm/comm.h"

struct comm *ranks_comm(struct nyb_ranks *r); /* NULL: NULL */

#endif
