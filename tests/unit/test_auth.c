/* Who may ask, and which folders an administrator may name. */
#include "test.h"

#ifdef NYBBLE_SERVER
#include <limits.h>
#include <sys/stat.h>

#include "server/admin_path.h"
#include "server/auth.h"

/* ---- keys ------------------------------------------------------------------------------------------- */

static char *keys_file(const char *text)
{
    char path[] = "/tmp/nybble-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    return strdup(path);
}

static void test_auth_a_key_is_all_of_it(void **state)
{
    (void)state;
    char *path = keys_file("# not-a-key\n\n  in file\t \r\nlast");
    struct config_list keys = {.n = 2};
    keys.item[0] = strdup("first");
    keys.item[1] = strdup("second key");
    static const struct {
        const char *header;
        bool fine;
    } row[] = {
        {"Bearer first", true},
        {"bearer first", true},
        {"BEARER second key", true},
        {"Bearer in file", true},
        {"Bearer last", true},
        {NULL, false},
        {"", false},
        {"Bearer", false},
        {"Bearer ", false},
        {"Bearer firs", false},
        {"Bearer first ", false},
        {"Bearer  first", false},
        {"Bearer First", false},
        {"Basic first", false},
        {"first", false},
        {"Bearer # not-a-key", false},
        {"Bearer second", false},
        {"Bearerfirst", false},
        {"Bearer first,last", false},
    };
    struct auth *a;
    struct nyb_err err;
    assert_int_equal(auth_open(&a, &keys, path, "api-key", &err), NYB_OK);
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        if (auth_allows(a, row[i].header, NULL) != row[i].fine)
            fail_msg("%s", row[i].header);
    assert_true(auth_allows(NULL, NULL, NULL)); /* no key is asked for */
    assert_true(auth_allows(a, NULL, "first") &&
                auth_allows(a, "Bearer no", "last")); /* one of both is enough */
    assert_true(!auth_allows(a, NULL, "Bearer first") && !auth_allows(a, NULL, "") &&
                !auth_allows(a, "x", "firs"));

    unlink(path); /* new keys that cannot be read leave the old ones */
    assert_int_not_equal(auth_renew(&a, &keys, path, "api-key", &err), NYB_OK);
    assert_true(auth_allows(a, "Bearer last", NULL));
    free(path);
    path = keys_file("fresh\n");
    assert_int_equal(auth_renew(&a, &(struct config_list){0}, path, "api-key", &err), NYB_OK);
    assert_true(auth_allows(a, "Bearer fresh", NULL) && !auth_allows(a, "Bearer first", NULL) &&
                !auth_allows(a, "Bearer last", NULL));
    auth_close(a);
    unlink(path);
    free(path);
    free(keys.item[0]);
    free(keys.item[1]);
}

static void test_auth_refuses_keys_that_are_none(void **state)
{
    (void)state;
    enum { LONGEST = 4096 };
    char longest[LONGEST + 2], header[LONGEST + 32];
    struct config_list keys = {.n = 1};
    struct auth *a;
    struct nyb_err err;
    assert_int_equal(auth_open(&a, &(struct config_list){0}, NULL, "api-key", &err), NYB_OK);
    assert_null(a);
    keys.item[0] = longest;
    longest[0] = 0;
    assert_int_equal(auth_open(&a, &keys, NULL, "admin-api-key", &err), NYB_E_ARG);
    assert_string_equal(err.where, "admin-api-key");
    for (int n = LONGEST; n <= LONGEST + 1; n++) {
        memset(longest, 'k', (size_t)n);
        longest[n] = 0;
        assert_int_equal(auth_open(&a, &keys, NULL, "api-key", &err), n == LONGEST ? NYB_OK : NYB_E_ARG);
        snprintf(header, sizeof(header), "Bearer %s", longest);
        assert_true(n > LONGEST || auth_allows(a, header, NULL));
        longest[1] = 'K';
        snprintf(header, sizeof(header), "Bearer %s%s", longest, longest + LONGEST - 1);
        assert_true(n > LONGEST || !auth_allows(a, header, NULL));
        auth_close(a);
    }
    char *path = keys_file("# none\n \n");
    assert_int_equal(auth_open(&a, &(struct config_list){0}, path, "api-key", &err), NYB_E_ARG);
    assert_string_equal(err.where, path);
    assert_null(a);
    unlink(path);
    free(path);
}

/* ---- folders ---------------------------------------------------------------------------------------- */

static char base[PATH_MAX];

static const char *in_base(const char *name)
{
    static char path[4][PATH_MAX + 64];
    static int at;
    at = (at + 1) % 4;
    snprintf(path[at], sizeof(path[at]), "%s/%s", base, name);
    return path[at];
}

static void make_folders(void)
{
    static const char *const folder[] = {"a",       "a/new", "a/strays", "a/linked", "bee",
                                         "bee/old", "ab",    "ab/x",     "out",      "out/served"};
    static const char *const file[] = {"a/file", "out/file", "out/served/f", "a/new/config.json"};
    static const char *const link[][2] = {
        {"out", "a/leads-out"},         {"bee/old", "a/leads-to-bee"}, {"a/new", "out/leads-in"},
        {"out/file", "a/strays/model"}, {"a/file", "a/linked/f"},      {"out/file", "out/served/link"},
        {"nowhere", "a/linked/broken"},
    };
    char pattern[] = "/tmp/nybble-test-XXXXXX";
    assert_non_null(realpath(mkdtemp(pattern), base));
    for (size_t i = 0; i < sizeof(folder) / sizeof(folder[0]); i++)
        assert_int_equal(mkdir(in_base(folder[i]), 0700), 0);
    for (size_t i = 0; i < sizeof(file) / sizeof(file[0]); i++)
        fclose(fopen(in_base(file[i]), "w"));
    for (size_t i = 0; i < sizeof(link) / sizeof(link[0]); i++)
        assert_int_equal(symlink(in_base(link[i][0]), in_base(link[i][1])), 0);
}

static void remove_folders(void)
{
    char command[PATH_MAX + 16];
    snprintf(command, sizeof(command), "rm -rf '%s'", base);
    assert_int_equal(system(command), 0);
}

static void test_admin_folders_are_those_below_roots(void **state)
{
    (void)state;
    static const struct {
        const char *path; /* absolute ones within base */
        bool absolute;
        int status; /* 0: found */
        const char *want, *says;
    } row[] = {
        {"a/new", true, 0, "a/new", NULL},
        {"bee", true, 0, "bee", NULL},
        {"bee/old", true, 0, "bee/old", NULL},
        {"a/../bee/old/.", true, 0, "bee/old", NULL},
        {"new", false, 0, "a/new", NULL}, /* from each root in turn */
        {"old", false, 0, "bee/old", NULL},
        {"../a/new", false, 0, "a/new", NULL},
        {"a/leads-to-bee", true, 0, "bee/old", NULL},
        {"out/leads-in", true, 0, "a/new", NULL},
        {"a/linked", true, 0, "a/linked", NULL},
        {"out/served", true, 0, "out/served", NULL},     /* its links are those that it was loaded through */
        {"ab/x", true, 403, NULL, "not a folder below"}, /* a is no part of its path */
        {"out", true, 403, NULL, "not a folder below"},
        {"a/leads-out", true, 403, NULL, "not a folder below"},
        {"a/../out", true, 403, NULL, "not a folder below"},
        {"../out", false, 403, NULL, "not a folder below"},
        {"out/served/..", true, 403, NULL, "not a folder below"},
        {"a/nowhere", true, 403, NULL, "not a folder below"},
        {"nowhere", false, 403, NULL, "not a folder below"},
        {"", false, 403, NULL, "not a folder below"},
        {"a/strays", true, 403, NULL, "leads out"},
        {"a", true, 403, NULL, "leads out"},
        {"a/file", true, 400, NULL, "is a file"},
        {"out/file", true, 403, NULL, "not a folder below"},
    };
    struct admin_roots r = {0};
    struct nyb_err err;
    make_folders();
    struct config_list roots = {.n = 2};
    roots.item[0] = strdup(in_base("a"));
    roots.item[1] = strdup(in_base("out/leads-in/../../bee")); /* roots are resolved, too */
    assert_int_equal(admin_roots_open(&r, &roots, &err), NYB_OK);
    char *before = admin_roots_find(&r, in_base("out/served"), &(int){0}, &err);
    assert_null(before); /* nothing is served so far */
    admin_roots_serve(&r, in_base("out/served"));
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        int status = 0;
        char *found =
            admin_roots_find(&r, row[i].absolute ? in_base(row[i].path) : row[i].path, &status, &err);
        if ((found != NULL) != (row[i].want != NULL) || status != row[i].status)
            fail_msg("%s: %s, status %d", row[i].path, found ? found : "not found", status);
        if (found)
            assert_string_equal(found, in_base(row[i].want));
        else
            assert_non_null(strstr(err.message, row[i].says));
        free(found);
    }
    char *far = malloc(PATH_MAX + 1);
    int status = 0;
    memset(far, '/', PATH_MAX);
    far[PATH_MAX] = 0;
    assert_null(admin_roots_find(&r, far, &status, &err));
    assert_int_equal(status, 403);
    free(far);
    admin_roots_close(&r);

    free(roots.item[1]);
    roots.item[1] = strdup("/"); /* then everything is below it */
    assert_int_equal(admin_roots_open(&r, &roots, &err), NYB_OK);
    char *found = admin_roots_find(&r, in_base("ab/x"), &status, &err);
    assert_non_null(found);
    free(found);
    admin_roots_close(&r);
    static const char *const no_root[] = {"a/file", "a/nowhere"}, *const says[] = {"it is a file",
                                                                                   "No such file"};
    for (int i = 0; i < 2; i++) {
        free(roots.item[1]);
        roots.item[1] = strdup(in_base(no_root[i]));
        assert_int_equal(admin_roots_open(&r, &roots, &err), NYB_E_ARG);
        assert_non_null(strstr(err.message, roots.item[1]));
        assert_non_null(strstr(err.message, says[i]));
        admin_roots_close(&r);
    }
    free(roots.item[0]);
    free(roots.item[1]);
    remove_folders();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auth_a_key_is_all_of_it),
        cmocka_unit_test(test_auth_refuses_keys_that_are_none),
        cmocka_unit_test(test_admin_folders_are_those_below_roots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    return 0;
}
#endif
