// Error codes: names, texts, the thread's last error and the device's sticky one.
#include <atomic>

#include "host.h"

namespace {
thread_local cudaError_t last = cudaSuccess;
std::atomic<cudaError_t> device_error{cudaSuccess};

struct Text {
    cudaError_t code;
    const char *name, *text;
};

#define TEXT(code, text) {code, #code, text}
const Text kTexts[] = {
    TEXT(cudaSuccess, "no error"),
    TEXT(cudaErrorInvalidValue, "invalid argument"),
    TEXT(cudaErrorMemoryAllocation, "out of memory"),
    TEXT(cudaErrorInitializationError, "initialization error"),
    TEXT(cudaErrorCudartUnloading, "driver shutting down"),
    TEXT(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    TEXT(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    TEXT(cudaErrorInvalidSymbol, "invalid device symbol"),
    TEXT(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    TEXT(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    TEXT(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    TEXT(cudaErrorMissingConfiguration, "__global__ function call is not configured"),
    TEXT(cudaErrorInvalidDeviceFunction, "invalid device function"),
    TEXT(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    TEXT(cudaErrorInvalidDevice, "invalid device ordinal"),
    TEXT(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    TEXT(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    TEXT(cudaErrorNotReady, "device not ready"),
    TEXT(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    TEXT(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    TEXT(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    TEXT(cudaErrorAssert, "device-side assert triggered"),
    TEXT(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    TEXT(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    TEXT(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    TEXT(cudaErrorMisalignedAddress, "misaligned address"),
    TEXT(cudaErrorLaunchFailure, "unspecified launch failure"),
    TEXT(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    TEXT(cudaErrorNotSupported, "operation not supported"),
    TEXT(cudaErrorUnknown, "unknown error"),
};
}  // namespace

namespace cuemu::host {

cudaError_t fail(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}
cudaError_t sticky() { return device_error; }
void set_sticky(cudaError_t error) {
    device_error = error;
    last = error;
}
void clear_sticky() { device_error = last = cudaSuccess; }

}  // namespace cuemu::host

using namespace cuemu::host;

extern "C" {
cudaError_t cudaGetLastError(void) {
    const cudaError_t error = sticky() != cudaSuccess ? sticky() : last;
    last = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError(void) { return sticky() != cudaSuccess ? sticky() : last; }
const char *cudaGetErrorName(cudaError_t error) {
    for (const auto &t : kTexts)
        if (t.code == error) return t.name;
    return "unrecognized error code";
}
const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &t : kTexts)
        if (t.code == error) return t.text;
    return "unrecognized error code";
}
}
