/* A safetensors file whose first byte of input chooses how much data follows the header. */
#include "checkpoint/safetensors.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The header alone, with a data part that is only claimed. */
static void parse_header(const uint8_t *data, size_t size, uint64_t data_bytes)
{
    struct safetensors st;
    struct nyb_err err;
    uint64_t end = 8 + (uint64_t)size;

    if (safetensors_parse(&st, (const char *)data, size, data_bytes, "fuzz", 0, &err) != NYB_OK)
        return;
    for (int i = 0; i < st.n_tensor; i++) { /* what every caller relies on */
        ASSERT(st.tensor[i].dtype < DTYPE_COUNT && st.tensor[i].n_dim <= CKPT_MAX_DIM);
        ASSERT(st.tensor[i].offset == end);
        end += st.tensor[i].bytes;
    }
    ASSERT(end == 8 + (uint64_t)size + data_bytes);
    safetensors_free(&st);
}

/* The bytes as a whole file. */
static void read_file(const uint8_t *data, size_t size)
{
    struct safetensors st;
    struct nyb_err err;
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    if (fd >= 0 && write(fd, data, size) == (ssize_t)size &&
        safetensors_read(&st, fd, "fuzz", size, 0, &err) == NYB_OK)
        safetensors_free(&st);
    if (fd >= 0)
        close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] & 0x80)
        read_file(data + 1, size - 1);
    else
        parse_header(data + 1, size - 1, data[0]);
    return 0;
}
