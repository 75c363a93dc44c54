/* Runs the guarded calls, for guard.py to count their instructions:
 *
 *     guard about               the compiler and the C library, or "unfit" where a build is not worth
 * counting; the processor's level guard list SET            the names of a set: kernels or software guard run
 * SET             each call once, within guard_call: for callgrind --toggle-collect=guard_call guard step SET
 * each call in a child that is stepped instruction by instruction, and the counts: for instructions that
 * valgrind does not know; slow, so the calls are small
 *
 * Every call has run once before it is counted, so that lazily bound symbols and first-time work are not. */
#include <errno.h>
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "guard.h"

#define LIST_MAX 4

void guard_must(bool fine, const char *what)
{
    if (fine)
        return;
    fprintf(stderr, "guard: %s\n", what);
    exit(1);
}

/* Its name is what callgrind is told. */
__attribute__((noinline)) void guard_call(const struct guard_case *c, void *state);
void guard_call(const struct guard_case *c, void *state)
{
    c->call(state);
    __asm__ volatile("" ::: "memory"); /* no tail call: the function ends after the call */
}

static int find_set(const char *name, struct guard_list *list)
{
    if (!strcmp(name, "kernels")) {
        list[0] = guard_kernels();
        return 1;
    }
    if (strcmp(name, "software"))
        return 0;
    list[0] = guard_text();
    list[1] = guard_engine();
    list[2] = guard_server();
    return 3;
}

typedef void each_fn(const struct guard_case *c, void *state, void *arg);

static void each_case(const char *set, each_fn *fn, void *arg)
{
    struct guard_list list[LIST_MAX];
    struct arena arena;
    struct guard_env env = {.arena = &arena};
    int n_list = find_set(set, list);
    guard_must(n_list > 0, "the sets are kernels and software");
    guard_must(pool_open(&env.pool, 1, NULL) == NYB_OK, "no pool");
    for (int l = 0; l < n_list; l++)
        for (size_t i = 0; i < list[l].n; i++) {
            const struct guard_case *c = &list[l].v[i];
            arena_init(&arena, 1 << 20);
            void *state = c->open(&env, c);
            c->call(state);
            fn(c, state, arg);
            if (c->close)
                c->close(state);
            arena_free(&arena);
        }
    pool_close(env.pool);
}

static void print_name(const struct guard_case *c, void *state, void *arg)
{
    (void)state;
    (void)arg;
    printf("%s\n", c->name);
}

static void run_case(const struct guard_case *c, void *state, void *arg)
{
    (void)arg;
    guard_call(c, state);
}

/* ---- stepping ------------------------------------------------------------------------------------ */

static void be_stepped(const struct guard_case *c, void *state, volatile int *measuring)
{
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(2);
    raise(SIGSTOP);
    *measuring = 1;
    guard_call(c, state);
    *measuring = 0;
    _exit(0);
}

/* -1: this system does not let a process step another. */
static long count_steps(pid_t child, const volatile int *measuring)
{
    long n = 0;
    int status;
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        return -1;
    for (bool began = false;;) {
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) != 0 || waitpid(child, &status, 0) != child)
            return -1;
        if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
            return -1;
        began |= *measuring != 0;
        if (began && !*measuring)
            return n;
        n += *measuring;
    }
}

static void step_case(const struct guard_case *c, void *state, void *arg)
{
    volatile int *measuring = arg;
    *measuring = 0;
    fflush(stdout);
    pid_t child = fork();
    guard_must(child >= 0, "no child to step");
    if (child == 0)
        be_stepped(c, state, measuring);
    long n = count_steps(child, measuring);
    kill(child, SIGKILL);
    ptrace(PTRACE_CONT, child, NULL, NULL);
    waitpid(child, NULL, 0);
    guard_must(n >= 0, "a process cannot be stepped here");
    printf("%ld %s\n", n, c->name);
}

static int about(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
    printf("unfit\n");
#elif defined(__clang__)
    printf("clang %d.%d.%d, glibc %s\n", __clang_major__, __clang_minor__, __clang_patchlevel__,
           gnu_get_libc_version());
#else
    printf("gcc %d.%d.%d, glibc %s\n", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__, gnu_get_libc_version());
#endif
    printf("%s\n", cpu_level_name(cpu_detect()));
    return 0;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    if (!strcmp(verb, "about"))
        return about();
    if (argc == 3 && !strcmp(verb, "list")) {
        each_case(argv[2], print_name, NULL);
    } else if (argc == 3 && !strcmp(verb, "run")) {
        each_case(argv[2], run_case, NULL);
    } else if (argc == 3 && !strcmp(verb, "step")) {
        int *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        guard_must(shared != MAP_FAILED, "no shared memory");
        each_case(argv[2], step_case, shared);
        munmap(shared, sizeof(*shared));
    } else {
        fprintf(stderr, "usage: guard about | guard list|run|step kernels|software\n");
        return 2;
    }
    return 0;
}
