/* The first byte chooses the kind of the constraint, the second how much of the rest is its text; what
 * remains is fed to a matcher. Nothing may crash, a refusal has a message, and where a text may go on it can
 * be completed: some byte fits. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TEXT_MAX 2048

static bool some_byte_fits(const struct grammar_matcher *m)
{
    bool fits = false;
    for (int b = 0; b < 256 && !fits; b++) {
        struct grammar_matcher copy;
        char c = (char)b;
        grammar_matcher_clone(&copy, m);
        fits = grammar_advance(&copy, &c, 1);
        grammar_matcher_close(&copy);
    }
    return fits;
}

static void feed(struct grammar *g, const char *text, size_t len)
{
    struct grammar_matcher m, whole;
    size_t taken = 0;
    grammar_matcher_open(&m, g);
    grammar_matcher_open(&whole, g);
    for (size_t i = 0; i < len && i < 256; i++)
        if (grammar_advance(&m, &text[i], 1))
            taken += i == taken;
    bool all = grammar_advance(&whole, text, taken);
    ASSERT(all); /* piece by piece and at once are the same */
    ASSERT(!grammar_must_end(&m) || grammar_may_end(&m));
    if (!grammar_may_end(&m))
        (void)some_byte_fits(&m); /* may be false only at the limits of depth and ambiguity */
    grammar_matcher_close(&m);
    grammar_matcher_close(&whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct grammar *g;
    struct nyb_err err = {0};
    if (size < 3 || size > TEXT_MAX)
        return 0;
    size_t n = (size - 2) * (1 + (size_t)data[1]) / 256;
    char *text = mem_strndup((const char *)data + 2, n);
    const struct grammar_source s = {.kind = (enum grammar_kind)(data[0] % 6),
                                     .text = text,
                                     .think_close = data[0] & 64 ? "</think>" : NULL,
                                     .think_open = data[0] & 128 && data[0] & 64 ? "<think>" : NULL};
    if (grammar_open(&g, &s, NULL, &err) == NYB_OK) {
        feed(g, (const char *)data + 2 + n, size - 2 - n);
        grammar_release(g);
    } else {
        ASSERT(err.message[0]);
    }
    free(text);
    return 0;
}
