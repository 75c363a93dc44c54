/* All golden rows of every tokenizer family against the reference, where ../shared has them. */
#include "test.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sha256.h"
#include "tokrows.h"

#define GOLDEN NYBBLE_SHARED_DIR "/text/golden/"

static const char *const NAME[] = {"qwen3",      "deepseek_v3",        "gptoss",
                                   "gpt2",       "glm_standin_cl100k", "mixtral",
                                   "mistral01",  "mistral03",          "ernie_standin_mistral01",
                                   "stories260K"};

static char dir[256]; /* where the archives are unpacked */
/* By number of the name, open until the end: to open one takes longer than most of what is asked of it. */
static struct tokenizer *opened[COUNT_OF(NAME)];

static json_t *read_golden(const char *prefix, const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), GOLDEN "%s%s.jsonl", prefix, name);
    json_t *rows = tokrows_read(path);
    assert_non_null(rows);
    return rows;
}

static const struct tokenizer *named(const char *name)
{
    char path[512], line[1200];
    struct nyb_err err;
    size_t i = 0;
    while (i < COUNT_OF(NAME) && strcmp(NAME[i], name) != 0)
        i++;
    assert_true(i < COUNT_OF(NAME));
    snprintf(path, sizeof(path), "%s/%s/tokenizer.json", dir, name);
    if (!opened[i] && tok_open(&opened[i], path, &err) != NYB_OK)
        fail_msg("%s", err_format(&err, line, sizeof(line)));
    return opened[i];
}

static int run(const char *const *argv)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
}

static int setup(void **state)
{
    static const char *const ARCHIVE[] = {"tokenizers.tar.xz", "longtexts.tar.xz"};
    (void)state;
    if (!file_is_dir(GOLDEN))
        return 0;
    snprintf(dir, sizeof(dir), "%s/nybble-tok-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(dir))
        return -1;
    for (size_t i = 0; i < COUNT_OF(ARCHIVE); i++) {
        char path[512];
        snprintf(path, sizeof(path), NYBBLE_SHARED_DIR "/text/%s", ARCHIVE[i]);
        const char *const argv[] = {"tar", "-xf", path, "-C", dir, NULL};
        if (run(argv) != 0)
            return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    const char *const argv[] = {"rm", "-rf", dir, NULL};
    for (size_t i = 0; i < COUNT_OF(NAME); i++)
        tok_close(opened[i]);
    return dir[0] && run(argv) != 0 ? -1 : 0;
}

static void need_shared(void)
{
    if (!dir[0])
        skip();
}

/* --- strings
 * ------------------------------------------------------------------------------------------------ */

static const json_t *string_of(const json_t *strings, json_int_t number)
{
    size_t i;
    json_t *row;
    json_array_foreach(strings, i, row) if (json_integer_value(json_object_get(row, "i")) ==
                                            number) return json_object_get(row, "t");
    fail_msg("no string %lld", (long long)number);
    return NULL;
}

static bool decodes_to(const struct tokenizer *t, const json_t *ids, bool skip_special, const json_t *want)
{
    struct tok_ids id = tokrows_ids(ids);
    struct buf text = {0};
    bool good = tokrows_decodes(t, &id, skip_special, &text) && tokrows_same_text(&text, want);
    tok_ids_free(&id);
    buf_free(&text);
    return good;
}

static size_t check_tok(const struct tokenizer *t, const char *name, const json_t *strings, size_t *n_equal)
{
    json_t *rows = read_golden("public_tok_", name);
    const json_t *prefix = json_object_get(json_array_get(rows, 0), "add_special_prefix");
    size_t n = json_array_size(rows) - 1;
    *n_equal = 0;
    for (size_t i = 1; i <= n; i++) {
        const json_t *row = json_array_get(rows, i), *ids = json_object_get(row, "ids");
        const json_t *text = string_of(strings, json_integer_value(json_object_get(row, "i")));
        const json_t *d = json_object_get(row, "d"), *ds = json_object_get(row, "ds");
        d = d ? d : text;
        ds = ds ? ds : d;
        bool equal = tokrows_encodes(t, text, false, NULL, ids) &&
                     tokrows_encodes(t, text, true, prefix, ids) && decodes_to(t, ids, false, d) &&
                     decodes_to(t, ids, true, ds);
        *n_equal += equal;
        if (!equal)
            print_message("%s: row %zu differs\n", name, i);
    }
    json_decref(rows);
    return n;
}

static size_t check_dec(const struct tokenizer *t, const char *name, size_t *n_equal)
{
    json_t *rows = read_golden("public_dec_", name);
    size_t n = 0;
    *n_equal = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i), *ids = json_object_get(row, "ids");
        const json_t *d = json_object_get(row, "d"), *ds = json_object_get(row, "ds");
        if (!ids)
            continue;
        bool equal = decodes_to(t, ids, false, d) && decodes_to(t, ids, true, ds ? ds : d);
        n++;
        *n_equal += equal;
        if (!equal)
            print_message("%s: id sequence %zu differs\n", name, i);
    }
    json_decref(rows);
    return n;
}

/* Whatever the ids, the pieces make the whole, and none ends within a character. */
static void check_random_ids(const struct tokenizer *t, uint64_t seed)
{
    for (int round = 0; round < 300; round++) {
        struct tok_ids ids = {0};
        struct buf text = {0};
        ids.n = 1 + test_random(&seed) % 40;
        ids.id = mem_alloc(ids.n, sizeof(*ids.id));
        uint64_t range =
            round % 3 == 0 ? 300 : (uint64_t)tok_vocab_size(t) + 3; /* low ids: bytes; some unknown */
        for (size_t i = 0; i < ids.n; i++)
            ids.id[i] = (int32_t)(test_random(&seed) % range);
        assert_true(tokrows_decodes(t, &ids, round & 1, &text));
        buf_free(&text);
        tok_ids_free(&ids);
    }
}

static void test_strings_and_ids(void **state)
{
    (void)state;
    need_shared();
    json_t *strings = read_golden("public_", "strings");
    for (size_t i = 0; i < COUNT_OF(NAME); i++) {
        const struct tokenizer *t = named(NAME[i]);
        size_t tok_equal, dec_equal;
        size_t n_tok = check_tok(t, NAME[i], strings, &tok_equal), n_dec = check_dec(t, NAME[i], &dec_equal);
        print_message("%-24s strings %zu of %zu, id sequences %zu of %zu equal\n", NAME[i], tok_equal, n_tok,
                      dec_equal, n_dec);
        assert_int_equal(tok_equal, n_tok);
        assert_int_equal(dec_equal, n_dec);
        check_random_ids(t, i);
    }
    json_decref(strings);
}

/* --- whole files
 * -------------------------------------------------------------------------------------------- */

static void hash_ids(const struct tok_ids *ids, char hex[65])
{
    unsigned char *bytes = mem_alloc(ids->n * 4 + 1, 1);
    for (size_t i = 0; i < ids->n * 4; i++)
        bytes[i] = (unsigned char)((uint32_t)ids->id[i / 4] >> (8 * (i % 4)));
    sha256_hex(bytes, ids->n * 4, hex);
    free(bytes);
}

static bool check_file(const struct tokenizer *t, const json_t *row)
{
    char path[512], ids_hex[65], text_hex[65];
    struct tok_ids ids = {0};
    struct buf text = {0};
    char *data;
    size_t len;
    snprintf(path, sizeof(path), "%s/longtexts/%s", dir, json_string_value(json_object_get(row, "file")));
    assert_int_equal(file_read_all(path, 1u << 28, &data, &len, NULL), NYB_OK);
    assert_int_equal(tok_encode(t, data, len, false, &ids, NULL), NYB_OK);
    hash_ids(&ids, ids_hex);
    tok_decode(t, ids.id, ids.n, false, &text);
    sha256_hex(text.data, text.len, text_hex);
    bool equal = (json_int_t)ids.n == json_integer_value(json_object_get(row, "n_ids")) &&
                 strcmp(ids_hex, json_string_value(json_object_get(row, "ids_sha256_u32le"))) == 0 &&
                 strcmp(text_hex, json_string_value(json_object_get(row, "decode_sha256"))) == 0;
    free(data);
    buf_free(&text);
    tok_ids_free(&ids);
    return equal;
}

static void test_whole_files(void **state)
{
    (void)state;
    need_shared();
    json_t *rows = read_golden("public_", "longtexts");
    for (size_t i = 0; i < COUNT_OF(NAME); i++) {
        const struct tokenizer *t = named(NAME[i]);
        size_t n = 0, n_equal = 0;
        for (size_t k = 0; k < json_array_size(rows); k++) {
            const json_t *row = json_array_get(rows, k);
            const char *of = json_string_value(json_object_get(row, "tokenizer"));
            if (!of || strcmp(of, NAME[i]) != 0)
                continue;
            n++;
            n_equal += check_file(t, row);
        }
        print_message("%-24s files %zu of %zu equal\n", NAME[i], n_equal, n);
        assert_int_equal(n_equal, n);
        assert_true(n > 0);
    }
    json_decref(rows);
}

/* --- rendered conversations
 * --------------------------------------------------------------------------------- */

static bool check_prompt(const struct tokenizer *t, const json_t *text, const json_t *row)
{
    char hex[65];
    struct tok_ids ids = {0};
    assert_int_equal(tok_encode(t, json_string_value(text), json_string_length(text), false, &ids, NULL),
                     NYB_OK);
    hash_ids(&ids, hex);
    const char *want = json_string_value(json_object_get(row, "h"));
    bool equal = strncmp(hex, want, strlen(want)) == 0;
    tok_ids_free(&ids);
    return equal;
}

static void test_rendered_conversations(void **state)
{
    static const char *const CHAT[] = {"deepseek_v3", "ernie45", "glm45_air",         "gptoss",
                                       "mixtral",     "qwen3",   "qwen3_thinking2507"};
    (void)state;
    need_shared();
    for (size_t i = 0; i < COUNT_OF(CHAT); i++) {
        json_t *ids = read_golden("public_chatids_", CHAT[i]), *chats = read_golden("public_chat_", CHAT[i]);
        const struct tokenizer *t =
            named(json_string_value(json_object_get(json_array_get(ids, 0), "tokenizer")));
        for (size_t k = 1; k < json_array_size(ids); k++) {
            const json_t *row = json_array_get(ids, k);
            size_t number = (size_t)json_integer_value(json_object_get(row, "k"));
            const json_t *text = json_object_get(json_array_get(chats, number + 1), "out");
            assert_non_null(text);
            assert_true(check_prompt(t, text, row));
        }
        print_message("%-24s prompts %zu of %zu equal\n", CHAT[i], json_array_size(ids) - 1,
                      json_array_size(ids) - 1);
        json_decref(ids);
        json_decref(chats);
    }
}

/* --- what the folder adds to the file
 * ----------------------------------------------------------------------- */

static void test_deepseek_folder_adds_bos(void **state)
{
    char path[512];
    struct tokenizer *t;
    struct tok_ids ids = {0};
    (void)state;
    need_shared();
    snprintf(path, sizeof(path), "%s/deepseek_v3", dir);
    assert_int_equal(tok_open(&t, path, NULL), NYB_OK);
    assert_int_equal(tok_encode(t, "Hi", 2, true, &ids, NULL), NYB_OK);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.id[0], 0);
    tok_ids_free(&ids);
    tok_close(t);
}

/* --- bounds
 * ------------------------------------------------------------------------------------------------- */

static double cpu_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A megabyte of anything stays within a second of CPU (ten under sanitizers). */
static void test_no_input_is_slow(void **state)
{
    static const char *const UNIT[] = {
        "a", " ", "\n", "7", "\xCC\x81", "\xCC\x81\xCC\xA3", "\xF0\x9F\x98\x80", "="};
    static const char *const OF[] = {"qwen3", "deepseek_v3", "gptoss", "mixtral", "mistral01"};
    (void)state;
    need_shared();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    const double limit = 10;
#else
    const double limit = 1;
#endif
    for (size_t i = 0; i < COUNT_OF(OF); i++) {
        const struct tokenizer *t = named(OF[i]);
        for (size_t k = 0; k < COUNT_OF(UNIT); k++) {
            struct buf text = {0};
            struct tok_ids ids = {0};
            while (text.len < 1u << 20)
                buf_add_str(&text, UNIT[k]);
            double start = cpu_s();
            assert_int_equal(tok_encode(t, text.data, text.len, false, &ids, NULL), NYB_OK);
            double s = cpu_s() - start;
            if (s > limit)
                fail_msg("%s: a megabyte of \"%s\" took %.2f s", OF[i], UNIT[k], s);
            buf_free(&text);
            tok_ids_free(&ids);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strings_and_ids),        cmocka_unit_test(test_whole_files),
        cmocka_unit_test(test_rendered_conversations), cmocka_unit_test(test_deepseek_folder_adds_bos),
        cmocka_unit_test(test_no_input_is_slow),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
