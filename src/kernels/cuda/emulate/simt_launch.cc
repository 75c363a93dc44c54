/* A launch: its blocks one after the other, or side by side, on fibers of this system thread. */
#include <sched.h>
#include <unistd.h>

#include <cstdio>

#include "kernels/cuda/emulate/simt_engine.h"
#include "kernels/cuda/emulate/simt_stream.h"

#define SPINS_MAX    20000000l /* rounds in which threads only spun */
#define EAGER_ROUNDS 64        /* of waiting for another process or thread, before sleeping */
#define SLEEP_US     50

namespace simt
{

/* This thread's, made at its first launch and freed when the thread ends. */
static void need_engine()
{
    static thread_local std::unique_ptr<engine_state> owner;
    if (engine)
        return;
    owner.reset(new engine_state());
    engine = owner.get();
}

[[noreturn]] static void thread_body()
{
    fiber_begin();
    for (;;) {
        (*engine->kernel)();
        wait(DONE);
    }
}

static bool make_threads(size_t n)
{
    while (engine->threads.size() < n) {
        std::unique_ptr<thread> t(new thread());
        if (!fiber_make(&t->fiber, thread_body))
            return false;
        engine->threads.push_back(std::move(t));
    }
    return true;
}

/* After a failure fibers stand in the middle of a kernel: they cannot be used again. */
static void drop_threads()
{
    for (std::unique_ptr<thread> &t : engine->threads)
        fiber_free(&t->fiber);
    engine->threads.clear();
}

static dim3 at(dim3 size, size_t i)
{
    return dim3((unsigned)(i % size.x), (unsigned)(i / size.x % size.y), (unsigned)(i / size.x / size.y));
}

static void set_up(block *b, unsigned first, dim3 grid, dim3 shape, size_t index)
{
    b->first = first;
    b->n_thread = shape.x * shape.y * shape.z;
    b->index = (unsigned)index;
    b->n_at_barrier = 0;
    b->counting = b->counted = 0;
    b->static_bytes = 0;
    b->warps.assign((b->n_thread + WARP - 1) / WARP, warp());
    b->dynamic.assign(engine->shared, POISON);
    b->variables.clear();
    for (unsigned i = 0; i < b->n_thread; i++) {
        thread *t = engine->threads[first + i].get();
        t->place = {at(shape, i), at(grid, index), shape, grid, i % WARP};
        t->state = READY;
        t->index = i;
        t->block = b;
        t->warp = &b->warps[i / WARP];
    }
}

static void report_stuck(size_t n)
{
    size_t n_barrier = 0, n_warp = 0, n_done = 0;
    const thread *one = nullptr;
    for (size_t i = 0; i < n; i++) {
        const thread *t = engine->threads[i].get();
        n_barrier += t->state == WAITS_BARRIER;
        n_warp += t->state == WAITS_WARP;
        n_done += t->state == DONE;
        one = !one && t->state != DONE ? t : one;
    }
    fail("threads wait for each other: %zu at a barrier, %zu in a warp's exchange, %zu have ended; the first "
         "is thread %u of block %u %u",
         n_barrier, n_warp, n_done, one->index, one->place.block.x, one->place.block.y);
}

/* Whoever is waited for may need this core. */
static void let_others_run(long rounds)
{
    if (rounds < EAGER_ROUNDS)
        sched_yield();
    else
        usleep(SLEEP_US);
}

/* Until all of n threads have ended. */
static void run_threads(engine_state *e, size_t n, bool backward)
{
    long idle = 0, waited = 0;
    e->left = n;
    e->by = backward ? (size_t)-1 : 1;
    e->end = backward ? (size_t)-1 : n;
    while (e->left > 0 && !e->failed) {
        e->turn = backward ? n - 1 : 0;
        e->only_spun = true;
        thread *first = next_ready(e);
        if (first) {
            make_running(e, first);
            fiber_enter(&first->fiber);
        } else {
            report_stuck(n);
        }
        waited = e->only_spun && e->outside ? waited + 1 : 0;
        if (waited)
            let_others_run(waited);
        idle = e->only_spun && !e->outside ? idle + 1 : 0;
        e->outside = false;
        if (idle * (long)n > SPINS_MAX)
            fail("threads spin for something that never comes");
    }
}

static cudaError_t run(const char *name, dim3 grid, dim3 shape, size_t shared, unsigned cluster,
                       const std::function<void()> &kernel)
{
    need_engine();
    const size_t n_block = (size_t)grid.x * grid.y * grid.z, n_thread = (size_t)shape.x * shape.y * shape.z;
    const size_t group = cluster ? cluster : n_block;
    const bool backward = engine->n_launch++ % 2;
    engine->failed = false;
    engine->kernel = &kernel;
    engine->shared = shared;
    engine->group = group;
    engine->n_at_cluster = 0;
    if (n_block == 0 || n_thread == 0 || n_thread > 1024 || shared > SHARED_LIMIT || grid.y > 65535 ||
        grid.z > 65535 || grid.x % (cluster ? cluster : 1))
        fail("a launch of blocks of %zu threads with %zu bytes of shared memory", n_thread, shared);
    else if (!make_threads(group * n_thread))
        fail("no memory for the stacks of %zu threads", group * n_thread);
    while (engine->blocks.size() < group)
        engine->blocks.emplace_back(new block());
    for (size_t b = 0; b < n_block && !engine->failed; b += group) {
        for (size_t i = 0; i < group; i++)
            set_up(engine->blocks[i].get(), (unsigned)(i * n_thread), grid, shape,
                   backward ? n_block - 1 - (b + i) : b + i);
        run_threads(engine, group * n_thread, backward);
    }
    if (!engine->failed)
        return cudaSuccess;
    drop_threads();
    const size_t used = strlen(engine->error);
    snprintf(engine->error + used, sizeof(engine->error) - used, " (%s)", name);
    return cudaErrorLaunchFailure;
}

cudaError_t launch(const char *name, dim3 grid, dim3 block, size_t shared, unsigned cluster,
                   cudaStream_t stream, std::function<void()> kernel)
{
    return stream_do(stream, [=] { return run(name, grid, block, shared, cluster, kernel); });
}

} // namespace simt
