/* The server's command line: settings, the engine, and then the server until it is told to stop. */
#include <signal.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "server/server.h"

_Static_assert((int)CONFIG_LOG_LOGFMT == (int)LOG_LOGFMT && (int)CONFIG_LOG_JSON == (int)LOG_JSON,
               "same order");

/* The option has two names for each. */
static enum log_level level(const struct serve_config *config)
{
    return config->verbose ? LOG_DEBUG : (enum log_level)(config->log_level % (LOG_DEBUG + 1));
}

static int serve(const struct serve_config *config)
{
    struct nyb_options options;
    struct nyb_engine *engine;
    struct server *server;
    struct nyb_err err;
    struct cli_progress bar;
    enum nyb_code code;
    config_engine_options(config, cli_default_model(), &options);
    code = nyb_ranks_open(&options.ranks, &options, &err);
    if (code != NYB_OK)
        return cli_fail("serve", &err);
    if (nyb_ranks_rank(options.ranks) > 0) {
        /* Rank 0 hears the signals and speaks for all, except of a lost rank, which comm tells. */
        if (level(config) == LOG_INFO)
            log_set_level(LOG_WARN);
        signal(SIGINT, SIG_IGN);
        signal(SIGTERM, SIG_IGN);
        signal(SIGHUP, SIG_IGN);
        return nyb_ranks_follow(options.ranks, &options, &err) == NYB_OK ? 0 : 1;
    }
    options.progress = cli_progress_update;
    options.progress_arg = &bar;
    code = server_open(&server, config, &err);
    if (code == NYB_OK) {
        uint64_t start_ns = clock_ns();
        log_info("loading %s", options.model); /* where there is no terminal for a bar */
        cli_progress_start(&bar, "loading");
        code = nyb_open(&engine, &options, &err);
        cli_progress_end(&bar);
        if (code == NYB_OK)
            log_info("loaded in %.1f s", (double)(clock_ns() - start_ns) * 1e-9);
    }
    if (code != NYB_OK) {
        int status = cli_fail("serve", &err); /* at once: other ranks may take long to end */
        server_close(server);
        nyb_ranks_close(options.ranks);
        return status;
    }
    code = server_run(server, engine, &err);
    nyb_close(engine);
    server_close(server);
    return code == NYB_OK ? 0 : cli_fail("serve", &err);
}

int cli_serve(int argc, char **argv)
{
    struct serve_config config;
    struct nyb_err err;
    bool help;
    int status = 0;
    enum nyb_code code = config_read(&config, argc, argv, &help, &err);
    if (code != NYB_OK) {
        char text[1200];
        status = cli_misuse("serve", "%s", err_format(&err, text, sizeof(text)));
    } else if (help) {
        config_print_help();
    } else {
        log_set_level(level(&config));
        log_set_format((enum log_format)config.log_format);
        config_log_ignored();
        status = serve(&config);
    }
    config_free(&config);
    return status;
}
