/* Streams, events, and graphs of what several streams record. What streams are asked for is done at once, in
 * the order in which it is asked for. A graph of several streams is replayed in another order that its events
 * allow from one time to the next: as it was recorded, then with the stream that it began on as far behind as
 * can be, then as far ahead. What lacks an event shows as another result. */
#include <chrono>
#include <map>
#include <new>
#include <vector>

#include "kernels/cuda/emulate/simt_stream.h"

struct simt_graph {
    struct piece {
        cudaStream_t stream;
        std::vector<size_t> after; /* pieces of other streams */
        std::function<cudaError_t()> work;
    };
    std::vector<piece> pieces;
    std::vector<cudaStream_t> joined; /* all but the one that it began on */
    cudaStream_t origin;
    uint64_t capture; /* of all of this process */
    unsigned n_launch;
};
struct simt_stream {
    simt_graph *recording;
    std::vector<size_t> after; /* that its next piece begins after */
};
struct simt_event {
    std::chrono::steady_clock::time_point at;
    uint64_t capture; /* 0: it was not recorded */
    simt_graph *graph;
    size_t piece;
};

static uint64_t n_capture;

cudaError_t simt::stream_do(cudaStream_t stream, std::function<cudaError_t()> work)
{
    if (!stream || !stream->recording)
        return result(work());
    stream->recording->pieces.push_back({stream, std::move(stream->after), std::move(work)});
    stream->after.clear();
    return cudaSuccess;
}

/* ---- streams and events ------------------------------------------------------------------------------ */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    *stream = new (std::nothrow) simt_stream();
    return simt::result(*stream ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return simt::result(stream && stream->recording ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}

cudaError_t cudaDeviceSynchronize()
{
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    *event = new (std::nothrow) simt_event();
    return simt::result(*event ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    return cudaEventCreate(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    simt_graph *graph = stream ? stream->recording : nullptr;
    event->graph = graph;
    event->capture = graph ? graph->capture : 0;
    event->piece = graph ? graph->pieces.size() : 0;
    return simt::stream_do(stream, [=] {
        event->at = std::chrono::steady_clock::now();
        return cudaSuccess;
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
    return cudaSuccess;
}

/* What was asked for before is done, unless it is recorded: then this stream is, too, from now on. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    const uint64_t own = stream->recording ? stream->recording->capture : 0;
    if (event->capture == 0 && own == 0)
        return cudaSuccess;
    if (event->capture == 0 || (own != 0 && own != event->capture))
        return simt::result(cudaErrorStreamCaptureIsolation);
    if (own == 0)
        event->graph->joined.push_back(stream);
    stream->recording = event->graph;
    stream->after.push_back(event->piece);
    return cudaSuccess;
}

/* ---- graphs ------------------------------------------------------------------------------------------ */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    if (stream->recording)
        return simt::result(cudaErrorInvalidValue);
    stream->recording = new (std::nothrow) simt_graph();
    if (!stream->recording)
        return simt::result(cudaErrorMemoryAllocation);
    stream->recording->origin = stream;
    stream->recording->capture = __atomic_add_fetch(&n_capture, 1, __ATOMIC_RELAXED);
    return cudaSuccess;
}

/* Whether the stream that recording began on has waited, by way of others or not, for all that others have
 * done. */
static bool is_joined(const simt_graph *g)
{
    std::vector<bool> seen(g->pieces.size(), false);
    std::vector<size_t> open = g->origin->after;
    std::map<cudaStream_t, size_t> last;
    for (size_t i = 0; i < g->pieces.size(); i++)
        last[g->pieces[i].stream] = i;
    for (size_t i = 0; i < g->pieces.size(); i++)
        if (g->pieces[i].stream == g->origin)
            open.insert(open.end(), g->pieces[i].after.begin(), g->pieces[i].after.end());
    while (!open.empty()) {
        const size_t at = open.back();
        open.pop_back();
        if (seen[at])
            continue;
        seen[at] = true;
        open.insert(open.end(), g->pieces[at].after.begin(), g->pieces[at].after.end());
    }
    for (const auto &one : last)
        if (one.first != g->origin && !seen[one.second])
            return false;
    return true;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    simt_graph *g = stream->recording;
    *graph = nullptr;
    if (!g || g->origin != stream)
        return simt::result(cudaErrorInvalidValue);
    const bool joined = is_joined(g);
    for (cudaStream_t s : g->joined) {
        s->recording = nullptr;
        s->after.clear();
    }
    stream->recording = nullptr;
    stream->after.clear();
    if (!joined) {
        delete g;
        return simt::result(cudaErrorStreamCaptureUnjoined);
    }
    *graph = g;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    *exec = new (std::nothrow) simt_graph(*graph);
    return simt::result(*exec ? cudaSuccess : cudaErrorMemoryAllocation);
}

/* Pieces in an order that all streams and events agree with, in which those of the preferred streams come as
 * early as they can: `others` prefers all but the one that it began on. */
static std::vector<size_t> order_of(const simt_graph *g, bool others)
{
    std::map<cudaStream_t, std::vector<size_t>> own;
    std::map<cudaStream_t, size_t> next;
    std::vector<bool> done(g->pieces.size(), false);
    std::vector<size_t> order;
    for (size_t i = 0; i < g->pieces.size(); i++)
        own[g->pieces[i].stream].push_back(i);
    while (order.size() < g->pieces.size()) {
        const size_t none = g->pieces.size();
        size_t best = none;
        for (const auto &lane : own) {
            if (next[lane.first] == lane.second.size())
                continue;
            const size_t at = lane.second[next[lane.first]];
            bool ready = true;
            for (size_t a : g->pieces[at].after)
                ready = ready && done[a];
            const bool preferred = (lane.first != g->origin) == others;
            if (ready && (best == none || preferred))
                best = at;
        }
        done[best] = true; /* one is always ready: what a piece waits for was recorded before it */
        next[g->pieces[best].stream]++;
        order.push_back(best);
    }
    return order;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    const unsigned turn = exec->n_launch++ % 3;
    std::vector<size_t> order;
    if (turn > 0)
        order = order_of(exec, turn == 1);
    for (size_t i = 0; i < exec->pieces.size(); i++) {
        const cudaError_t e = simt::stream_do(stream, exec->pieces[turn > 0 ? order[i] : i].work);
        if (e != cudaSuccess)
            return e;
    }
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}
