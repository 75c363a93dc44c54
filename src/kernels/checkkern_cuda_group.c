#include "kernels/checkkern_cuda_group.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static void *serve(void *arg)
{
    struct gpu_rank *r = arg;
    struct gpu_group *g = r->group;
    for (;;) {
        pthread_barrier_wait(&g->begin);
        if (!g->fn)
            return NULL;
        r->ok = g->fn(g->arg, g->gpu[r->rank], r->rank);
        if (!r->ok) /* the plug-in's error is the thread's */
            snprintf(r->why, sizeof(r->why), "rank %d: %.230s", r->rank, g->plugin->error(g->gpu[r->rank]));
        pthread_barrier_wait(&g->end);
    }
}

bool gpu_group_run(struct gpu_group *g, gpu_rank_fn *fn, void *arg)
{
    g->fn = fn;
    g->arg = arg;
    pthread_barrier_wait(&g->begin);
    pthread_barrier_wait(&g->end);
    for (int r = 0; r < g->size; r++)
        if (!g->rank[r].ok) {
            snprintf(g->why, sizeof(g->why), "%s", g->rank[r].why);
            return false;
        }
    return true;
}

static bool start_threads(struct gpu_group *g)
{
    pthread_barrier_init(&g->begin, NULL, (unsigned)g->size + 1);
    pthread_barrier_init(&g->end, NULL, (unsigned)g->size + 1);
    for (int r = 0; r < g->size; r++, g->n_thread++) {
        g->rank[r] = (struct gpu_rank){.group = g, .rank = r};
        if (pthread_create(&g->rank[r].thread, NULL, serve, &g->rank[r]) != 0) {
            snprintf(g->why, sizeof(g->why), "no thread for rank %d", r);
            return false;
        }
    }
    return true;
}

bool gpu_group_open(struct gpu_group *g, const struct cuda_plugin *plugin, const struct gpu_group_options *o)
{
    struct cuda_peer_handle handle[CUDA_PEERS_MAX];
    *g = (struct gpu_group){.plugin = plugin, .size = o->size};
    ASSERT(o->size >= 1 && o->size <= CUDA_PEERS_MAX);
    for (int r = 0; r < o->size; r++, g->n_open++) {
        const struct cuda_peer_options options = {.rank = r,
                                                  .size = o->size,
                                                  .n_sharing = o->apart ? 1 : o->size,
                                                  .bytes = o->bytes,
                                                  .sent_bytes = o->sent_bytes,
                                                  .timeout_ms = o->timeout_ms};
        g->gpu[r] = plugin->open(o->apart ? r : 0, g->why, sizeof(g->why));
        if (!g->gpu[r])
            return false;
        if (!plugin->peers_open(g->gpu[r], &options, &handle[r])) {
            snprintf(g->why, sizeof(g->why), "rank %d: %.230s", r, plugin->error(g->gpu[r]));
            g->n_open++;
            return false;
        }
    }
    for (int r = 0; r < o->size; r++)
        if (!plugin->peers_connect(g->gpu[r], handle)) {
            snprintf(g->why, sizeof(g->why), "rank %d: %.230s", r, plugin->error(g->gpu[r]));
            return false;
        }
    return start_threads(g);
}

void gpu_group_close(struct gpu_group *g)
{
    if (g->n_thread == g->size) {
        g->fn = NULL;
        pthread_barrier_wait(&g->begin);
        for (int r = 0; r < g->size; r++)
            pthread_join(g->rank[r].thread, NULL);
        pthread_barrier_destroy(&g->begin);
        pthread_barrier_destroy(&g->end);
    }
    for (int r = 0; r < g->n_open; r++)
        g->plugin->close(g->gpu[r]);
}

bool gpu_group_has(const struct checkkern_gpu *g, int index)
{
    char why[256];
    struct cuda_gpu *other = g->plugin->open(index, why, sizeof(why));
    if (other)
        g->plugin->close(other);
    return other;
}

bool gpu_group_each(const struct checkkern_gpu *g, int more, gpu_group_check *check,
                    struct checkkern_report *report)
{
    bool ok = check(g, 2, false, report) && check(g, more, false, report);
    for (int size = 2; ok && size <= (g->rounds > 4 ? CUDA_PEERS_MAX : 2); size *= 2)
        ok = !gpu_group_has(g, size - 1) || check(g, size, true, report);
    return ok;
}
