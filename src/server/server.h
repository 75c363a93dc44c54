/* The server: an engine behind an OpenAI-compatible HTTP interface. docs/SERVING.md describes it.
 *
 *     config_read -> nyb_open(config_engine_options) -> server_run (returns at shutdown) -> nyb_close
 *
 * One thread, the loop, owns libmicrohttpd and everything about connections; a few workers parse requests,
 * render and tokenize; the engine's thread only rings. See loop.h for who may touch what. */
#ifndef NYB_SERVER_SERVER_H
#define NYB_SERVER_SERVER_H

#include "server/config.h"

/* Serve until SIGTERM or SIGINT. Returns NYB_OK after a drain. The engine stays open. */
enum nyb_code server_run(const struct serve_config *config, struct nyb_engine *engine,
                         struct nyb_err *err) NYB_MUST_CHECK;

#endif
