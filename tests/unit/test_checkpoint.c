#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <math.h>
#include <utime.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"
#include "ckpt_files.h"

/* Open the folder, expect failure, and expect each of the words in the message. */
static void expect_error(const char *folder, enum nyb_code code, const char *const *word)
{
    struct ckpt *c;
    struct nyb_err err = {0};
    char text[1200];

    assert_int_equal(ckpt_open(&c, folder, CKPT_THREADS, &err), code);
    assert_null(c);
    assert_int_equal(err.code, code);
    err_format(&err, text, sizeof text);
    for (; *word; word++)
        if (!strstr(text, *word))
            fail_msg("'%s' does not mention '%s'", text, *word);
}
#define EXPECT_ERROR(folder, code, ...) expect_error(folder, code, (const char *const[]){__VA_ARGS__, NULL})

static struct ckpt *open_good(const char *folder)
{
    struct ckpt *c;
    struct nyb_err err = {0};
    if (ckpt_open(&c, folder, CKPT_THREADS, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
    return c;
}

static void test_ckpt_reads_single_file(void **state)
{
    (void)state;
    char *d = folder_make();
    struct writer w = {0};
    float row[6] = {1, 2, 3, 4, 5, 6}, back[2], scalar;
    uint16_t bf16 = 0x4040, f16 = 0xc200;
    double f64 = 0.1;

    writer_add(&w, "b.weight", DTYPE_F32, 2, (int64_t[]){2, 3}, row);
    writer_add(&w, "empty", DTYPE_U8, 2, (int64_t[]){0, 7}, NULL);
    writer_add(&w, "a.bf16", DTYPE_BF16, 1, (int64_t[]){1}, &bf16);
    writer_add(&w, "a.f16", DTYPE_F16, 0, NULL, &f16);
    writer_add(&w, "a.f64", DTYPE_F64, 0, NULL, &f64);
    writer_finish(&w, d, "model.safetensors");

    struct ckpt *c = open_good(d);
    assert_int_equal(c->n_tensor, 5);
    assert_int_equal(c->tensor_bytes, 24 + 2 + 2 + 8);
    const struct ckpt_tensor *t = ckpt_find(c, "b.weight");
    assert_non_null(t);
    assert_int_equal(t->n_dim, 2);
    assert_int_equal(t->dim[1], 3);
    assert_int_equal(ckpt_read(c, t, 8, back, sizeof back, NULL), NYB_OK);
    assert_true(back[0] == 3 && back[1] == 4);
    assert_int_equal(ckpt_read_scalar(c, ckpt_find(c, "a.bf16"), &scalar, NULL), NYB_OK);
    assert_true(scalar == 3);
    assert_int_equal(ckpt_read_scalar(c, ckpt_find(c, "a.f16"), &scalar, NULL), NYB_OK);
    assert_true(scalar == -3);
    assert_int_equal(ckpt_read_scalar(c, ckpt_find(c, "a.f64"), &scalar, NULL), NYB_OK);
    assert_true(scalar == 0.1F);
    assert_int_equal(ckpt_read_scalar(c, t, &scalar, NULL), NYB_E_FORMAT);
    assert_int_equal(ckpt_read_scalar(c, ckpt_find(c, "empty"), &scalar, NULL), NYB_E_FORMAT);
    assert_null(ckpt_find(c, "b"));
    assert_false(t->used);
    assert_ptr_equal(ckpt_take(c, "b.weight"), t);
    assert_true(t->used);
    assert_null(ckpt_take(c, "zzz"));
    log_set_level(LOG_ERROR);
    ckpt_log_unused(c);
    log_set_level(LOG_INFO);
    ckpt_close(c);
    folder_drop(d);
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_ckpt_malformed_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header, *mentions;
        size_t data;
        enum nyb_code code;
    } row[] = {
        {"", "not valid JSON", 0, NYB_E_FORMAT},
        {"{", "not valid JSON", 0, NYB_E_FORMAT},
        {"[]", "not a JSON object", 0, NYB_E_FORMAT},
        {"{}", "no tensors", 0, NYB_E_FORMAT},
        {"{} x", "not valid JSON", 0, NYB_E_FORMAT},
        {"{\"a\":3}", "'a' is not described", 0, NYB_E_FORMAT},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", "'a' has no dtype", 1, NYB_E_FORMAT},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}", "'a' has no dtype", 1, NYB_E_FORMAT},
        {"{\"a\":" T("F7", "[1]", "[0,1]") "}", "'F7', which is not known", 1, NYB_E_UNSUPPORTED},
        {"{\"a\":" T("U8\\u0000", "[1]", "[0,1]") "}", "'a' has no dtype", 1, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "4", "[0,1]") "}", "'a' has no shape", 1, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[-1]", "[0,1]") "}", "dimension 0", 1, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[1,2.0]", "[0,2]") "}", "dimension 1", 2, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", "9 dimensions", 1, NYB_E_FORMAT},
        {"{\"a\":" T("F32", "[4611686018427387904,4]", "[0,0]") "}", "64 bits", 0, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[99999999999999999999]", "[0,0]") "}", "not valid JSON", 0, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[1]", "[0]") "}", "[begin, end]", 1, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[1]", "[0,1,2]") "}", "[begin, end]", 1, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[1]", "[-1,0]") "}", "non-negative", 1, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[1]", "[\"0\",1]") "}", "non-negative", 1, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[1]", "[1,0]") "}", "before it begins", 1, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[4]", "[0,4]") "}", "truncated", 3, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[4]", "[9223372036854775803,9223372036854775807]") "}", "truncated", 3,
         NYB_E_FORMAT},
        {"{\"a\":" T("F32", "[2]", "[0,4]") "}", "shape and dtype F32 need 8", 4, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[2,6]") "}", "'a' and 'b' overlap", 6,
         NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[0,4]") "}", "overlap", 4, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[3,5]") "}", "1 bytes before tensor 'b'",
         5, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[2]", "[1,3]") "}", "1 bytes before tensor 'a'", 3, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[2]", "[0,2]") "}", "3 bytes longer", 5, NYB_E_FORMAT},
        {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"a\":" T("U8", "[2]", "[2,4]") "}", "duplicate", 4,
         NYB_E_FORMAT},
        {"{\"__metadata__\":{\"a\":1},\"a\":" T("U8", "[1]", "[0,1]") "}", "__metadata__", 1, NYB_E_FORMAT},
        {"{\"__metadata__\":\"x\",\"a\":" T("U8", "[1]", "[0,1]") "}", "__metadata__", 1, NYB_E_FORMAT},
    };
    char *d = folder_make();

    for (size_t i = 0; i < COUNT_OF(row); i++) {
        folder_write_raw(d, "model.safetensors", strlen(row[i].header), row[i].header, row[i].data);
        EXPECT_ERROR(d, row[i].code, "model.safetensors", row[i].mentions);
    }
    folder_drop(d);
}

static void test_ckpt_header_length_is_checked(void **state)
{
    (void)state;
    char *d = folder_make();
    folder_write(d, "model.safetensors", "", 0);
    EXPECT_ERROR(d, NYB_E_FORMAT, "model.safetensors", "0 bytes");
    folder_write(d, "model.safetensors", "1234567", 7);
    EXPECT_ERROR(d, NYB_E_FORMAT, "7 bytes");
    folder_write_raw(d, "model.safetensors", UINT64_MAX, "{}", 0);
    EXPECT_ERROR(d, NYB_E_FORMAT, "header claims 18446744073709551615");
    folder_write_raw(d, "model.safetensors", 3, "{}", 0);
    EXPECT_ERROR(d, NYB_E_FORMAT, "header claims 3 bytes");
    static const char pointer[] = "version https://git-lfs.example/spec/v1\noid sha256:00\nsize 5\n";
    folder_write(d, "model.safetensors", pointer, strlen(pointer));
    EXPECT_ERROR(d, NYB_E_FORMAT, "model.safetensors", "git lfs pull");
    char *text, *config = path_join(d, "config.json");
    size_t len;
    struct nyb_err err;
    folder_write(d, "config.json", pointer, strlen(pointer));
    assert_int_equal(file_read_all(config, 1000, &text, &len, &err), NYB_E_FORMAT);
    assert_non_null(strstr(err.message, "git lfs pull"));
    free(config);

    char *path =
        path_join(d, "model.safetensors"); /* a header that is too large, as a hole in a sparse file */
    folder_write_raw(d, "model.safetensors", SAFETENSORS_HEADER_MAX + 1u, "{}", 0);
    assert_int_equal(truncate(path, (off_t)SAFETENSORS_HEADER_MAX + 100), 0);
    EXPECT_ERROR(d, NYB_E_FORMAT, "expected at most 100000000");
    free(path);
    folder_drop(d);
}

static void test_ckpt_padding_and_metadata_are_fine(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":" T(
        "U8", "[1]", "[2,3]") ",\"b\":" T("U8", "[2]", "[0,2]") "}    ";
    char *d = folder_make();
    folder_write_raw(d, "model.safetensors", strlen(header), header, 3);
    struct ckpt *c = open_good(d);
    assert_int_equal(c->n_tensor, 2);
    assert_int_equal(ckpt_find(c, "a")->offset, 8 + strlen(header) + 2);
    ckpt_close(c);
    folder_drop(d);
}

static void test_ckpt_file_that_shrinks_is_an_error(void **state)
{
    (void)state;
    char *d = folder_make(), *path = path_join(d, "model.safetensors");
    struct writer w = {0};
    struct nyb_err err;
    uint8_t data[64];

    writer_add_2d(&w, "a", DTYPE_U8, 8, 8);
    writer_finish(&w, d, "model.safetensors");
    struct ckpt *c = open_good(d);
    assert_int_equal(truncate(path, (off_t)c->file[0].size - 10), 0);
    assert_int_equal(ckpt_read(c, ckpt_find(c, "a"), 0, data, sizeof data, &err), NYB_E_FORMAT);
    assert_non_null(strstr(err.where, "model.safetensors"));
    ckpt_close(c);
    free(path);
    folder_drop(d);
}

static void test_ckpt_opens_close_on_exec(void **state)
{
    (void)state;
    char *d = folder_make();
    struct writer w = {0};
    writer_add_2d(&w, "a", DTYPE_U8, 2, 2);
    writer_finish(&w, d, "model.safetensors");
    struct ckpt *c = open_good(d);
    assert_true(fcntl(c->file[0].fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(fcntl(c->file[0].fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    ckpt_close(c);
    folder_drop(d);
}

static void test_ckpt_pipe_does_not_hang(void **state)
{
    (void)state;
    char *d = folder_make(), *path = path_join(d, "model.safetensors");
    assert_int_equal(mkfifo(path, 0600), 0);
    EXPECT_ERROR(d, NYB_E_FORMAT, "not a regular file");
    free(path);
    folder_drop(d);
}

static void write_shard(const char *d, const char *name, const char *tensor)
{
    struct writer w = {0};
    writer_add_2d(&w, tensor, DTYPE_U8, 2, 2);
    writer_finish(&w, d, name);
}

#define INDEX(map) "{\"metadata\":{},\"weight_map\":{" map "}}"

static void test_ckpt_index_names_the_shards(void **state)
{
    (void)state;
    char *d = folder_make();
    write_shard(d, "model-1.safetensors", "a");
    write_shard(d, "model-2.safetensors", "b");
    write_shard(d, "stray.safetensors", "c");
    folder_write_text(d, "model.safetensors.index.json",
                      INDEX("\"b\":\"model-2.safetensors\",\"a\":\"model-1.safetensors\""));
    struct ckpt *c = open_good(d);
    assert_int_equal(c->n_file, 2);
    assert_int_equal(c->n_tensor, 2);
    assert_null(ckpt_find(c, "c"));
    ckpt_close(c);

    /* b is there although the index lists a alone of that file */
    struct writer w = {0};
    writer_add_2d(&w, "a", DTYPE_U8, 2, 2);
    writer_add_2d(&w, "b", DTYPE_U8, 2, 2);
    writer_finish(&w, d, "model-1.safetensors");
    folder_write_text(d, "model.safetensors.index.json", INDEX("\"a\":\"model-1.safetensors\""));
    c = open_good(d);
    assert_non_null(ckpt_find(c, "b"));
    ckpt_close(c);
    folder_drop(d);
}

static void test_ckpt_index_errors(void **state)
{
    (void)state;
    static const char index[] = "model.safetensors.index.json";
    char *d = folder_make();
    write_shard(d, "model-1.safetensors", "a");
    write_shard(d, "model-2.safetensors", "b");
    write_shard(d, "model.safetensors", "a"); /* the index wins over it */

    folder_write_text(d, index, INDEX("\"a\":\"model-1.safetensors\",\"b\":\"model-9.safetensors\""));
    EXPECT_ERROR(d, NYB_E_NOT_FOUND, "model-9.safetensors", "1 is missing");
    folder_write_text(d, index, INDEX("\"a\":\"model-1.safetensors\",\"c\":\"model-2.safetensors\""));
    EXPECT_ERROR(d, NYB_E_FORMAT, "c:", "model-2.safetensors", "no file");
    folder_write_text(d, index, INDEX("\"a\":\"model-1.safetensors\",\"b\":\"model-1.safetensors\""));
    EXPECT_ERROR(d, NYB_E_FORMAT, "b:", "model-1.safetensors", "no file");
    folder_write_text(
        d, index,
        INDEX("\"a\":\"model-2.safetensors\",\"b\":\"model-2.safetensors\",\"x\":\"model-1.safetensors\""));
    EXPECT_ERROR(d, NYB_E_FORMAT, "a:", "'model-2.safetensors', but it is in", "model-1.safetensors");
    folder_write_text(d, index, INDEX("\"a\":\"../model-1.safetensors\""));
    EXPECT_ERROR(d, NYB_E_FORMAT, index, "without a path");
    folder_write_text(d, index, INDEX("\"a\":\"/etc/passwd\""));
    EXPECT_ERROR(d, NYB_E_FORMAT, index, "/etc/passwd");
    folder_write_text(d, index, INDEX("\"a\":\"..\""));
    EXPECT_ERROR(d, NYB_E_FORMAT, index, "without a path");
    folder_write_text(d, index, INDEX("\"a\":7"));
    EXPECT_ERROR(d, NYB_E_FORMAT, index, "not a string");
    folder_write_text(d, index, INDEX(""));
    EXPECT_ERROR(d, NYB_E_FORMAT, index, "empty");
    folder_write_text(d, index, "{}");
    EXPECT_ERROR(d, NYB_E_FORMAT, index, "no weight_map");
    folder_write_text(d, index, "{\"weight_map\":[]}");
    EXPECT_ERROR(d, NYB_E_FORMAT, index, "no weight_map");
    folder_write_text(d, index, INDEX("\"a\":\"model-1.safetensors\",\"a\":\"model-1.safetensors\""));
    EXPECT_ERROR(d, NYB_E_FORMAT, index, "duplicate");
    folder_write_text(d, index, "{");
    EXPECT_ERROR(d, NYB_E_FORMAT, index, "JSON");
    folder_drop(d);
}

static void test_ckpt_several_files_without_an_index(void **state)
{
    (void)state;
    char *d = folder_make();
    write_shard(d, "model-00002-of-00002.safetensors", "b");
    write_shard(d, "model-00001-of-00002.safetensors", "a");
    write_shard(d, "golden.safetensors", "a");
    write_shard(d, "consolidated.safetensors", "a");
    write_shard(d, ".hidden.safetensors", "a");
    struct ckpt *c = open_good(d);
    assert_int_equal(c->n_file, 2);
    assert_non_null(strstr(c->file[0].path, "model-00001"));
    assert_int_equal(c->n_tensor, 2);
    ckpt_close(c);

    write_shard(d, "other.safetensors", "a");
    EXPECT_ERROR(d, NYB_E_FORMAT, "a:", "two files", "model-00001-of-00002.safetensors", "other.safetensors");
    write_shard(d, "model.safetensors", "z");
    c = open_good(d);
    assert_int_equal(c->n_file, 1);
    ckpt_close(c);
    folder_drop(d);
}

static void test_ckpt_folder_without_a_model(void **state)
{
    (void)state;
    char *d = folder_make();
    EXPECT_ERROR(d, NYB_E_NOT_FOUND, d, "holds no model");
    write_shard(d, "golden.safetensors", "a");
    EXPECT_ERROR(d, NYB_E_NOT_FOUND, d, "holds no model");
    folder_drop(d);
    EXPECT_ERROR("/nonexistent/folder", NYB_E_NOT_FOUND, "/nonexistent/folder", "cannot open");
}

/* A cache as the hub's client lays it out: snapshots full of links into blobs. */
static char *make_repository(const char *cache, const char *id, const char *commit, const char *tensor)
{
    char *repository = mem_printf("%s/models--%s", cache, id);
    char *blobs = path_join(repository, "blobs"), *snapshots = path_join(repository, "snapshots");
    char *snapshot = path_join(snapshots, commit), *link = path_join(snapshot, "model.safetensors");
    char *target = mem_printf("../../blobs/%s", commit);

    mkdir(repository, 0700);
    mkdir(blobs, 0700);
    mkdir(snapshots, 0700);
    assert_int_equal(mkdir(snapshot, 0700), 0);
    write_shard(blobs, commit, tensor);
    assert_int_equal(symlink(target, link), 0);
    free(target);
    free(link);
    free(snapshots);
    free(blobs);
    free(repository);
    return snapshot;
}

static void clear_environment(void)
{
    unsetenv("HF_HUB_CACHE");
    unsetenv("HUGGINGFACE_HUB_CACHE");
    unsetenv("HF_HOME");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "/nonexistent/home", 1);
}

static void expect_resolved(const char *id, const char *expected)
{
    char *folder;
    struct nyb_err err = {0};
    if (ckpt_resolve(&folder, id, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
    assert_string_equal(folder, expected);
    free(folder);
}

static void test_ckpt_resolves_snapshots_of_the_cache(void **state)
{
    (void)state;
    char *d = folder_make(), *folder;
    char *old = make_repository(d, "acme--moe-1", "aaaa", "a"),
         *new = make_repository(d, "acme--moe-1", "bbbb", "b");
    char *refs = mem_printf("%s/models--acme--moe-1/refs", d);
    struct nyb_err err;

    utime(old, &(struct utimbuf){1000, 1000});
    clear_environment();
    setenv("HF_HUB_CACHE", d, 1);
    expect_resolved("acme/moe-1", new); /* no refs: the newest */
    mkdir(refs, 0700);
    folder_write_text(refs, "main", "aaaa\n");
    expect_resolved("acme/moe-1", old);
    struct ckpt *c = open_good(old);
    assert_non_null(ckpt_find(c, "a"));
    ckpt_close(c);
    folder_write_text(refs, "main", "../../../etc");
    expect_resolved("acme/moe-1", new);
    folder_write_text(refs, "main", "cccc");
    expect_resolved("acme/moe-1", new);

    char *pr = path_join(refs, "pr");
    mkdir(pr, 0700);
    folder_write_text(pr, "7", "aaaa");
    folder_write_text(refs, "v1.0", "aaaa");
    folder_write_text(refs, "main", "bbbb");
    expect_resolved("acme/moe-1@main", new);
    expect_resolved("acme/moe-1@v1.0", old);
    expect_resolved("acme/moe-1@refs/pr/7", old);
    expect_resolved("acme/moe-1@pr/7", old);
    expect_resolved("acme/moe-1@aaaa", old);
    expect_resolved("acme/moe-1@bbbb", new);
    assert_int_equal(ckpt_resolve(&folder, "acme/moe-1@cccc", &err), NYB_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "`hf download acme/moe-1 --revision cccc`"));
    assert_string_equal(err.where, "acme/moe-1");
    free(pr);

    assert_int_equal(ckpt_resolve(&folder, "acme/other", &err), NYB_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "`hf download acme/other`"));
    assert_null(folder);
    assert_non_null(strstr(err.message, d));
    assert_non_null(strstr(err.message, "/nonexistent/home/.cache/huggingface/hub"));
    free(refs);
    free(old);
    free(new);
    folder_drop(d);
}

static void test_ckpt_searches_every_cache_variable(void **state)
{
    (void)state;
    static const struct {
        const char *variable, *parent, *hub;
    } row[] = {{"HF_HUB_CACHE", "", ""},
               {"HUGGINGFACE_HUB_CACHE", "", ""},
               {"HF_HOME", "", "/hub"},
               {"XDG_CACHE_HOME", "/huggingface", "/huggingface/hub"},
               {"HOME", "/.cache", "/.cache"}};

    for (size_t i = 0; i < COUNT_OF(row); i++) {
        char *d = folder_make(), *parent = mem_printf("%s%s", d, row[i].parent);
        char *hub = mem_printf("%s%s%s", d, row[i].hub, i == 4 ? "/huggingface/hub" : "");
        char *middle = mem_printf("%s/.cache/huggingface", d);
        mkdir(parent, 0700);
        if (i == 4)
            mkdir(middle, 0700);
        mkdir(hub, 0700);
        char *snapshot = make_repository(hub, "o--n", "12ab", "a");
        clear_environment();
        setenv(row[i].variable, d, 1);
        expect_resolved("o/n", snapshot);
        free(snapshot);
        free(middle);
        free(hub);
        free(parent);
        folder_drop(d);
    }
    clear_environment();
}

static void test_ckpt_resolve_is_picky_about_names(void **state)
{
    (void)state;
    static const char *const bad[] = {"",          "a",       "../b",   "a/..",   "a/b/c",  "a/b..c",
                                      "a//b",      "/nope/x", "a/b c",  "a--b/c", "-a/b",   "a/b.",
                                      ".hidden/b", "a/",      "a/b\n",  "./a",    "a/b@",   "a/b@../c",
                                      "@main",     "a/b@/c",  "a/b@c/", "a@b/c",  "a/b@c@d"};
    char *d = folder_make(), *folder;
    struct nyb_err err;

    clear_environment();
    setenv("HF_HUB_CACHE", d, 1);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_int_equal(ckpt_resolve(&folder, bad[i], &err), NYB_E_NOT_FOUND);
        assert_null(folder);
        assert_non_null(strstr(err.message, "owner/name"));
    }
    write_shard(d, "model.safetensors", "a");
    char *file = path_join(d, "model.safetensors");
    assert_int_equal(ckpt_resolve(&folder, file, &err), NYB_E_ARG);
    assert_non_null(strstr(err.message, "expected the folder"));
    expect_resolved(d, d);
    free(file);
    folder_drop(d);
    clear_environment();
}

/* More files than threads parse headers, beside files that nobody asks for and that cannot be parsed, or are
 * found by the index alone. */
static void test_ckpt_many_files_at_once(void **state)
{
    (void)state;
    enum { N = 20 };
    char *d = folder_make(), name[64], map[4096];
    size_t len = (size_t)snprintf(map, sizeof(map), "{\"weight_map\":{");
    for (int i = 0; i < N; i++) {
        char tensor[8];
        snprintf(tensor, sizeof(tensor), "t%d", i);
        snprintf(name, sizeof(name), i == 7 ? "shard-%d" : "model-%d.safetensors", i);
        write_shard(d, name, tensor);
        len += (size_t)snprintf(map + len, sizeof(map) - len, "%s\"%s\":\"%s\"", i ? "," : "", tensor, name);
    }
    snprintf(map + len, sizeof(map) - len, "}}");
    folder_write_text(d, "model.safetensors.index.json", map);
    folder_write_raw(d, "model-a.safetensors", 3, "{}", 0);
    char *pipe = path_join(d, "model-b.safetensors");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    for (int round = 0; round < 20; round++) {
        struct ckpt *c = open_good(d);
        assert_int_equal(c->n_file, N);
        assert_int_equal(c->n_tensor, N);
        assert_true(c->tensor_bytes == 4 * N);
        for (int i = 0; i < N; i++) {
            snprintf(name, sizeof(name), "t%d", i);
            const struct ckpt_tensor *t = ckpt_find(c, name);
            assert_non_null(t);
            assert_non_null(strstr(c->file[t->file].path, i == 7 ? "shard-7" : "model-"));
        }
        ckpt_close(c);
    }
    folder_write_raw(d, "model-13.safetensors", 3, "{}", 0);
    EXPECT_ERROR(d, NYB_E_FORMAT, "model-13.safetensors", "header claims 3 bytes");
    free(pipe);
    folder_drop(d);
}

/* ---- headers and indexes that are read in pieces ------------------------------------------------- */

enum { N_LONG = 2000 }; /* members: 200 KB of header, 130 of index */

/* Tensor i of N_LONG, of one byte; the one numbered `odd` as it is given. */
static void write_long_header(const char *d, int odd, const char *member)
{
    struct buf header = {0};
    buf_add_str(&header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < N_LONG; i++)
        if (i == odd)
            buf_printf(&header, ",%s", member);
        else
            buf_printf(
                &header,
                ",\"model.layers.%d.weight\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}", i, i,
                i + 1);
    buf_add_byte(&header, '}');
    folder_write_raw(d, "model-1.safetensors", header.len, header.data, N_LONG);
    buf_free(&header);
}

static void write_long_index(const char *d, int odd, const char *member)
{
    struct buf index = {0};
    buf_add_str(&index, "{\"metadata\":{\"total_size\":2000},\"weight_map\":{");
    for (int i = 0; i < N_LONG; i++)
        if (i == odd)
            buf_printf(&index, "%s%s", i ? "," : "", member);
        else
            buf_printf(&index, "%s\"model.layers.%d.weight\":\"model-1.safetensors\"", i ? "," : "", i);
    buf_add_str(&index, "}}");
    folder_write_text(d, "model.safetensors.index.json", index.data);
    buf_free(&index);
}

static void expect_long(const char *d)
{
    struct ckpt *c = open_good(d);
    assert_int_equal(c->n_tensor, N_LONG);
    for (int i = 0; i < N_LONG; i++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.weight", i);
        const struct ckpt_tensor *t = ckpt_find(c, name);
        assert_non_null(t);
        assert_int_equal(t->bytes, 1);
        assert_int_equal(t->offset - ckpt_find(c, "model.layers.0.weight")->offset, i);
    }
    ckpt_close(c);
}

/* That the header was read in. */
static int header_pieces(const char *d)
{
    struct safetensors st;
    struct nyb_err err;
    struct stat s;
    char path[512];
    snprintf(path, sizeof path, "%s/model-1.safetensors", d);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &s) == 0);
    assert_int_equal(safetensors_read(&st, fd, path, (uint64_t)s.st_size, CKPT_THREADS, &err), NYB_OK);
    close(fd);
    int n = st.n_piece;
    safetensors_free(&st);
    return n;
}

static int index_pieces(const char *d)
{
    struct index_set set;
    struct nyb_err err;
    assert_int_equal(index_read(&set, d, CKPT_THREADS, &err), NYB_OK);
    int n = set.n_map;
    index_free(&set);
    return n;
}

static void test_ckpt_long_header(void **state)
{
    (void)state;
    char *d = folder_make();
    write_long_header(d, -1, NULL);
    expect_long(d);
    assert_true(header_pieces(d) > 1);
    write_long_header(
        d, 1990, "\"model.layers.3.weight\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1990,1991]}");
    EXPECT_ERROR(d, NYB_E_FORMAT, "model-1.safetensors", "duplicate");
    write_long_header(d, 1990, "\"__metadata__\":{}");
    EXPECT_ERROR(d, NYB_E_FORMAT, "model-1.safetensors", "duplicate");
    write_long_header(d, 1500, "\"x\":{\"dtype\":\"U7\",\"shape\":[1],\"data_offsets\":[1500,1501]}");
    EXPECT_ERROR(d, NYB_E_UNSUPPORTED, "model-1.safetensors", "'x' has dtype 'U7'");
    write_long_header(d, 1500, "\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1499,1500]}");
    EXPECT_ERROR(d, NYB_E_FORMAT, "model-1.safetensors", "overlap");
    write_long_header(d, 1500, "\"x\":{\"dtype\":\"U8\",\"shape\":[1]]");
    EXPECT_ERROR(d, NYB_E_FORMAT, "model-1.safetensors", "not valid JSON", "at byte");
    folder_drop(d);
}

static void test_ckpt_long_index(void **state)
{
    (void)state;
    static const char index[] = "model.safetensors.index.json";
    char *d = folder_make();
    write_long_header(d, -1, NULL);
    write_long_index(d, -1, NULL);
    expect_long(d);
    assert_true(index_pieces(d) > 1);
    write_long_index(d, 1999, "\"model.layers.0.weight\":\"model-1.safetensors\"");
    EXPECT_ERROR(d, NYB_E_FORMAT, index, "duplicate");
    write_long_index(d, 1999, /* the map's own key once more, written in another way */
                     "\"model.layers.1999.weight\":\"model-1.safetensors\"},"
                     "\"weight\\u005fmap\":{\"model.layers.0.weight\":\"model-1.safetensors\"");
    EXPECT_ERROR(d, NYB_E_FORMAT, index, "duplicate");
    write_long_index(d, 1200, "\"a\":\"model-1.safetensors\"");
    EXPECT_ERROR(d, NYB_E_FORMAT, "a:", "no file");
    write_shard(d, "model-2.safetensors", "b");
    write_long_index(d, 1200, "\"model.layers.1200.weight\":\"model-2.safetensors\"");
    EXPECT_ERROR(d, NYB_E_FORMAT, "model.layers.1200.weight:", "'model-2.safetensors', but it is in");
    write_long_index(d, 1200, "\"a\":\"model-3.safetensors\"");
    EXPECT_ERROR(d, NYB_E_NOT_FOUND, "model-3.safetensors");
    write_long_index(d, 1200, "\"a\":\"../model-1.safetensors\"");
    EXPECT_ERROR(d, NYB_E_FORMAT, index, "without a path");
    write_long_index(d, 1200, "\"a\":7,");
    EXPECT_ERROR(d, NYB_E_FORMAT, index, "not valid JSON", "at byte");
    folder_drop(d);
}

/* A header as large as those of the biggest models must not take long: nothing in it may be quadratic. */
static void test_ckpt_hundred_thousand_tensors(void **state)
{
    (void)state;
    const int n = 120000;
    char *d = folder_make(), name[128];
    struct writer w = {0};

    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.gate_proj.weight_scale", i / 1024,
                 i % 1024);
        writer_add(&w, name, DTYPE_U8, 1, (int64_t[]){1}, "x");
    }
    writer_finish(&w, d, "model.safetensors");
    uint64_t start = clock_ns();
    struct ckpt *c = open_good(d);
    uint64_t took_ms = (clock_ns() - start) / 1000000;
    assert_int_equal(c->n_tensor, n);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.gate_proj.weight_scale", i / 1024,
                 i % 1024);
        assert_non_null(ckpt_take(c, name));
    }
    print_message("%d tensors opened in %llu ms\n", n, (unsigned long long)took_ms);
    assert_true(took_ms <
                20000); /* a sanitizer build on a busy machine; plainly quadratic code takes minutes */
    ckpt_close(c);
    folder_drop(d);
}

/* A header of n tensors of one byte; names whose hashes under no seed meet, or any. The least time of three.
 */
static uint64_t parse_ms(int n, bool meet)
{
    struct buf header = {0};
    uint64_t least = UINT64_MAX;
    char name[32];
    buf_add_byte(&header, '{');
    for (int i = 0, tried = 0; i < n; tried++) {
        int len = snprintf(name, sizeof name, "t%08x", (unsigned)tried);
        if (meet && XXH3_64bits(name, (size_t)len) % 65536 >= 256)
            continue;
        buf_printf(&header, "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                   i ? "," : "", name, i, i + 1);
        i++;
    }
    buf_add_byte(&header, '}');
    for (int i = 0; i < 3; i++) {
        struct safetensors st;
        struct nyb_err err;
        uint64_t start = clock_ns();
        assert_int_equal(
            safetensors_parse(&st, header.data, header.len, (uint64_t)n, "x", CKPT_THREADS, &err), NYB_OK);
        uint64_t took = clock_ns() - start;
        least = took < least ? took : least;
        assert_true(st.n_piece > 1);
        safetensors_free(&st);
    }
    buf_free(&header);
    return least / 1000000;
}

/* A file's author cannot make it quadratic either. */
static void test_ckpt_names_that_would_meet(void **state)
{
    (void)state;
    uint64_t any = parse_ms(30000, false), meet = parse_ms(30000, true);
    print_message("30000 tensors: %llu ms, %llu with names that would meet\n", (unsigned long long)any,
                  (unsigned long long)meet);
    assert_true(meet <= 4 * any + 100);
}

static void test_dtype_names_round_trip(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPE_COUNT; i++)
        assert_int_equal(dtype_parse(dtype_name((enum dtype)i)), i);
    assert_int_equal(dtype_parse("bf16"), DTYPE_COUNT);
    assert_int_equal(dtype_size(DTYPE_F64), 8);
    uint16_t tiny = 1, nan = 0x7e01;
    assert_true(dtype_to_float(DTYPE_F16, &tiny) == 0x1p-24F);
    assert_true(isnan(dtype_to_float(DTYPE_F16, &nan)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtype_names_round_trip),
        cmocka_unit_test(test_ckpt_reads_single_file),
        cmocka_unit_test(test_ckpt_malformed_headers),
        cmocka_unit_test(test_ckpt_header_length_is_checked),
        cmocka_unit_test(test_ckpt_padding_and_metadata_are_fine),
        cmocka_unit_test(test_ckpt_file_that_shrinks_is_an_error),
        cmocka_unit_test(test_ckpt_opens_close_on_exec),
        cmocka_unit_test(test_ckpt_pipe_does_not_hang),
        cmocka_unit_test(test_ckpt_index_names_the_shards),
        cmocka_unit_test(test_ckpt_index_errors),
        cmocka_unit_test(test_ckpt_several_files_without_an_index),
        cmocka_unit_test(test_ckpt_folder_without_a_model),
        cmocka_unit_test(test_ckpt_resolves_snapshots_of_the_cache),
        cmocka_unit_test(test_ckpt_searches_every_cache_variable),
        cmocka_unit_test(test_ckpt_resolve_is_picky_about_names),
        cmocka_unit_test(test_ckpt_many_files_at_once),
        cmocka_unit_test(test_ckpt_long_header),
        cmocka_unit_test(test_ckpt_long_index),
        cmocka_unit_test(test_ckpt_hundred_thousand_tensors),
        cmocka_unit_test(test_ckpt_names_that_would_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
