/* Tensor element types as safetensors spells them. */
#ifndef NYB_CHECKPOINT_DTYPE_H
#define NYB_CHECKPOINT_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

#define DTYPE_TABLE(X) /* enum, spelling, bytes */ \
    X(BOOL, "BOOL", 1)                             \
    X(U8, "U8", 1)                                 \
    X(I8, "I8", 1)                                 \
    X(F8_E4M3, "F8_E4M3", 1)                       \
    X(F8_E5M2, "F8_E5M2", 1)                       \
    X(F8_E8M0, "F8_E8M0", 1)                       \
    X(I16, "I16", 2)                               \
    X(U16, "U16", 2)                               \
    X(F16, "F16", 2)                               \
    X(BF16, "BF16", 2)                             \
    X(I32, "I32", 4)                               \
    X(U32, "U32", 4)                               \
    X(F32, "F32", 4)                               \
    X(I64, "I64", 8)                               \
    X(U64, "U64", 8)                               \
    X(F64, "F64", 8)

enum dtype {
#define DTYPE_ROW(name, text, bytes) DTYPE_##name,
    DTYPE_TABLE(DTYPE_ROW)
#undef DTYPE_ROW
        DTYPE_COUNT
};

const char *dtype_name(enum dtype t);
size_t dtype_size(enum dtype t);
/* DTYPE_COUNT for a spelling that is not known. */
enum dtype dtype_parse(const char *text);

bool dtype_is_float(enum dtype t); /* F16, BF16, F32, F64 */
/* One little-endian element of such a type, as float. */
float dtype_to_float(enum dtype t, const void *element);

#endif
