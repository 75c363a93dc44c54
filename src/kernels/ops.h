/* The variants of every operator, and the table that says which CPU level uses which.
 * A new variant is one file, one declaration and one cell of OPS_TABLE. */
#ifndef NYB_KERNELS_OPS_H
#define NYB_KERNELS_OPS_H

#include "base/cpu.h"
#include "kernels/kernels.h"

/* level, rmsnorm, qkv, qkv_head, attention, router, combine */
#define OPS_TABLE(X)                                                                                      \
    X(CPU_SCALAR, norm_ref, qkv_ref, qkv_head_ref, attention_ref, router_ref, combine_ref)                \
    X(CPU_AVX2, norm_avx2, qkv_avx2, qkv_head_avx2, attention_avx2, router_ref, combine_avx2)             \
    X(CPU_AVX512, norm_avx512, qkv_avx512, qkv_head_avx512, attention_avx512, router_ref, combine_avx512) \
    X(CPU_AMX, norm_avx512, qkv_avx512, qkv_head_avx512, attention_amx, router_ref, combine_avx512)

#define OPS_DECLARE(suffix)                                                                            \
    void norm_##suffix(struct pool *pool, const struct norm_args *a);                                  \
    void qkv_##suffix(struct pool *pool, const struct qkv_args *a);                                    \
    void qkv_head_##suffix(const struct qkv_args *a, int tok, int kv_head);                            \
    void attention_##suffix(struct pool *pool, struct arena *scratch, const struct attention_args *a); \
    void combine_##suffix(struct pool *pool, const struct combine_args *a);
OPS_DECLARE(ref)
OPS_DECLARE(avx2)
OPS_DECLARE(avx512)
#undef OPS_DECLARE
void attention_amx(struct pool *pool, struct arena *scratch, const struct attention_args *a);
void router_ref(struct pool *pool, const struct router_args *a);

/* The table of one level, whatever is in force: for tests, which must not ask for more than cpu_detect(). */
const struct kernels *kernels_at(enum cpu_level level);

#endif
