/* Barriers that count arrivals, and the bytes of copies (plugin/bell.cuh). Addresses in shared memory count
 * from where the block's dynamic part begins. */
#include "kernels/cuda/plugin/bell.cuh"

uint32_t shared_offset(const void *p)
{
    return (uint32_t)((const uint8_t *)p - simt::dynamic_shared());
}

uint8_t *shared_pointer(uint32_t at, size_t)
{
    return simt::dynamic_shared() + at;
}

/* As large as a GPU's. */
struct bell {
    uint32_t arrivals : 12, missing : 12, phase : 8; /* arrivals of a phase; in the one that runs */
    int32_t awaited;                                 /* bytes of copies that are not there */
};
static_assert(sizeof(bell) == 8, "bells lie 8 bytes apart");

static bell *bell_at(uint32_t at)
{
    return (bell *)shared_pointer(at, sizeof(bell));
}

void bell_make(uint32_t bell, uint32_t arrivals)
{
    *bell_at(bell) = {arrivals & 0xfffu, arrivals & 0xfffu, 0, 0};
}

static void turn(bell *b)
{
    if (b->missing > 0 || b->awaited != 0)
        return;
    b->missing = b->arrivals;
    b->phase++;
}

void bell_ring(uint32_t at)
{
    bell *b = bell_at(at);
    b->missing--;
    turn(b);
}

void bell_expect(uint32_t at, uint32_t bytes)
{
    bell_at(at)->awaited += (int32_t)bytes;
    bell_ring(at);
}

void bell_copied(uint32_t at, uint32_t bytes)
{
    bell *b = bell_at(at);
    b->awaited -= (int32_t)bytes;
    turn(b);
}

void bell_wait(uint32_t at, uint32_t parity)
{
    while ((bell_at(at)->phase & 1) == parity)
        simt::spin();
}

bool bell_has_rung(uint32_t at, uint32_t parity)
{
    return (bell_at(at)->phase & 1) != parity;
}
