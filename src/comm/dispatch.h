/* Rows to the ranks that have their experts, and the experts' products back: the two exchanges of a
 * Mixture-of-Experts layer whose experts are shared out whole (expert parallelism).
 *
 * Messages are rank-major: each rank packs one for every other. A row goes once to each rank that has at
 * least one of its choices, as a record of the experts wanted there (int32, -1 padded) and the row itself, in
 * one of several encodings. Back come the products, fp32 and not yet weighted, one for each choice, in the
 * order in which they were asked for: the home rank weights and adds them in the order of choice, as one rank
 * would.
 *
 * Buffers are as large as the worst case needs, all rows on one rank, so that nothing asks how much is
 * coming. What does not fit a slot of the communicator travels in rounds of round_rows rows of each rank; all
 * ranks do as many rounds as the one with most rows needs. Ranks without rows take part.
 *
 * One flight is one micro-batch in one layer: send, receive, (compute,) reply, collect. It uses one channel.
 */
#ifndef NYB_COMM_DISPATCH_H
#define NYB_COMM_DISPATCH_H

#include "base/arena.h"
#include "comm/comm.h"

/* How a row travels: n a multiple of 16. Encodings other than fp32 lose something (docs/CLUSTER.md). */
struct dispatch_codec {
    const char *name;
    size_t (*bytes)(size_t n); /* a multiple of 4 */
    void (*encode)(uint8_t *to, const float *x, size_t n);
    void (*decode)(float *to, const uint8_t *from, size_t n);
};

/* Where a choice is computed: on which rank, and which of that rank's experts. */
struct dispatch_place {
    int16_t rank, slot;
};

struct dispatch {
    struct comm *comm;
    const struct dispatch_codec *codec;
    int hidden, top_k;
    size_t record_bytes;
    int round_rows; /* most rows of one rank that travel in one round */
};
/* False: not even one row fits a slot. */
bool dispatch_init(struct dispatch *d, struct comm *comm, const struct dispatch_codec *codec, int hidden,
                   int top_k);
/* Bytes of one rank's buffers for rows of each rank, both ways. */
size_t dispatch_worst_bytes(const struct dispatch *d, int rows);

struct dispatch_flight {
    const struct dispatch *d;
    struct pool *pool;
    struct arena *room; /* what is received lives here */
    int channel;
    /* this rank's rows */
    int n_row;
    int most_rows;                      /* of any rank: settles the number of rounds */
    int sum_rows;                       /* of all ranks: no more can come            */
    const float *x;                     /* (n_row, hidden)                           */
    const struct dispatch_place *place; /* (n_row, top_k)         */
    /* received: rows, and who wants which of this rank's experts for them */
    float *row;          /* (n_received, hidden)                                  */
    int32_t *pair_row;   /* (n_pair) index into row                               */
    int32_t *pair_slot;  /* (n_pair) this rank's expert                          */
    int32_t *round_pair; /* (n_round, ranks) pairs asked by each rank a round   */
    int n_received, n_pair;
    /* back again */
    float *product;          /* (n_row * top_k, hidden) */
    const float *part;       /* reply's arguments: rows of products, */
    const int32_t *part_row; /* (n_pair) and which is whose          */
    int replied;             /* pairs sent back so far */
};

void dispatch_send(struct dispatch_flight *f); /* after the members above "received" are set; never waits */
bool dispatch_receive(struct dispatch_flight *f);
/* part[part_row[i]] is the product of pair i. They must live until collect. Never waits. */
void dispatch_reply(struct dispatch_flight *f, const float *part, const int32_t *part_row);
/* product[i * top_k + s] is that of choice s of row i. */
bool dispatch_collect(struct dispatch_flight *f);

#endif
