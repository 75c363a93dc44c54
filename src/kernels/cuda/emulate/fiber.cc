#include "kernels/cuda/emulate/fiber.h"

#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ASAN 1
#endif
#endif
#ifdef FIBER_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#define GUARD 4096u
/* Stacks begin at different places of their pages, or the tops of all would share a few lines of the core's
 * cache. */
#define COLOURS     32u
#define COLOUR_STEP 448u

/* Where the system thread goes on when a fiber leaves. */
struct fiber_home {
    void *stack, *fake;
    const void *bottom;
    size_t bytes;
    bool left; /* the fiber that begins or goes on comes from here, and not from another fiber */
};
static __thread fiber_home home __attribute__((tls_model("initial-exec")));

#if defined(__x86_64__)

/* Registers that a call preserves, then the other stack. */
extern "C" void simt_fiber_switch(void **save, void *load);
asm(".text\n.p2align 4\n.hidden simt_fiber_switch\n.globl simt_fiber_switch\n"
    ".type simt_fiber_switch,@function\nsimt_fiber_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size simt_fiber_switch,.-simt_fiber_switch\n");

static void *first_stack(uint8_t *top, void (*body)())
{
    void **p = (void **)top;
    *--p = nullptr; /* the alignment that a function finds on entry, and an end for back traces */
    *--p = (void *)body;
    for (int i = 0; i < 6; i++)
        *--p = nullptr;
    return p;
}

#else

#include <ucontext.h>

/* The portable way: slower, as every switch saves the signal mask. */
static void simt_fiber_switch(void **save, void *load)
{
    ucontext_t here;
    *save = &here;
    swapcontext(&here, (ucontext_t *)load);
}

static void *first_stack(uint8_t *top, void (*body)())
{
    ucontext_t *c = (ucontext_t *)(((uintptr_t)top - sizeof(ucontext_t)) & ~(uintptr_t)63);
    getcontext(c);
    c->uc_stack.ss_sp = top - FIBER_BYTES;
    c->uc_stack.ss_size = (size_t)((uint8_t *)c - (top - FIBER_BYTES));
    c->uc_link = nullptr;
    makecontext(c, body, 0);
    return c;
}

#endif

bool fiber_make(fiber *f, void (*body)())
{
    void *m = mmap(nullptr, FIBER_BYTES + GUARD, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED)
        return false;
    mprotect(m, GUARD, PROT_NONE);
    static __thread unsigned n_made;
    f->memory = (uint8_t *)m + GUARD;
    f->stack = first_stack(f->memory + FIBER_BYTES - n_made++ % COLOURS * COLOUR_STEP, body);
    f->fake = nullptr;
    f->alive = true;
    return true;
}

void fiber_free(fiber *f)
{
    if (f->alive)
        munmap(f->memory - GUARD, FIBER_BYTES + GUARD);
    f->alive = false;
}

#ifdef FIBER_ASAN
/* Tells the sanitizer that this stack runs again. */
static void arrived(void *fake)
{
    if (home.left)
        __sanitizer_finish_switch_fiber(fake, &home.bottom, &home.bytes);
    else
        __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
    home.left = false;
}
#endif

void fiber_enter(fiber *f)
{
#ifdef FIBER_ASAN
    home.left = true;
    __sanitizer_start_switch_fiber(&home.fake, f->memory, FIBER_BYTES);
#endif
    simt_fiber_switch(&home.stack, f->stack);
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(home.fake, nullptr, nullptr);
#endif
}

void fiber_begin()
{
#ifdef FIBER_ASAN
    arrived(nullptr);
#endif
}

void fiber_leave(fiber *f)
{
#ifdef FIBER_ASAN
    __sanitizer_start_switch_fiber(&f->fake, home.bottom, home.bytes);
#endif
    simt_fiber_switch(&f->stack, home.stack);
#ifdef FIBER_ASAN
    arrived(f->fake);
#endif
}

void fiber_pass(fiber *from, fiber *to)
{
#ifdef FIBER_ASAN
    __sanitizer_start_switch_fiber(&from->fake, to->memory, FIBER_BYTES);
#endif
    simt_fiber_switch(&from->stack, to->stack);
#ifdef FIBER_ASAN
    arrived(from->fake);
#endif
}
