// The library named by CUDA_INJECTION64_PATH: the driver loads it into any program that uses CUDA and calls
// InitializeInjection. It subscribes to the driver's launch functions through CUPTI and records launches (record.h).
//
// - Programs link cudart statically, so nothing above the driver API can be intercepted by name; the driver API can.
// - The runtime (CUDA >= 12) passes a CUkernel where CUfunction is declared: every question is asked of both.
// - The driver's functions are taken from the libcuda that is already loaded; nothing links against it, and what an older
//   driver lacks is a null pointer.
// - Launches are serialised while one is being recorded: other threads wait in their enter callback.
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>

#include <fstream>
#include <set>

#include "record.h"

namespace {

using cuda_agent::capture::Launch;
using cuda_agent::capture::Parameters;
using cuda_agent::capture::recorder;

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
// cuda.h maps names to their current versions (cuMemcpyDtoH is cuMemcpyDtoH_v2), which both uses below expand.
#define DRIVER(name) decltype(&::name) name##_ = reinterpret_cast<decltype(&::name)>(symbol(TEXT(name)))

struct Driver {
    static void* symbol(const char* name) {
        static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        return library ? dlsym(library, name) : nullptr;
    }

    DRIVER(cuCtxSynchronize);
    DRIVER(cuCtxGetDevice);
    DRIVER(cuDeviceGetName);
    DRIVER(cuMemcpyDtoH);
    DRIVER(cuMemGetAddressRange);
    DRIVER(cuStreamIsCapturing);
    DRIVER(cuThreadExchangeStreamCaptureMode);
    DRIVER(cuGetErrorName);
    DRIVER(cuModuleGetGlobal);
    DRIVER(cuFuncGetModule);
    // Newer than the oldest headers we build against, so their types are written out.
    using GetName = CUresult (*)(const char**, void*);
    using GetParam = CUresult (*)(void*, std::size_t, std::size_t*, std::size_t*);
    using GetLibrary = CUresult (*)(void**, void*);
    using GetGlobal = CUresult (*)(CUdeviceptr*, std::size_t*, void*, const char*);
    GetName kernel_name = reinterpret_cast<GetName>(symbol("cuKernelGetName"));
    GetName function_name = reinterpret_cast<GetName>(symbol("cuFuncGetName"));
    GetParam kernel_param = reinterpret_cast<GetParam>(symbol("cuKernelGetParamInfo"));
    GetParam function_param = reinterpret_cast<GetParam>(symbol("cuFuncGetParamInfo"));
    GetLibrary kernel_library = reinterpret_cast<GetLibrary>(symbol("cuKernelGetLibrary"));
    GetGlobal library_global = reinterpret_cast<GetGlobal>(symbol("cuLibraryGetGlobal"));

    bool usable() const { return cuCtxSynchronize_ && cuMemcpyDtoH_ && cuMemGetAddressRange_; }
};

Driver& driver() {
    static Driver instance;
    return instance;
}

std::string error_name(CUresult code) {
    const char* name = nullptr;
    if (driver().cuGetErrorName_ && driver().cuGetErrorName_(code, &name) == CUDA_SUCCESS && name) return name;
    return "error " + std::to_string(code);
}

// One launch as the five driver functions describe it.
struct Call {
    void* function;
    unsigned grid[3], block[3];
    unsigned shared;
    CUstream stream;
    void** params;
    void** extra;
    std::string refusal;  // why this launch cannot be replayed, known before its data is looked at
};

struct ModuleVariable {
    std::string name;
    CUdeviceptr address;
    std::vector<unsigned char> before;
};

// What one thread carries from the enter callback to the exit callback.
struct Pending {
    bool inside = false;  // our own driver calls must not be recorded
    bool active = false;
    std::unique_lock<std::mutex> hold;
    Launch launch;
    std::vector<ModuleVariable> variables;
};

thread_local Pending pending;
// Kept from a recorded launch's enter to its exit callback, so that no other launch changes memory under the snapshot.
std::mutex launching;

// Snapshots are legal while another thread captures a stream only in relaxed mode.
class Relaxed {
   public:
    Relaxed() { exchange(); }
    ~Relaxed() { exchange(); }
    Relaxed(const Relaxed&) = delete;
    Relaxed& operator=(const Relaxed&) = delete;

   private:
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
    void exchange() {
        if (driver().cuThreadExchangeStreamCaptureMode_) driver().cuThreadExchangeStreamCaptureMode_(&mode_);
    }
};

bool resolve(std::uint64_t word, std::uint64_t& base, std::uint64_t& size) {
    CUdeviceptr start = 0;
    std::size_t bytes = 0;
    if (driver().cuMemGetAddressRange_(&start, &bytes, static_cast<CUdeviceptr>(word)) != CUDA_SUCCESS) return false;
    base = start;
    size = bytes;
    return bytes != 0;
}

bool read(std::uint64_t address, void* host, std::size_t bytes) {
    return driver().cuMemcpyDtoH_(host, static_cast<CUdeviceptr>(address), bytes) == CUDA_SUCCESS;
}

std::string device_name() {
    static std::map<CUdevice, std::string> names;
    CUdevice device = 0;
    if (!driver().cuCtxGetDevice_ || driver().cuCtxGetDevice_(&device) != CUDA_SUCCESS) return "";
    auto found = names.find(device);
    if (found == names.end()) {
        char text[256] = "";
        if (driver().cuDeviceGetName_) driver().cuDeviceGetName_(text, sizeof text, device);
        found = names.emplace(device, text).first;
    }
    return found->second;
}

// What a function is called, and which of the driver's functions tells its parameters (null: none does).
struct Identity {
    std::string name;
    Driver::GetParam info;
};

Identity identify(void* function, const char* symbol) {
    const char* name = nullptr;
    if (driver().kernel_name && driver().kernel_name(&name, function) == CUDA_SUCCESS && name)
        return {name, driver().kernel_param};
    if (driver().function_name && driver().function_name(&name, function) == CUDA_SUCCESS && name)
        return {name, driver().function_param};
    return {symbol ? symbol : "", driver().function_param};
}

// Where a function's parameters lie in its parameter block.
struct Layout {
    std::string name;
    std::vector<std::pair<std::size_t, std::size_t>> slots;  // offset and size
};

// Fills `layout` unless it is this function's already; returns why it cannot. Every launch asks, so a known layout costs one
// question: a handle may have been freed and given to another kernel, which the name and the last parameter tell.
std::string find_layout(void* function, const Identity& identity, Layout& layout) {
    if (!identity.info) return "the driver is older than CUDA 12.4 and does not tell argument layouts";
    Relaxed relaxed;
    std::size_t offset = 0, size = 0;
    if (layout.name == identity.name && !layout.slots.empty() &&
        identity.info(function, layout.slots.size() - 1, &offset, &size) == CUDA_SUCCESS &&
        layout.slots.back() == std::make_pair(offset, size))
        return "";
    layout = {identity.name, {}};
    for (std::size_t i = 0;; ++i) {
        const CUresult code = identity.info(function, i, &offset, &size);
        if (code == CUDA_ERROR_INVALID_VALUE) return "";  // past the last parameter
        if (code != CUDA_SUCCESS) {
            layout = {};
            return "the driver does not tell its argument layout (" + error_name(code) + ")";
        }
        layout.slots.emplace_back(offset, size);
    }
}

// The argument bytes, without a copy: kernelParams holds one pointer a parameter, or `extra` one packed block. Returns why they
// cannot be told.
std::string find_arguments(const Call& call, const Identity& identity, Parameters& found) {
    static std::map<void*, Layout> layouts;  // by function; the caller holds `launching`
    Layout& layout = layouts[call.function];
    if (std::string trouble = find_layout(call.function, identity, layout); !trouble.empty()) return trouble;
    found.reserve(layout.slots.size());
    const unsigned char* packed = nullptr;
    for (void** item = call.extra; !call.params && item && *item != CU_LAUNCH_PARAM_END; item += 2)
        if (*item == CU_LAUNCH_PARAM_BUFFER_POINTER) packed = static_cast<const unsigned char*>(item[1]);
    for (std::size_t i = 0; i < layout.slots.size(); ++i) {
        const auto [offset, size] = layout.slots[i];
        const void* data = call.params ? call.params[i] : packed ? packed + offset : nullptr;
        if (!data) return "argument " + std::to_string(i) + " has no value";
        found.push_back({offset, size, data});
    }
    return "";
}

// Names of __constant__ and __device__ variables, one a line, collected from the sources by the Python side.
std::set<std::string> variable_names() {
    std::set<std::string> names;
    std::ifstream file(recorder().directory() + "/globals.txt");
    for (std::string line; std::getline(file, line);)
        if (!line.empty()) names.insert(line);
    return names;
}

std::string collect_variables(const Call& call, Launch& launch) {
    void* library = nullptr;
    CUmodule module = nullptr;
    const bool kernel = driver().kernel_library && driver().library_global &&
                        driver().kernel_library(&library, call.function) == CUDA_SUCCESS;
    if (!kernel && (!driver().cuFuncGetModule_ || !driver().cuModuleGetGlobal_ ||
                    driver().cuFuncGetModule_(&module, static_cast<CUfunction>(call.function)) != CUDA_SUCCESS))
        return "";
    static const std::set<std::string> names = variable_names();
    for (const auto& name : names) {
        CUdeviceptr address = 0;
        std::size_t size = 0;
        const CUresult code = kernel ? driver().library_global(&address, &size, library, name.c_str())
                                     : driver().cuModuleGetGlobal_(&address, &size, module, name.c_str());
        if (code != CUDA_SUCCESS || size == 0) continue;
        std::vector<unsigned char> data(size);
        if (!read(address, data.data(), size)) return "the module variable " + name + " could not be read";
        launch.add_global(name, data.data(), size);
        pending.variables.push_back({name, address, std::move(data)});
    }
    return "";
}

// A variable that the kernel changed is an output, which a replay does not compare: such a launch is not recorded.
std::string changed_variable() {
    for (const auto& variable : pending.variables) {
        std::vector<unsigned char> now(variable.before.size());
        if (!read(variable.address, now.data(), now.size())) return variable.name;
        if (now != variable.before) return variable.name;
    }
    return "";
}

bool is_capturing(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return driver().cuStreamIsCapturing_ && driver().cuStreamIsCapturing_(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void enter(const Call& call, const char* symbol) {
    std::unique_lock<std::mutex> hold(launching);
    const Identity identity = identify(call.function, symbol);
    Parameters parameters;
    std::string trouble = find_arguments(call, identity, parameters);
    Launch launch = recorder().begin(identity.name, call.grid, call.block, call.shared, device_name(),
                                     trouble.empty() ? &parameters : nullptr);
    if (!launch.wanted) return;
    if (is_capturing(call.stream)) {
        recorder().skip(launch, "it is being captured into a CUDA graph");
        return;
    }
    if (!call.refusal.empty()) {
        recorder().skip(launch, call.refusal);
        return;
    }
    Relaxed relaxed;
    if (const CUresult code = driver().cuCtxSynchronize_(); code != CUDA_SUCCESS) {
        recorder().skip(launch, "the device reports " + error_name(code) + " before this launch");
        return;
    }
    pending.variables.clear();
    if (trouble.empty()) {
        for (const auto& p : parameters) launch.add_arg(p.offset, p.data, p.size, resolve);
        trouble = collect_variables(call, launch);
    }
    if (!trouble.empty()) {
        recorder().skip(launch, trouble);
        return;
    }
    if (!recorder().before(launch, read, resolve)) return;
    pending.launch = std::move(launch);
    pending.active = true;
    pending.hold = std::move(hold);
}

void leave(CUresult result) {
    if (!pending.active) return;
    pending.active = false;
    std::unique_lock<std::mutex> hold = std::move(pending.hold);
    Relaxed relaxed;
    if (result == CUDA_SUCCESS) result = driver().cuCtxSynchronize_();
    if (result != CUDA_SUCCESS) {
        recorder().skip(pending.launch, "the launch failed: " + error_name(result));
        return;
    }
    const std::string changed = changed_variable();
    if (!changed.empty())
        recorder().skip(pending.launch, "it writes the module variable " + changed + ", which a replay does not compare");
    else
        recorder().finish(pending.launch, read);
}

template <class P>
Call from_flat(const P* p, void** extra) {
    return {reinterpret_cast<void*>(p->f),
            {p->gridDimX, p->gridDimY, p->gridDimZ},
            {p->blockDimX, p->blockDimY, p->blockDimZ},
            p->sharedMemBytes,
            p->hStream,
            p->kernelParams,
            extra,
            ""};
}

Call from_config(const cuLaunchKernelEx_params* p) {
    const CUlaunchConfig& c = *p->config;
    Call call{reinterpret_cast<void*>(p->f),
              {c.gridDimX, c.gridDimY, c.gridDimZ},
              {c.blockDimX, c.blockDimY, c.blockDimZ},
              c.sharedMemBytes,
              c.hStream,
              p->kernelParams,
              p->extra,
              ""};
    for (unsigned i = 0; i < c.numAttrs; ++i) {
        const CUlaunchAttribute& attribute = c.attrs[i];
        if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && attribute.value.cooperative)
            call.refusal = "it is a cooperative launch (grid-wide barriers cannot be replayed)";
        if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
            attribute.value.clusterDim.x * attribute.value.clusterDim.y * attribute.value.clusterDim.z > 1)
            call.refusal = "it is launched with thread block clusters (not replayed)";
    }
    return call;
}

Call describe(CUpti_CallbackId id, const void* params) {
    switch (id) {
        case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel:
        case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz: {
            const auto* p = static_cast<const cuLaunchKernel_params*>(params);
            return from_flat(p, p->extra);
        }
        case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx:
        case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz:
            return from_config(static_cast<const cuLaunchKernelEx_params*>(params));
        default: {
            Call call = from_flat(static_cast<const cuLaunchCooperativeKernel_params*>(params), nullptr);
            call.refusal = "it is a cooperative launch (grid-wide barriers cannot be replayed)";
            return call;
        }
    }
}

bool is_graph(CUpti_CallbackId id) {
    return id == CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch || id == CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz;
}

void CUPTIAPI on_call(void*, CUpti_CallbackDomain, CUpti_CallbackId id, const void* data) {
    if (pending.inside) return;
    const auto* info = static_cast<const CUpti_CallbackData*>(data);
    pending.inside = true;
    try {
        if (is_graph(id))
            recorder().note("the program launches CUDA graphs: kernels inside a graph are not captured");
        else if (info->callbackSite == CUPTI_API_ENTER)
            enter(describe(id, info->functionParams), info->symbolName);
        else
            leave(info->functionReturnValue ? *static_cast<const CUresult*>(info->functionReturnValue) : CUDA_SUCCESS);
    } catch (const std::exception& error) {
        // The person's program must not die of the recorder's trouble (out of host memory, say); the record says it instead.
        recorder().note(std::string("the recorder failed on a launch: ") + error.what());
        pending.active = false;
        if (pending.hold.owns_lock()) pending.hold.unlock();
    }
    pending.inside = false;
}

int start() {
    if (!recorder().enabled()) return 1;
    if (!driver().usable()) {
        recorder().note("the CUDA driver lacks functions that capture needs: install a driver of CUDA 12.4 or newer");
        return 1;
    }
    CUpti_SubscriberHandle subscriber;
    const CUptiResult code = cuptiSubscribe(&subscriber, on_call, nullptr);
    if (code != CUPTI_SUCCESS) {
        const char* text = nullptr;
        cuptiGetResultString(code, &text);
        recorder().note(std::string("CUPTI refused the subscription (") + (text ? text : "unknown error") +
                        "): only one tool can use it in a process; run without ncu, nsys, compute-sanitizer or a profiler");
        return 1;
    }
    for (const CUpti_CallbackId id :
         {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
          CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
          CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz,
          CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch, CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz})
        cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
    return 1;
}

}  // namespace

// The driver's entry point: called once, before the program's first CUDA call returns. 1 means loaded.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
    static const int done = start();
    return done;
}
