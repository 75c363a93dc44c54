/* The server: an engine behind an OpenAI-compatible HTTP interface. docs/SERVING.md describes it.
 *
 *     config_read -> server_open -> nyb_open(config_engine_options) -> server_run (returns at shutdown)
 *     -> nyb_close -> server_close
 *
 * One thread, the loop, owns libmicrohttpd and everything about connections; a few workers parse requests,
 * render and tokenize; the engine's thread only rings. See loop.h for who may touch what. */
#ifndef NYB_SERVER_SERVER_H
#define NYB_SERVER_SERVER_H

#include "server/config.h"

struct server;

/* What can be wrong before minutes go into loading a model: keys, certificates, folders, the ports, which are
 * taken here and refuse connections until server_run. config lives longer. */
enum nyb_code server_open(struct server **out, const struct serve_config *config,
                          struct nyb_err *err) NYB_MUST_CHECK;
/* Serve until SIGTERM or SIGINT, once. Returns NYB_OK after a drain. The engine stays open. */
enum nyb_code server_run(struct server *s, struct nyb_engine *engine, struct nyb_err *err) NYB_MUST_CHECK;
/* NULL is fine. */
void server_close(struct server *s);

#endif
