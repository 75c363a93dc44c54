#include "text/unicode16.h"

#include <string.h>

#include "base/mem.h"
#include "text/utf8.h"

static const struct range {
    const char *name;
    uint32_t first, last;
} RANGE[] = {
#define UNICODE16_RANGE(name, first, last) {#name, first, last},
#include "text/unicode16.def"
#undef UNICODE16_RANGE
};

static const char *const KNOWN[] = {"L",  "N",  "M",  "P",  "S",  "Lu",
                                    "Ll", "Lt", "Lm", "Lo", "Nd", "Han"}; /* Lt gained nothing */

/* White_Space (PropList.txt; unchanged from Unicode 6.3 to 16), ascending. */
static const struct {
    uint32_t first, last;
} SPACE[] = {{0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
             {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};

static bool same_name(const char *a, const char *name, size_t len)
{
    return strlen(a) == len && memcmp(a, name, len) == 0;
}

bool unicode16_knows(const char *name, size_t len)
{
    for (size_t i = 0; i < COUNT_OF(KNOWN); i++)
        if (same_name(KNOWN[i], name, len))
            return true;
    return false;
}

static void add_range(struct buf *out, uint32_t first, uint32_t last)
{
    if (first == last)
        buf_printf(out, "\\x{%X}", first);
    else
        buf_printf(out, "\\x{%X}-\\x{%X}", first, last);
}

void unicode16_add_ranges(struct buf *out, const char *name, size_t len)
{
    for (size_t i = 0; i < COUNT_OF(RANGE); i++)
        if (same_name(RANGE[i].name, name, len))
            add_range(out, RANGE[i].first, RANGE[i].last);
}

void unicode16_add_space(struct buf *out, bool negated)
{
    uint32_t next = 0;
    for (size_t i = 0; i < COUNT_OF(SPACE); i++) {
        if (!negated)
            add_range(out, SPACE[i].first, SPACE[i].last);
        else if (next < SPACE[i].first)
            add_range(out, next, SPACE[i].first - 1);
        next = SPACE[i].last + 1;
    }
    if (negated)
        add_range(out, next, 0x10FFFF);
}

bool unicode16_is_space(uint32_t code)
{
    for (size_t i = 0; i < COUNT_OF(SPACE); i++)
        if (code >= SPACE[i].first && code <= SPACE[i].last)
            return true;
    return false;
}

static const struct {
    uint32_t first, last;
} DIFFERS[] = {
#define UNICODE16_DIFFERS(first, last) {first, last},
#include "text/unicode16.def"
#undef UNICODE16_DIFFERS
};

bool unicode16_is_added(uint32_t code)
{
    size_t lo = 0, hi = COUNT_OF(DIFFERS);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (code > DIFFERS[mid].last)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < COUNT_OF(DIFFERS) && code >= DIFFERS[lo].first;
}

/* One bit a block of 256 code points that holds one of them, up to U+32FFF (the last is U+323AF): most text
 * never gets as far as the search. Filled on the stack when needed; a few dozen rows are cheap beside such
 * text. */
#define BLOCK_COUNT 0x330
struct blocks {
    uint64_t bit[BLOCK_COUNT / 64 + 1];
};

static void blocks_fill(struct blocks *b)
{
    memset(b, 0, sizeof(*b));
    for (size_t i = 0; i < COUNT_OF(DIFFERS); i++)
        for (uint32_t k = DIFFERS[i].first >> 8; k <= DIFFERS[i].last >> 8; k++)
            b->bit[k / 64] |= 1ull << (k % 64);
}

bool unicode16_differs(const char *text, size_t len)
{
    struct blocks blocks;
    bool filled = false;
    size_t i = 0;
    while (i < len) {
        uint64_t word;
        if (len - i >= 8) {
            memcpy(&word, text + i, 8);
            if ((word & 0x8080808080808080ull) == 0) {
                i += 8;
                continue;
            }
        }
        if ((unsigned char)text[i] < 0xE0) { /* below U+0800: nothing was added there */
            i++;
            continue;
        }
        uint32_t code = utf8_code(text + i);
        if (!filled) {
            blocks_fill(&blocks);
            filled = true;
        }
        if (code >> 8 < BLOCK_COUNT && (blocks.bit[code >> 14] >> ((code >> 8) & 63) & 1) &&
            unicode16_is_added(code))
            return true;
        i += utf8_size(text[i]);
    }
    return false;
}
