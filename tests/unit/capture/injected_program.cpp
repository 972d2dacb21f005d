// A program whose launches go through the CUPTI injection, on a driver and a CUPTI that are not there: it calls the callbacks as
// CUPTI does. Prints how often a launch of a known function asked the driver for parameters.
#include <cuda.h>
#include <cupti.h>

#include <cstdio>
#include <cstring>

#include "fake_driver.h"

extern "C" int InitializeInjection();

static CUpti_CallbackFunc on_call;

extern "C" {
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *, CUpti_CallbackFunc callback, void *) {
    on_call = callback;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableCallback(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) { return CUPTI_SUCCESS; }
CUptiResult cuptiGetResultString(CUptiResult, const char **text) {
    *text = "";
    return CUPTI_SUCCESS;
}
}

static void launch(FakeFunction &function, void **params, void **extra = nullptr) {
    cuLaunchKernel_params p{};
    p.f = reinterpret_cast<CUfunction>(&function);
    p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1;
    p.kernelParams = params;
    p.extra = extra;
    CUresult result = CUDA_SUCCESS;
    CUpti_CallbackData data{};
    data.functionParams = &p;
    data.functionReturnValue = &result;
    data.symbolName = function.name;
    for (const auto site : {CUPTI_API_ENTER, CUPTI_API_EXIT}) {
        data.callbackSite = site;
        on_call(nullptr, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, &data);
    }
}

int main() {
    InitializeInjection();
    FakeFunction step{"_Z4stepPfii", true, {8, 4, 4}};
    FakeFunction packed{"_Z6packedPfii", false, {8, 4, 4}};
    for (int i = 0; i < 5; ++i) {
        unsigned char *x = fake_memory;
        int width = 8, stride = i < 3 ? 1 : i;
        void *params[] = {&x, &width, &stride};
        const long before = fake_questions;
        launch(step, params);
        if (i > 0) std::printf("%ld\n", fake_questions - before);

        unsigned char block[16];
        std::memcpy(block, &x, 8);
        std::memcpy(block + 8, &stride, 4);
        std::memcpy(block + 12, &width, 4);
        std::size_t size = sizeof block;
        void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, block, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
        launch(packed, nullptr, extra);
    }
    // A handle that was freed and given to another function: with fewer parameters, of another name, then of the same name.
    int width = 8;
    void *one[] = {&width};
    step = {"_Z5otheri", true, {4}};
    launch(step, one);
    FakeFunction fused{"fused", false, {8, 4, 4}};
    unsigned char *x = fake_memory;
    void *three[] = {&x, &width, &width};
    launch(fused, three);
    fused.sizes = {4};
    launch(fused, one);
    FakeFunction none{"_Z4nonev", true, {}};
    launch(none, nullptr);
    launch(none, nullptr);
    FakeFunction missing{"_Z7missingi", true, {4}};
    launch(missing, nullptr);
}
