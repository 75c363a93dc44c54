/* How fast a tokenizer is: MB/s of encoding and decoding beside the time that PCRE2's split alone takes, and
 * the time for a megabyte of each kind of text that quadratic tokenizers choke on.
 *
 *     bench_tok FOLDER|tokenizer.json [TEXT...]
 *
 * Times are CPU seconds of this thread, the best of five. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "text/tok.h"

#define REPEAT    5
#define TEXT_MAX  (256u << 20)
#define WORST_LEN (1u << 20)

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const struct nyb_err *err)
{
    char line[1200];
    fprintf(stderr, "bench_tok: %s\n", err_format(err, line, sizeof(line)));
    exit(1);
}

static double encode_s(const struct tokenizer *t, const char *text, size_t len, struct tok_ids *ids)
{
    struct nyb_err err;
    double start = cpu_s();
    ids->n = 0;
    if (tok_encode(t, text, len, false, ids, &err) != NYB_OK)
        die(&err);
    return cpu_s() - start;
}

static double split_s(const struct tokenizer *t, const char *text, size_t len)
{
    struct nyb_err err;
    struct pretok_work w;
    double start = cpu_s();
    pretok_work_open(&w, t->pretok);
    if (pretok_split(&w, text, len, true, &err) != NYB_OK)
        die(&err);
    pretok_work_close(&w);
    return cpu_s() - start;
}

static double decode_s(const struct tokenizer *t, const struct tok_ids *ids)
{
    struct buf out = {0};
    double start = cpu_s();
    tok_decode(t, ids->id, ids->n, false, &out);
    double end = cpu_s();
    buf_free(&out);
    return end - start;
}

static void measure(const struct tokenizer *t, const char *name, const char *text, size_t len)
{
    struct tok_ids ids = {0};
    double encode = 1e9, split = 1e9, decode = 1e9, s;
    for (int i = 0; i < REPEAT; i++) {
        encode = (s = encode_s(t, text, len, &ids)) < encode ? s : encode;
        split = (s = split_s(t, text, len)) < split ? s : split;
        decode = (s = decode_s(t, &ids)) < decode ? s : decode;
    }
    double mb = (double)len / 1e6;
    printf("%-28.28s %7.2f MB %9zu ids  encode %7.1f MB/s  split alone %7.1f MB/s  decode %7.1f MB/s\n", name,
           mb, ids.n, mb / encode, mb / split, mb / decode);
    tok_ids_free(&ids);
}

/* A megabyte of `unit` over and over. */
static void measure_worst(const struct tokenizer *t, const char *name, const char *unit)
{
    struct buf text = {0};
    struct tok_ids ids = {0};
    while (text.len < WORST_LEN)
        buf_add_str(&text, unit);
    double s = encode_s(t, text.data, text.len, &ids);
    printf("%-28s %7.2f MB %9zu ids  encode %7.3f s\n", name, (double)text.len / 1e6, ids.n, s);
    tok_ids_free(&ids);
    buf_free(&text);
}

int main(int argc, char **argv)
{
    static const char *const WORST[][2] = {
        {"one letter", "a"},
        {"two letters", "ab"},
        {"spaces", " "},
        {"newlines", "\n"},
        {"tabs and spaces", "\t "},
        {"emoji", "\xF0\x9F\x98\x80"},
        {"emoji with joiners", "\xF0\x9F\x91\xA9\xE2\x80\x8D"},
        {"digits", "7"},
        {"a combining mark", "\xCC\x81"},
        {"marks out of order", "\xCC\x81\xCC\xA3"},
        {"Hangul jamo", "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"},
        {"a Chinese character", "\xE4\xB8\xAD"},
        {"punctuation", "="},
        {"angle brackets", "<|"},
        {"new in Unicode 16", "\xF0\x90\x97\x80"},
        {"apostrophes", "'"},
    };
    struct nyb_err err;
    struct tokenizer *t;
    if (argc < 2) {
        fprintf(stderr, "usage: %s FOLDER|tokenizer.json [TEXT...]\n", argv[0]);
        return 2;
    }
    double best = 1e9;
    for (int i = 0; i < REPEAT; i++) {
        double start = cpu_s();
        if (tok_open(&t, argv[1], &err) != NYB_OK)
            die(&err);
        double s = cpu_s() - start;
        best = s < best ? s : best;
        if (i + 1 < REPEAT)
            tok_close(t);
    }
    printf("%s: %d ids, loaded in %.0f ms\n", argv[1], tok_vocab_size(t), best * 1e3);
    for (int i = 2; i < argc; i++) {
        char *text;
        size_t len;
        if (file_read_all(argv[i], TEXT_MAX, &text, &len, &err) != NYB_OK)
            die(&err);
        measure(t, strrchr(argv[i], '/') ? strrchr(argv[i], '/') + 1 : argv[i], text, len);
        free(text);
    }
    for (size_t i = 0; i < COUNT_OF(WORST); i++)
        measure_worst(t, WORST[i][0], WORST[i][1]);
    tok_close(t);
    return 0;
}
