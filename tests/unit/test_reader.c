/* Reading ahead: every way gives the same bytes, and what is refused is done another way. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

#include "base/reader.h"

#define FILE_BYTES 1000003 /* ends within a block */
#define DEPTH      5

static uint8_t content[FILE_BYTES];
static char path[] = "/tmp/nybble-reader-XXXXXX";
static int file;

static int make_file(void **state)
{
    (void)state;
    for (size_t i = 0; i < FILE_BYTES; i++)
        content[i] = (uint8_t)(i * 2654435761u >> 13);
    file = mkstemp(path);
    return file < 0 || write(file, content, FILE_BYTES) != FILE_BYTES || fdatasync(file);
}

static int remove_file(void **state)
{
    (void)state;
    close(file);
    return unlink(path);
}

/* Pieces of odd sizes, DEPTH of them under way, two readers in turn; two of three share a buffer for what is
 * cached. */
static void check_way(const struct reader_options *o)
{
    struct reader_set *set;
    struct reader_read read[DEPTH];
    uint64_t at = 0;
    size_t step = 1, room = READER_ROOM(70000);
    uint8_t *memory = aligned_alloc(READER_ALIGN, (DEPTH + 1) * room);
    assert_int_equal(reader_set_open(&set, 2, DEPTH, o, NULL), NYB_OK);
    int begun = 0, ended = 0;
    while (at < FILE_BYTES || ended < begun) {
        while (at < FILE_BYTES && begun - ended < DEPTH) {
            struct reader_read *r = &read[begun % DEPTH];
            size_t len = FILE_BYTES - at < step ? (size_t)(FILE_BYTES - at) : step;
            *r = (struct reader_read){.fd = file,
                                      .path = path,
                                      .offset = at,
                                      .len = len,
                                      .buffer = memory + (size_t)(begun % DEPTH) * room,
                                      .hot = begun % 3 ? memory + DEPTH * room : NULL};
            reader_start(reader_get(set, begun % 2), r);
            at += len;
            step = step * 3 % 69997 + 1;
            begun++;
        }
        struct reader_read *r = &read[ended % DEPTH];
        assert_int_equal(reader_finish(reader_get(set, ended % 2), r, NULL), NYB_OK);
        assert_memory_equal(r->data, content + r->offset, r->len);
        ended++;
    }
    assert_non_null(reader_set_describe(set));
    reader_set_close(set);
    free(memory);
}

static void test_reader_every_way_gives_the_same_bytes(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        const struct reader_options o = {
            .way = i & 1 ? READER_THREADS : READER_URING, .cold = i & 2, .buffered = i & 4};
        check_way(&o);
    }
}

static void test_reader_short_file_is_an_error(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const struct reader_options o = {.way = i & 1 ? READER_THREADS : READER_URING, .cold = i & 2};
        struct reader_set *set;
        struct nyb_err err;
        struct reader_read r = {.fd = file,
                                .path = path,
                                .offset = FILE_BYTES - 10,
                                .len = 5000,
                                .buffer = aligned_alloc(READER_ALIGN, READER_ROOM(5000))};
        assert_int_equal(reader_set_open(&set, 1, 1, &o, NULL), NYB_OK);
        reader_start(reader_get(set, 0), &r);
        assert_int_equal(reader_finish(reader_get(set, 0), &r, &err), NYB_E_FORMAT);
        assert_string_equal(err.where, path);
        reader_set_close(set);
        free(r.buffer);
    }
}

/* As containers do: io_uring_setup is not permitted. */
static bool refuse_io_uring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = 4, .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void test_reader_falls_back_where_io_uring_is_refused(void **state)
{
    (void)state;
    const struct reader_options o = {.way = READER_URING, .cold = true};
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct reader_set *set;
        if (!refuse_io_uring())
            _exit(77);
        if (reader_set_open(&set, 1, 4, &o, NULL) != NYB_OK ||
            strncmp(reader_set_describe(set), "threads", 7))
            _exit(1);
        reader_set_close(set);
        check_way(&o);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader_every_way_gives_the_same_bytes),
        cmocka_unit_test(test_reader_short_file_is_an_error),
        cmocka_unit_test(test_reader_falls_back_where_io_uring_is_refused),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
