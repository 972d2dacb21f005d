// Streams and events: everything has ended when a call returns, so a stream is a name and an event is a time.
#include <chrono>

#include "host.h"

struct CUstream_st {
    unsigned int flags;
};
struct CUevent_st {
    unsigned int flags;
    bool recorded;
    std::chrono::steady_clock::time_point at;
};

using namespace cuemu::host;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
    if (!stream) return fail(cudaErrorInvalidValue);
    *stream = new CUstream_st{flags};
    return sticky();
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return fail(cudaErrorInvalidResourceHandle);
    delete stream;
    return sticky();
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return sticky(); }
cudaError_t cudaStreamQuery(cudaStream_t) { return sticky(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned int) {
    return event ? sticky() : fail(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned int) {
    if (!callback) return fail(cudaErrorInvalidValue);
    callback(stream, sticky(), data);
    return sticky();
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void *data) {
    if (!function) return fail(cudaErrorInvalidValue);
    function(data);
    return sticky();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    if (!event) return fail(cudaErrorInvalidValue);
    *event = new CUevent_st{flags, false, {}};
    return sticky();
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
    if (!event) return fail(cudaErrorInvalidResourceHandle);
    event->at = std::chrono::steady_clock::now();
    event->recorded = true;
    return sticky();
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return event ? sticky() : fail(cudaErrorInvalidResourceHandle); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return event ? sticky() : fail(cudaErrorInvalidResourceHandle); }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    if (!milliseconds) return fail(cudaErrorInvalidValue);
    if (!start || !end || !start->recorded || !end->recorded || (start->flags | end->flags) & cudaEventDisableTiming)
        return fail(cudaErrorInvalidResourceHandle);
    *milliseconds = std::chrono::duration<float, std::milli>(end->at - start->at).count();
    return sticky();
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (!event) return fail(cudaErrorInvalidResourceHandle);
    delete event;
    return sticky();
}
}
