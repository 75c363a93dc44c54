/* What a launch and the threads in it (simt.h) have between them. */
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/emulate/fiber.h"
#include "kernels/cuda/emulate/simt.h"

#define WARP         32u
#define SHARED_LIMIT (227u << 10)
#define POISON       0xff /* NaNs, and indices far out */

namespace simt
{

struct warp {
    unsigned arrived, generation;
    exchange_kind kind;
    alignas(EXCHANGE_BYTES) uint8_t value[2][WARP][EXCHANGE_BYTES];
};

enum thread_state { READY, WAITS_BARRIER, WAITS_WARP, DONE };

struct block {
    std::vector<warp> warps;
    std::vector<uint8_t> dynamic;
    struct variable {
        const void *key;
        size_t bytes;
        std::unique_ptr<uint8_t[]> memory;
        void *at;
    };
    std::vector<variable> variables;
    size_t static_bytes;
    unsigned n_at_barrier;
    int counting, counted;    /* by barrier_count: this time, the last time */
    unsigned first;           /* thread of those that run at the same time */
    unsigned n_thread, index; /* index: of the grid */
};

struct thread {
    struct fiber fiber;
    struct place place;
    thread_state state;
    unsigned index; /* in its block */
    struct block *block;
    struct warp *warp;
};

/* Of one system thread: launches of several run at once, as those of several GPUs do. */
struct engine_state {
    std::vector<std::unique_ptr<thread>> threads;
    std::vector<std::unique_ptr<block>> blocks;
    thread *running;
    /* Of the round that runs: threads from `turn` on, by `by`, have not had theirs; `end` is beyond the last.
     */
    size_t turn, by, end;
    size_t left;                /* threads that have not ended */
    bool only_spun;             /* none in this round did more than spin */
    size_t group, n_at_cluster; /* blocks that run at the same time; threads of them that wait for the rest */
    const std::function<void()> *kernel;
    unsigned n_launch;
    bool failed;
    bool outside; /* a thread waits for what another system thread or process does */
    char error[512];
    size_t shared;
    ~engine_state()
    {
        for (std::unique_ptr<thread> &t : threads)
            fiber_free(&t->fiber);
    }
};

extern __thread engine_state *engine __attribute__((tls_model("initial-exec")));

/* The launch has failed; the first message stays. */
void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The next thread of the round that can run; NULL: none. */
static inline thread *next_ready(engine_state *e)
{
    while (e->turn != e->end && !e->failed) {
        thread *t = e->threads[e->turn].get();
        e->turn += e->by;
        if (t->state == READY)
            return t;
    }
    return nullptr;
}

static inline void make_running(engine_state *e, thread *t)
{
    e->running = t;
    here = &t->place;
}

/* The running thread is in that state: straight to the next one, or home where a round ends. */
void wait(thread_state state);

} // namespace simt
