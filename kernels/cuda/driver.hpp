// The functions of the CUDA driver and of its compiler, NVRTC, that Millrace calls, as their documents have
// them. Both libraries are opened when first wanted: building takes no CUDA toolkit, and loading no GPU.
#ifndef MILLRACE_CUDA_DRIVER_HPP
#define MILLRACE_CUDA_DRIVER_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUmemGenericAllocationHandle = unsigned long long;

struct CUmemLocation {
  int type, id;
};
struct CUmemAllocationProp {
  int type, requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType, gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};
static_assert(sizeof(CUmemAllocationProp) == 32);
struct CUmemAccessDesc {
  CUmemLocation location;
  int flags;
};

struct CUlaunchAttribute {
  int id;
  union alignas(8) {
    int value;
    char bytes[64];
  };
};
static_assert(sizeof(CUlaunchAttribute) == 72);
struct CUlaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(CUlaunchConfig) == 56);

using nvrtcProgram = struct _nvrtcProgram*;

namespace millrace::gpu {

// Values of the driver's enumerations.
constexpr int kCudaOutOfMemory = 2;
constexpr int kCudaNoDevice = 100;
constexpr int kCudaInvalidImage = 200;
constexpr int kCudaNoBinaryForGpu = 209;
constexpr int kCudaInvalidPtx = 218;
constexpr int kCudaUnsupportedPtxVersion = 222;
constexpr int kCudaKernelErrors[] = {700, 719};  // the first and the last: what a kernel has done

// A function of the driver. A call that fails throws Error(MR_DEVICE) with the function's name and the error's.
template <class... Arguments>
struct CudaCall {
  const char* name;
  int (*address)(Arguments...) = nullptr;

  void operator()(Arguments... arguments) const;
};

// X(member, symbol, types of the arguments)
#define MILLRACE_CUDA_CALLS(X)                                                                    \
  X(init, "cuInit", unsigned)                                                                     \
  X(driver_version, "cuDriverGetVersion", int*)                                                   \
  X(error_name, "cuGetErrorName", int, const char**)                                              \
  X(error_string, "cuGetErrorString", int, const char**)                                          \
  X(device_count, "cuDeviceGetCount", int*)                                                       \
  X(device_get, "cuDeviceGet", CUdevice*, int)                                                    \
  X(device_name, "cuDeviceGetName", char*, int, CUdevice)                                         \
  X(device_attribute, "cuDeviceGetAttribute", int*, int, CUdevice)                                \
  X(device_total_memory, "cuDeviceTotalMem_v2", size_t*, CUdevice)                                \
  X(context_create, "cuCtxCreate_v2", CUcontext*, unsigned, CUdevice)                             \
  X(context_destroy, "cuCtxDestroy_v2", CUcontext)                                                \
  X(context_pop, "cuCtxPopCurrent_v2", CUcontext*)                                                \
  X(context_set_current, "cuCtxSetCurrent", CUcontext)                                            \
  X(memory_info, "cuMemGetInfo_v2", size_t*, size_t*)                                             \
  X(memory_allocate, "cuMemAlloc_v2", CUdeviceptr*, size_t)                                       \
  X(memory_free, "cuMemFree_v2", CUdeviceptr)                                                     \
  X(host_allocate, "cuMemHostAlloc", void**, size_t, unsigned)                                    \
  X(host_free, "cuMemFreeHost", void*)                                                            \
  X(fill, "cuMemsetD8Async", CUdeviceptr, unsigned char, size_t, CUstream)                        \
  X(copy, "cuMemcpyAsync", CUdeviceptr, CUdeviceptr, size_t, CUstream)                            \
  X(pointer_attribute, "cuPointerGetAttribute", void*, int, CUdeviceptr)                          \
  X(stream_create, "cuStreamCreate", CUstream*, unsigned)                                         \
  X(stream_destroy, "cuStreamDestroy_v2", CUstream)                                               \
  X(stream_synchronize, "cuStreamSynchronize", CUstream)                                          \
  X(event_create, "cuEventCreate", CUevent*, unsigned)                                            \
  X(event_destroy, "cuEventDestroy_v2", CUevent)                                                  \
  X(event_record, "cuEventRecord", CUevent, CUstream)                                             \
  X(event_synchronize, "cuEventSynchronize", CUevent)                                             \
  X(event_elapsed, "cuEventElapsedTime", float*, CUevent, CUevent)                                \
  X(module_load, "cuModuleLoadDataEx", CUmodule*, const void*, unsigned, int*, void**)            \
  X(module_function, "cuModuleGetFunction", CUfunction*, CUmodule, const char*)                   \
  X(function_set_attribute, "cuFuncSetAttribute", CUfunction, int, int)                           \
  X(function_attribute, "cuFuncGetAttribute", int*, int, CUfunction)                              \
  X(launch_kernel, "cuLaunchKernelEx", const CUlaunchConfig*, CUfunction, void**, void**)         \
  X(capture_begin, "cuStreamBeginCapture_v2", CUstream, int)                                      \
  X(capture_end, "cuStreamEndCapture", CUstream, CUgraph*)                                        \
  X(graph_instantiate, "cuGraphInstantiateWithFlags", CUgraphExec*, CUgraph, uint64_t)            \
  X(graph_destroy, "cuGraphDestroy", CUgraph)                                                     \
  X(graph_launch, "cuGraphLaunch", CUgraphExec, CUstream)                                         \
  X(graph_exec_destroy, "cuGraphExecDestroy", CUgraphExec)                                        \
  X(launch_host, "cuLaunchHostFunc", CUstream, void (*)(void*), void*)                            \
  X(virtual_granularity, "cuMemGetAllocationGranularity", size_t*, const CUmemAllocationProp*,    \
    int)                                                                                          \
  X(virtual_reserve, "cuMemAddressReserve", CUdeviceptr*, size_t, size_t, CUdeviceptr, uint64_t)  \
  X(virtual_free, "cuMemAddressFree", CUdeviceptr, size_t)                                        \
  X(virtual_create, "cuMemCreate", CUmemGenericAllocationHandle*, size_t,                         \
    const CUmemAllocationProp*, uint64_t)                                                         \
  X(virtual_release, "cuMemRelease", CUmemGenericAllocationHandle)                                \
  X(virtual_map, "cuMemMap", CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, uint64_t) \
  X(virtual_unmap, "cuMemUnmap", CUdeviceptr, size_t)                                             \
  X(virtual_set_access, "cuMemSetAccess", CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)

struct CudaDriver {
#define MILLRACE_CUDA_CALL(member, symbol, ...) CudaCall<__VA_ARGS__> member{symbol};
  MILLRACE_CUDA_CALLS(MILLRACE_CUDA_CALL)
#undef MILLRACE_CUDA_CALL

  int version = 0;      // 13000: CUDA 13.0
  std::string release;  // of the driver, "580.159.04"; empty where its file does not say it
  bool devices = true;  // false: the driver has found none
};

// Opens libcuda.so.1 and initializes it, once. Throws Error(MR_UNSUPPORTED) that says what is missing.
const CudaDriver& cuda();

// "cuMemFree_v2: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)"
std::string cuda_error(const char* call, int result);
[[noreturn]] void fail_cuda(const char* call, int result);

template <class... Arguments>
void CudaCall<Arguments...>::operator()(Arguments... arguments) const {
  if (const int result = address(arguments...); result != 0) fail_cuda(name, result);
}

struct Nvrtc {
  int major = 0, minor = 0;
  std::string path;

  const char* (*error)(int);
  int (*version)(int*, int*);
  int (*count_architectures)(int*);
  int (*architectures)(int*);
  int (*create)(nvrtcProgram*, const char* source, const char* name, int headers,
                const char* const* texts, const char* const* names);
  int (*destroy)(nvrtcProgram*);
  int (*compile)(nvrtcProgram, int options, const char* const*);
  int (*log_size)(nvrtcProgram, size_t*);
  int (*log)(nvrtcProgram, char*);
  int (*ptx_size)(nvrtcProgram, size_t*);
  int (*ptx)(nvrtcProgram, char*);
  int (*cubin_size)(nvrtcProgram, size_t*);
  int (*cubin)(nvrtcProgram, char*);
};

// Opens NVRTC, once: the newest one found that the driver understands. Throws Error(MR_UNSUPPORTED) that says
// where it was looked for and what to install.
const Nvrtc& nvrtc();

// The library at a path. Throws Error(MR_UNSUPPORTED).
Nvrtc open_nvrtc(const std::string& path);

}  // namespace millrace::gpu

#endif
