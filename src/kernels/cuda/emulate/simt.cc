#include "kernels/cuda/emulate/simt.h"

#include <sched.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <new>
#include <vector>

#include "kernels/cuda/emulate/fiber.h"
#include "kernels/cuda/emulate/simt_stream.h"

#define WARP         32u
#define SHARED_LIMIT (227u << 10)
#define POISON       0xff      /* NaNs, and indices far out */
#define SPINS_MAX    20000000l /* rounds in which threads only spun */
#define EAGER_ROUNDS 64        /* of waiting for another process or thread, before sleeping */
#define SLEEP_US     50

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

__thread const struct place *here __attribute__((tls_model("initial-exec")));

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

static __thread engine_state *engine __attribute__((tls_model("initial-exec")));

/* This thread's, made at its first launch and freed when the thread ends. */
static void need_engine()
{
    static thread_local std::unique_ptr<engine_state> owner;
    if (engine)
        return;
    owner.reset(new engine_state());
    engine = owner.get();
}

static void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void fail(const char *fmt, ...)
{
    if (engine->failed)
        return;
    va_list list;
    va_start(list, fmt);
    vsnprintf(engine->error, sizeof(engine->error), fmt, list);
    va_end(list);
    engine->failed = true;
}

const char *launch_error()
{
    return engine ? engine->error : "";
}

/* The next thread of the round that can run; NULL: none. */
static thread *next_ready(engine_state *e)
{
    while (e->turn != e->end && !e->failed) {
        thread *t = e->threads[e->turn].get();
        e->turn += e->by;
        if (t->state == READY)
            return t;
    }
    return nullptr;
}

static void make_running(engine_state *e, thread *t)
{
    e->running = t;
    here = &t->place;
}

/* Straight to the next thread, or home where a round ends. */
static void wait(thread_state state)
{
    engine_state *e = engine;
    thread *t = e->running;
    t->state = state;
    e->left -= state == DONE;
    e->only_spun &= state == READY;
    thread *next = next_ready(e);
    if (next) {
        make_running(e, next);
        fiber_pass(&t->fiber, &next->fiber);
    } else {
        fiber_leave(&t->fiber);
    }
}

static void fail_here(const char *what)
{
    const thread *t = engine->running;
    fail("%s: block %u %u, thread %u", what, t->place.block.x, t->place.block.y, t->index);
    for (;;) /* the launch ends without this thread */
        wait(WAITS_BARRIER);
}

[[noreturn]] static void thread_body()
{
    fiber_begin();
    for (;;) {
        (*engine->kernel)();
        wait(DONE);
    }
}

void barrier()
{
    thread *t = engine->running;
    block *b = t->block;
    if (++b->n_at_barrier < b->n_thread) {
        wait(WAITS_BARRIER);
        return;
    }
    b->n_at_barrier = 0;
    for (unsigned i = 0; i < b->n_thread; i++)
        if (engine->threads[b->first + i]->state == WAITS_BARRIER)
            engine->threads[b->first + i]->state = READY;
}

void cluster_barrier()
{
    engine_state *e = engine;
    const size_t n = e->group * e->running->block->n_thread;
    if (++e->n_at_cluster < n) {
        wait(WAITS_BARRIER);
        return;
    }
    e->n_at_cluster = 0;
    for (size_t i = 0; i < n; i++)
        if (e->threads[i]->state == WAITS_BARRIER)
            e->threads[i]->state = READY;
}

/* A copy of few bytes without a call. */
static void put(uint8_t *to, const void *from, size_t bytes)
{
    switch (bytes) {
    case 4:
        std::memcpy(to, from, 4);
        break;
    case 8:
        std::memcpy(to, from, 8);
        break;
    case 16:
        std::memcpy(to, from, 16);
        break;
    default:
        std::memcpy(to, from, bytes);
    }
}

const uint8_t (*exchange(exchange_kind kind, const void *value, size_t bytes))[EXCHANGE_BYTES]
{
    engine_state *e = engine;
    thread *t = e->running;
    warp *w = t->warp;
    const unsigned lane = t->place.lane, turn = w->generation % 2;
    if (w->arrived && w->kind != kind)
        fail_here("lanes of a warp meet in different exchanges");
    w->kind = kind;
    if (bytes)
        put(w->value[turn][lane], value, bytes);
    w->arrived |= 1u << lane;
    if (w->arrived != ~0u) {
        wait(WAITS_WARP);
        return w->value[turn];
    }
    w->arrived = 0;
    w->generation++;
    const std::unique_ptr<thread> *first = &e->threads[t->block->first + t->index - lane];
    for (unsigned i = 0; i < WARP; i++)
        first[i]->state = READY; /* all others wait for this */
    return w->value[turn];
}

void spin()
{
    wait(READY);
}

void spin_outside()
{
    engine->outside = true;
    wait(READY);
}

uint8_t *dynamic_shared()
{
    return engine->running->block->dynamic.data();
}

void *shared_variable(const void *key, size_t bytes, size_t alignment)
{
    block *b = engine->running->block;
    for (const block::variable &v : b->variables)
        if (v.key == key)
            return v.at;
    b->static_bytes += bytes;
    if (b->static_bytes + b->dynamic.size() > SHARED_LIMIT)
        fail_here("more shared memory than a block has");
    std::unique_ptr<uint8_t[]> memory(new uint8_t[bytes + alignment]);
    std::memset(memory.get(), POISON, bytes + alignment);
    void *at = (void *)(((uintptr_t)memory.get() + alignment - 1) & ~(uintptr_t)(alignment - 1));
    b->variables.push_back({key, bytes, std::move(memory), at});
    return at;
}

void *cluster_shared(const void *mine, unsigned rank)
{
    const block *own = engine->running->block, *other = nullptr;
    for (size_t i = 0; i < engine->group; i++)
        if (engine->blocks[i]->index % engine->group == rank)
            other = engine->blocks[i].get();
    const uint8_t *p = (const uint8_t *)mine, *dynamic = own->dynamic.data();
    if (other && p >= dynamic && p < dynamic + own->dynamic.size())
        return (void *)(other->dynamic.data() + (p - dynamic));
    for (const block::variable &v : own->variables) {
        if (p < (const uint8_t *)v.at || p >= (const uint8_t *)v.at + v.bytes)
            continue;
        for (size_t i = 0; other && i < other->variables.size(); i++)
            if (other->variables[i].key == v.key)
                return (uint8_t *)other->variables[i].at + (p - (const uint8_t *)v.at);
    }
    fail_here("another block's shared memory that is not there");
    return nullptr;
}

/* ---- a launch -------------------------------------------------------------------------------------- */

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
