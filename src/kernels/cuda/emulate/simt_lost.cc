/* A device that is lost, for tests. NYBBLE_SIMT_LOST names a file. As long as it is there, the device is gone
 * from the call on whose number, from 0, the file holds; it is back when the file is gone. */
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/emulate/simt_runtime.h"

bool simt_is_lost()
{
    static std::atomic<int> calls;
    const char *path = getenv("NYBBLE_SIMT_LOST");
    FILE *f = path ? fopen(path, "re") : nullptr;
    if (!f) {
        calls = 0;
        return false;
    }
    int from = 0;
    if (fscanf(f, "%d", &from) != 1)
        from = 0;
    fclose(f);
    return calls++ >= from;
}
