#include "text/bpe.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "text/bytelevel.h"
#include "text/utf8.h"

#define NO_RANK     UINT32_MAX
#define SMALL_MAX   96         /* symbols up to which a scan beats the heap (measured)  */
#define FILTER_BITS (1u << 21) /* 256 KB: stays in the second-level cache */
#define PIECE_MAX   (1u << 30) /* symbols of one piece fit an int32_t with room         */

static const char SPACE_MARK[] = "\xE2\x96\x81"; /* U+2581, SentencePiece's space */

void bpe_push(struct tok_ids *ids, int32_t id)
{
    if (ids->n == ids->cap) {
        ids->cap = ids->cap ? ids->cap * 2 : 64;
        ids->id = mem_grow(ids->id, ids->cap, sizeof(*ids->id));
    }
    ids->id[ids->n++] = id;
}

/* --- The merge table ------------------------------------------------------------------------------- */

static inline size_t pair_hash(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15ull;
    return (size_t)(h ^ h >> 29);
}

static inline const struct bpe_pair *pair_find(const struct bpe *b, uint32_t left, uint32_t right)
{
    size_t h = pair_hash(left, right), bit = h >> 12 & (FILTER_BITS - 1);
    if (!(b->filter[bit / 64] >> (bit % 64) & 1))
        return NULL;
    for (size_t i = h >> 8 & b->pair_mask;; i = (i + 1) & b->pair_mask) {
        const struct bpe_pair *p = &b->pair[i];
        if (p->left == left && p->right == right)
            return p;
        if (p->left == UINT32_MAX)
            return NULL;
    }
}

static void pair_put(struct bpe *b, struct bpe_pair pair)
{
    size_t h = pair_hash(pair.left, pair.right), i = h >> 8 & b->pair_mask, bit = h >> 12 & (FILTER_BITS - 1);
    b->filter[bit / 64] |= 1ull << (bit % 64);
    while (b->pair[i].left != UINT32_MAX) {
        if (b->pair[i].left == pair.left && b->pair[i].right == pair.right) {
            b->pair[i] = pair; /* named twice: the later rank counts, as in the reference */
            return;
        }
        i = (i + 1) & b->pair_mask;
    }
    b->pair[i] = pair;
    b->n_pair++;
}

static void pair_grow(struct bpe *b)
{
    struct bpe_pair *old = b->pair;
    size_t n_old = old ? b->pair_mask + 1 : 0;
    size_t n = old ? n_old * 4 : 1024;
    b->pair = mem_alloc(n, sizeof(*b->pair));
    if (!b->filter)
        b->filter = mem_alloc(FILTER_BITS / 64, sizeof(*b->filter));
    b->pair_mask = n - 1;
    b->n_pair = 0;
    for (size_t i = 0; i < n; i++)
        b->pair[i].left = UINT32_MAX;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].left != UINT32_MAX)
            pair_put(b, old[i]);
    free(old);
}

/* Does U+2581 follow another character within the key? */
static bool crosses_into_space(const char *key, size_t len)
{
    for (size_t i = 1; i + 3 <= len; i++)
        if (memcmp(key + i, SPACE_MARK, 3) == 0 && !(i >= 3 && memcmp(key + i - 3, SPACE_MARK, 3) == 0))
            return true;
    return false;
}

enum nyb_code bpe_add_merge(struct bpe *b, const char *left, size_t left_len, const char *right,
                            size_t right_len, uint32_t rank, struct nyb_err *err)
{
    char local[256];
    size_t len = left_len + right_len;
    char *both = len <= sizeof(local) ? local : mem_alloc(len, 1);
    memcpy(both, left, left_len);
    memcpy(both + left_len, right, right_len);
    int32_t l = strmap_find(&b->vocab, left, left_len), r = strmap_find(&b->vocab, right, right_len);
    int32_t id = strmap_find(&b->vocab, both, len);
    if (rank == 0)
        b->splits_at_space = true;
    if (b->splits_at_space && crosses_into_space(both, len))
        b->splits_at_space = false;
    if (both != local)
        free(both);
    if (l < 0 || r < 0 || id < 0)
        return err_at(err, NYB_E_FORMAT, "tokenizer.json", -1,
                      "merge %u joins \"%.*s\" and \"%.*s\", but %s is not in the vocabulary", rank,
                      (int)(left_len < 80 ? left_len : 80), left, (int)(right_len < 80 ? right_len : 80),
                      right,
                      l < 0   ? "the left one"
                      : r < 0 ? "the right one"
                              : "what they make");
    if (!b->pair || (b->n_pair + 1) * 2 > b->pair_mask)
        pair_grow(b);
    pair_put(b, (struct bpe_pair){(uint32_t)l, (uint32_t)r, rank, (uint32_t)id});
    return NYB_OK;
}

/* --- Set-up ---------------------------------------------------------------------------------------- */

/* The bytes that each key stands for, so that pieces need no respelling. Keys outside the alphabet cannot
 * come out of a ByteLevel split and are left out. */
static void fill_bytes(struct bpe *b)
{
    struct buf raw = {0};
    for (int32_t id = 0; id < b->vocab.n_id; id++) {
        size_t len;
        const char *key = strmap_key(&b->vocab, id, &len);
        buf_clear(&raw);
        if (key && bytelevel_bytes(key, len, &raw) && raw.len > 0)
            (void)strmap_add(&b->bytes, raw.data, raw.len,
                             id); /* one spelling a byte string: cannot be taken */
    }
    buf_free(&raw);
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        b->byte_id[byte] = strmap_find(&b->bytes, &c, 1);
    }
}

static void fill_fallback(struct bpe *b)
{
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof(name), "<0x%02X>", (unsigned)byte & 0xFF);
        b->byte_id[byte] = strmap_find(&b->vocab, name, 6);
    }
}

enum nyb_code bpe_finish(struct bpe *b, bool byte_level, struct nyb_err *err)
{
    if (b->vocab.n == 0)
        return err_at(err, NYB_E_FORMAT, "tokenizer.json", -1, "the vocabulary is empty");
    if (!b->pair)
        pair_grow(b);
    b->byte_level = byte_level;
    if (byte_level)
        fill_bytes(b);
    else
        fill_fallback(b);
    for (int byte = 0; byte < 256 && byte_level && b->byte_fallback; byte++)
        if (b->byte_id[byte] < 0)
            return err_at(err, NYB_E_UNSUPPORTED, "tokenizer.json", -1,
                          "a ByteLevel vocabulary with byte_fallback lacks the byte 0x%02X", (unsigned)byte);
    /* unknown characters fuse over a cut unless the mark itself is known */
    b->splits_at_space = b->splits_at_space && !byte_level && strmap_find(&b->vocab, SPACE_MARK, 3) >= 0;
    b->whole = mem_alloc((size_t)b->vocab.n_id, 1);
    return NYB_OK;
}

void bpe_free(struct bpe *b)
{
    strmap_free(&b->vocab);
    strmap_free(&b->bytes);
    free(b->pair);
    free(b->filter);
    free(b->whole);
    *b = (struct bpe){0};
}

void bpe_work_free(struct bpe_work *w)
{
    free(w->start.id);
    free(w->prev);
    free(w->next);
    free(w->rank);
    free(w->to);
    free(w->heap);
    *w = (struct bpe_work){0};
}

/* --- Merging --------------------------------------------------------------------------------------- */

static inline void look_up(const struct bpe *b, int32_t left, int32_t right, uint32_t *rank, uint32_t *to)
{
    const struct bpe_pair *p = pair_find(b, (uint32_t)left, (uint32_t)right);
    *rank = p ? p->rank : NO_RANK;
    *to = p ? p->id : 0;
}

/* Few symbols: find the least rank by scanning, close the gap by moving. id[0..n) in place; returns the new
 * n. */
static size_t merge_small(const struct bpe *b, int32_t *id, size_t n)
{
    uint32_t rank[SMALL_MAX], to[SMALL_MAX];
    for (size_t i = 0; i + 1 < n; i++)
        look_up(b, id[i], id[i + 1], &rank[i], &to[i]);
    while (n > 1) {
        uint32_t least = NO_RANK;
        for (size_t i = 0; i < n - 1; i++)
            least = rank[i] < least ? rank[i] : least;
        if (least == NO_RANK)
            break;
        size_t at = 0;
        while (rank[at] != least)
            at++;
        id[at] = (int32_t)to[at];
        n--;
        memmove(id + at + 1, id + at + 2, (n - at - 1) * sizeof(*id));
        if (at < n - 1) { /* pair `at` is looked up anew, the one behind it is gone */
            memmove(rank + at + 1, rank + at + 2, (n - at - 2) * sizeof(*rank));
            memmove(to + at + 1, to + at + 2, (n - at - 2) * sizeof(*to));
            look_up(b, id[at], id[at + 1], &rank[at], &to[at]);
        }
        if (at > 0)
            look_up(b, id[at - 1], id[at], &rank[at - 1], &to[at - 1]);
    }
    return n;
}

/* A four-way heap of rank << 32 | position: the order in which the reference merges. */
static void heap_down(uint64_t *heap, size_t n, size_t at)
{
    uint64_t x = heap[at];
    for (size_t child = 4 * at + 1; child < n; child = 4 * at + 1) {
        size_t end = child + 4 < n ? child + 4 : n, least = child;
        for (size_t i = child + 1; i < end; i++)
            least = heap[i] < heap[least] ? i : least;
        if (heap[least] >= x)
            break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = x;
}

static void heap_up(uint64_t *heap, size_t at)
{
    uint64_t x = heap[at];
    while (at > 0 && heap[(at - 1) / 4] > x) {
        heap[at] = heap[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    heap[at] = x;
}

static void work_reserve(struct bpe_work *w, size_t n)
{
    if (n <= w->cap)
        return;
    w->prev = mem_grow(w->prev, n, sizeof(*w->prev));
    w->next = mem_grow(w->next, n, sizeof(*w->next));
    w->rank = mem_grow(w->rank, n, sizeof(*w->rank));
    w->to = mem_grow(w->to, n, sizeof(*w->to));
    w->cap = n;
    /* n - 1 pairs at first; each of at most n - 1 merges takes one out and brings two */
    w->heap_cap = 2 * n;
    w->heap = mem_grow(w->heap, w->heap_cap, sizeof(*w->heap));
}

static void set_pair(const struct bpe *b, struct bpe_work *w, const int32_t *id, int32_t at, size_t *n_heap)
{
    look_up(b, id[at], id[w->next[at]], &w->rank[at], &w->to[at]);
    if (w->rank[at] == NO_RANK)
        return;
    w->heap[*n_heap] = (uint64_t)w->rank[at] << 32 | (uint32_t)at;
    heap_up(w->heap, (*n_heap)++);
}

/* Many symbols: a linked list and the heap, O(n log n). id[0..n) in place; returns the new n. An entry counts
 * only while the pair at its position still has its rank. */
static size_t merge_large(const struct bpe *b, struct bpe_work *w, int32_t *id, size_t n)
{
    size_t n_heap = 0;
    work_reserve(w, n);
    for (size_t i = 0; i < n; i++) {
        w->prev[i] = (int32_t)i - 1;
        w->next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
        w->rank[i] = NO_RANK;
        if (i + 1 == n)
            break;
        look_up(b, id[i], id[i + 1], &w->rank[i], &w->to[i]);
        if (w->rank[i] != NO_RANK)
            w->heap[n_heap++] = (uint64_t)w->rank[i] << 32 | i;
    }
    for (size_t i = n_heap / 4 + 1; i-- > 0 && n_heap > 1;)
        heap_down(w->heap, n_heap, i);
    while (n_heap > 0) {
        uint32_t rank = (uint32_t)(w->heap[0] >> 32);
        int32_t at = (int32_t)(uint32_t)w->heap[0];
        w->heap[0] = w->heap[--n_heap];
        if (n_heap > 1)
            heap_down(w->heap, n_heap, 0);
        if (w->rank[at] != rank)
            continue;
        int32_t gone = w->next[at];
        id[at] = (int32_t)w->to[at];
        id[gone] = -1;
        w->rank[gone] = w->rank[at] = NO_RANK;
        w->next[at] = w->next[gone];
        if (w->next[at] >= 0) {
            w->prev[w->next[at]] = at;
            set_pair(b, w, id, at, &n_heap);
        }
        if (w->prev[at] >= 0)
            set_pair(b, w, id, w->prev[at], &n_heap);
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (id[i] >= 0)
            id[kept++] = id[i];
    return kept;
}

/* --- First symbols --------------------------------------------------------------------------------- */

/* Unknowns fuse where asked: one is held back while the next may join it. */
static void start_bytes(const struct bpe *b, const char *piece, size_t len, struct tok_ids *out)
{
    bool held = false;
    for (size_t i = 0; i < len; i++) {
        int32_t id = b->byte_id[(unsigned char)piece[i]];
        if (id < 0 && b->unk < 0)
            continue; /* dropped, as in the reference */
        if (held && (id >= 0 || !b->fuse_unk))
            bpe_push(out, b->unk);
        held = id < 0;
        if (id >= 0)
            bpe_push(out, id);
    }
    if (held)
        bpe_push(out, b->unk);
}

static bool fall_back(const struct bpe *b, const char *c, size_t size, struct tok_ids *out)
{
    if (!b->byte_fallback)
        return false;
    for (size_t i = 0; i < size; i++)
        if (b->byte_id[(unsigned char)c[i]] < 0)
            return false;
    for (size_t i = 0; i < size; i++)
        bpe_push(out, b->byte_id[(unsigned char)c[i]]);
    return true;
}

/* As above; in the reference byte fallbacks overtake an unknown that is held. */
static void start_chars(const struct bpe *b, const char *piece, size_t len, struct tok_ids *out)
{
    bool held = false;
    size_t size;
    for (size_t i = 0; i < len; i += size) {
        size = utf8_size(piece[i]);
        int32_t id = strmap_find(&b->vocab, piece + i, size);
        if (id >= 0) {
            if (held)
                bpe_push(out, b->unk);
            held = false;
            bpe_push(out, id);
        } else if (!fall_back(b, piece + i, size, out) && b->unk >= 0) {
            if (held && !b->fuse_unk)
                bpe_push(out, b->unk);
            held = true;
        }
    }
    if (held)
        bpe_push(out, b->unk);
}

/* --- One piece ------------------------------------------------------------------------------------- */

static void encode_by_merging(const struct bpe *b, struct bpe_work *w, const char *piece, size_t len,
                              struct tok_ids *out)
{
    ASSERT(len < PIECE_MAX);
    size_t first = out->n;
    if (b->byte_level)
        start_bytes(b, piece, len, out);
    else
        start_chars(b, piece, len, out);
    size_t n = out->n - first;
    if (n < 2)
        return;
    int32_t *id = out->id + first;
    out->n = first + (n <= SMALL_MAX ? merge_small(b, id, n) : merge_large(b, w, id, n));
}

/* A piece without inner borders. Most words are in the vocabulary, and whether such a word really encodes to
 * its one id is found out once and remembered. */
static void encode_word(const struct bpe *b, struct bpe_work *w, const char *piece, size_t len,
                        struct tok_ids *out)
{
    int32_t id = strmap_find(b->byte_level ? &b->bytes : &b->vocab, piece, len);
    uint8_t known = id >= 0 ? __atomic_load_n(&b->whole[id], __ATOMIC_RELAXED) : 2;
    if (known == 1) {
        bpe_push(out, id);
        return;
    }
    size_t first = out->n;
    encode_by_merging(b, w, piece, len, out);
    if (known == 0) {
        bool alone = out->n == first + 1 && out->id[first] == id;
        __atomic_store_n(&b->whole[id], alone ? 1 : 2, __ATOMIC_RELAXED);
    }
}

/* Where the next word starts: at a U+2581 that follows another character. */
static size_t word_end(const char *s, size_t len)
{
    size_t i = 0;
    while (i + 3 <= len && memcmp(s + i, SPACE_MARK, 3) == 0)
        i += 3;
    const char *hit = i < len ? memmem(s + i, len - i, SPACE_MARK, 3) : NULL;
    return hit ? (size_t)(hit - s) : len;
}

void bpe_encode(const struct bpe *b, struct bpe_work *w, const char *piece, size_t len, struct tok_ids *out)
{
    if (len == 0)
        return;
    if (b->ignore_merges) {
        int32_t id = strmap_find(b->byte_level ? &b->bytes : &b->vocab, piece, len);
        if (id >= 0) {
            bpe_push(out, id);
            return;
        }
    }
    if (!b->splits_at_space) {
        encode_word(b, w, piece, len, out);
        return;
    }
    while (len > 0) {
        size_t n = word_end(piece, len);
        encode_word(b, w, piece, n, out);
        piece += n;
        len -= n;
    }
}
