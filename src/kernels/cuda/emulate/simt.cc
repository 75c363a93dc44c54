/* What a thread of a launch does besides computing: it waits, meets others, exchanges numbers with them and
 * finds memory that it shares with them. */
#include <cstdarg>
#include <cstdio>

#include "kernels/cuda/emulate/simt_engine.h"

namespace simt
{

__thread const struct place *here __attribute__((tls_model("initial-exec")));
__thread engine_state *engine __attribute__((tls_model("initial-exec")));

void fail(const char *fmt, ...)
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

void wait(thread_state state)
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

int barrier_count(int is)
{
    block *b = engine->running->block;
    b->counting += is != 0;
    if (b->n_at_barrier + 1 == b->n_thread) { /* nobody has yet to read the last one's: all are here */
        b->counted = b->counting;
        b->counting = 0;
    }
    barrier();
    return b->counted;
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

} // namespace simt
