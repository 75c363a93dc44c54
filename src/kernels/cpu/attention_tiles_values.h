/* Values on the matrix unit: a part of attention_tiles.h. */
#ifndef NYB_KERNELS_CPU_ATTENTION_TILES_VALUES_H
#define NYB_KERNELS_CPU_ATTENTION_TILES_VALUES_H

/* A line of two tokens, of which the first n (0 .. 2) are there; memory of others may hold anything. */
INLINE void copy_line(uint8_t *to, const uint8_t *from, int n)
{
    if (n == 2) {
        memcpy(to, from, TILE_LINE);
        return;
    }
    memset(to, 0, TILE_LINE);
    for (int i = 0; n == 1 && i < TILE_LINE; i += 4)
        memcpy(to + i, from + i, 2);
}

/* All values of the split in tiles of two blocks, filled up with zeros. */
static void gather_values(const struct attend *a)
{
    for (int block = 0; block * KV_BLOCK < a->n_key; block += CHUNK_BLOCKS) {
        struct chunk c = chunk_open(a, a->t->kv->v, block);
        bool sent = chunk_stage(a, &c, true);
        for (int b = 0; b < c.n_block; b++) {
            int at = block + b, left = a->n_key - at * KV_BLOCK;
            for (int pair = 0; pair < KV_BLOCK / 2; pair++) {
                int n = left - 2 * pair < 0 ? 0 : left - 2 * pair < 2 ? left - 2 * pair : 2;
                const uint8_t *from = c.at[b] + (size_t)pair * 4 * a->pad;
                uint8_t *to = VALUE_TILE(a, 0, at / 2) + (at % 2 * KV_BLOCK / 2 + pair) * TILE_LINE;
                if (!sent)
                    send_for(c.next[b] + (size_t)pair * 4 * a->pad, 4 * a->pad);
                for (size_t i = 0; i < a->n_c; i++)
                    copy_line(to + i * SPLIT_TILES * TILE_BYTES, from + i * TILE_LINE, n);
            }
            for (size_t i = 0; at % 2 == 0 && left <= KV_BLOCK && i < a->n_c; i++)
                memset(VALUE_TILE(a, i, at / 2) + TILE_BYTES / 2, 0, TILE_BYTES / 2);
        }
    }
}

/* Where dimension i of a key's value is in the tiles. */
INLINE uint16_t *value_of(const struct attend *a, int key, size_t i)
{
    uint8_t *tile = VALUE_TILE(a, i / TILE_ROW, key / UNIT_K);
    return (uint16_t *)(void *)tile + key % UNIT_K / 2 * UNIT_K + (int)(i % TILE_ROW) * 2 + key % 2;
}

INLINE bool not_finite(uint16_t bits)
{
    return (bits & 0x7f80) == 0x7f80;
}

/* Values that are infinite or no number, of keys from `first` on, which not all rows see: their product with
 * a weight of zero would be no number either. They are taken out of the tiles; `found` gets them one by one.
 */
static void take_odd_values(const struct attend *a, int first,
                            void (*found)(const struct attend *a, int key, size_t i, uint16_t bits))
{
    for (int key = first; key < a->n_key; key++)
        for (size_t i = 0; i < (size_t)a->t->kv->head_dim; i++) {
            uint16_t *v = value_of(a, key, i);
            if (not_finite(*v)) {
                uint16_t bits = *v;
                *v = 0;
                if (found)
                    found(a, key, i, bits);
            }
        }
}

/* Are there any? Looks at whole tiles' lines, since it is asked for every prompt. */
static bool has_odd_values(const struct attend *a, int first)
{
    int odd = 0;
    for (int pair = first / 2; 2 * pair < a->n_key; pair++)
        for (size_t c = 0; c < a->n_c; c++) {
            const uint16_t *line = value_of(a, 2 * pair, c * TILE_ROW);
            for (int i = 0; i < UNIT_K; i++)
                odd |= (line[i] & 0x7f80) == 0x7f80;
        }
    return odd;
}

/* The rows that see it get what the tiles would have given them. */
static void give_odd_value(const struct attend *a, int key, size_t i, uint16_t bits)
{
    for (int r = 0; r < a->n_row; r++)
        if (key < a->sees[r]) {
            const uint16_t *p = PROB_TILE(a, r / TILE_ROW, key / UNIT_K) + r % TILE_ROW * UNIT_K;
            a->out->acc[(size_t)r * a->pad + i] += bf16_to_float(p[key % UNIT_K]) * bf16_to_float(bits);
        }
}

/* A sum of values that goes on, or begins. */
#define VALUE_OPEN(tile, from)               \
    do {                                     \
        if (kt)                              \
            TILE_LOAD(tile, (from), stride); \
        else                                 \
            TILE_ZERO(tile);                 \
    } while (0)

/* H matrix tiles of rows from i on, with P tiles of values from c on, keys of n tiles from `kt` on. Tiles as
 * for scores. */
INLINE void value_walk(const struct attend *a, int i, size_t c, int kt, int n, const int H, const int P)
{
    const size_t line = TILE_LINE, stride = a->pad * sizeof(float);
    float *acc = a->out->acc + (size_t)(i * TILE_ROW) * a->pad + c * TILE_ROW;
    float *second = acc + TILE_ROW * a->pad;
    VALUE_OPEN(0, acc);
    if (P == 2)
        VALUE_OPEN(1, acc + TILE_ROW);
    if (H == 2)
        VALUE_OPEN(2, second);
    if (H == 2 && P == 2)
        VALUE_OPEN(3, second + TILE_ROW);
    for (int end = kt + n; kt < end; kt++) {
        TILE_LOAD(6, VALUE_TILE(a, c, kt), line);
        TILE_LOAD(4, PROB_TILE(a, i, kt), line);
        TILE_DPBF16(0, 4, 6);
        if (P == 2) {
            TILE_LOAD(7, VALUE_TILE(a, c + 1, kt), line);
            TILE_DPBF16(1, 4, 7);
        }
        TILE_ZERO(4);
        if (H == 2) {
            TILE_LOAD(5, PROB_TILE(a, i + 1, kt), line);
            TILE_DPBF16(2, 5, 6);
        }
        TILE_ZERO(6);
        if (H == 2 && P == 2)
            TILE_DPBF16(3, 5, 7);
        if (H == 2)
            TILE_ZERO(5);
        if (P == 2)
            TILE_ZERO(7);
    }
    TILE_STORE(0, acc, stride);
    if (P == 2)
        TILE_STORE(1, acc + TILE_ROW, stride);
    if (H == 2)
        TILE_STORE(2, second, stride);
    if (H == 2 && P == 2)
        TILE_STORE(3, second + TILE_ROW, stride);
}

static void value_tiles(const struct attend *a, int i, size_t c, int kt, int n)
{
    bool two = c + 1 < a->n_c;
    if (i + 1 < a->n_tile && two)
        value_walk(a, i, c, kt, n, 2, 2);
    else if (i + 1 < a->n_tile)
        value_walk(a, i, c, kt, n, 2, 1);
    else if (two)
        value_walk(a, i, c, kt, n, 1, 2);
    else
        value_walk(a, i, c, kt, n, 1, 1);
}

static void value_split(const struct attend *a)
{
    int n_kt = (a->n_key + UNIT_K - 1) / UNIT_K;
    for (int kt = 0; kt < n_kt; kt += VALUE_TILES)
        for (int i = 0; i < a->n_tile; i += 2)
            for (size_t c = 0; c < a->n_c; c += 2)
                value_tiles(a, i, c, kt, n_kt - kt < VALUE_TILES ? n_kt - kt : VALUE_TILES);
}

#endif
