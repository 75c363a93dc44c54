/* Folders that tests make: a workshop that goes when the tests end, and checkpoints in it made from others by
 * tests/tools/twin.py, of which one process serves all. */
#ifndef NYB_TEST_WORKSHOP_H
#define NYB_TEST_WORKSHOP_H

#include <fcntl.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "test.h"
#include "unit/ckpt_files.h"

#define TALES  NYBBLE_SOURCE_DIR "/models/tales-24m-moe-nvfp4"
#define GOLDEN NYBBLE_SHARED_DIR "/golden/"

static char *workshop; /* all folders that a test makes are in it */
static FILE *twin_order, *twin_reply;

static inline int make_workshop(void **state)
{
    (void)state;
    workshop = folder_make();
    return 0;
}

static inline int drop_workshop(void **state)
{
    (void)state;
    if (twin_order) {
        fclose(twin_order);
        fclose(twin_reply);
    }
    folder_drop(workshop);
    return 0;
}

/* Python is not there in every place where tests run. */
static inline bool twins_are_possible(void)
{
    static int known; /* 1: yes, 2: no */
    if (!known)
        known = system("python3 -c '' >&2") == 0 ? 1 : 2;
    return known == 1;
}

static inline void twin_start(void)
{
    int order[2], reply[2];
    assert_int_equal(pipe2(order, O_CLOEXEC), 0);
    assert_int_equal(pipe2(reply, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(order[0], STDIN_FILENO);
        dup2(reply[1], STDOUT_FILENO);
        execlp("python3", "python3", NYBBLE_SOURCE_DIR "/tests/tools/twin.py", "--serve", (char *)NULL);
        _exit(127);
    }
    close(order[0]);
    close(reply[1]);
    twin_order = fdopen(order[1], "w");
    twin_reply = fdopen(reply[0], "r");
    assert_true(twin_order && twin_reply);
}

/* A folder of that name in the workshop, made from another one; caller frees its path. The edits are words as
 * a shell reads them. */
static inline char *twin(const char *from, const char *name, const char *edits)
{
    char *to = path_join(workshop, name), line[512] = "";
    if (!twin_order)
        twin_start();
    fprintf(twin_order, "'%s' '%s' %s\n", from, to, edits);
    fflush(twin_order);
    if (!fgets(line, sizeof(line), twin_reply) || strcmp(line, "made\n"))
        fail_msg("%s %s: %s", name, edits, line);
    return to;
}

#define NEED(folder)                                       \
    do {                                                   \
        if (!file_is_dir(folder) || !twins_are_possible()) \
            skip();                                        \
    } while (0)

#endif
