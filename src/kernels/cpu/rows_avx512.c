/* The operators that are rows of plain arithmetic, compiled once more with this level's instructions: row.h
 * promises the same bits on every level. */
#define ROW_VARIANT(op) op##_avx512

#include "kernels/ref/norm.c"
#include "kernels/ref/qkv.c"
#include "kernels/ref/combine.c"
