// Opens the emulated driver and NVRTC as a program does, and runs small kernels.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cuda.hpp"
#include "gpu/shapes.hpp"

namespace {

void* open_or_end(const char* name) {
  void* const library = dlopen((std::string(MR_EMULATOR_FOLDER "/") + name).c_str(), RTLD_NOW);
  if (!library) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  return library;
}

template <class F>
F* load(const char* name) {
  static void* const driver = open_or_end("libcuda.so.1");
  static void* const nvrtc = open_or_end("libnvrtc.so.13");
  void* const f = dlsym(std::strncmp(name, "nvrtc", 5) == 0 ? nvrtc : driver, name);
  if (!f) {
    std::fprintf(stderr, "no %s\n", name);
    std::abort();
  }
  return reinterpret_cast<F*>(f);
}

#define MR_CALL(name, ...) const auto name = load<int(__VA_ARGS__)>(#name)
#define MR_CALL_AS(name, symbol, ...) const auto name = load<int(__VA_ARGS__)>(#symbol)

MR_CALL(cuInit, unsigned);
MR_CALL(cuDriverGetVersion, int*);
MR_CALL(cuDeviceGetCount, int*);
MR_CALL(cuDeviceGet, CUdevice*, int);
MR_CALL(cuDeviceGetAttribute, int*, int, CUdevice);
MR_CALL_AS(cuDeviceGetUuid, cuDeviceGetUuid_v2, CUuuid*, CUdevice);
MR_CALL_AS(cuCtxCreate, cuCtxCreate_v4, CUcontext*, void*, unsigned, CUdevice);
MR_CALL_AS(cuCtxDestroy, cuCtxDestroy_v2, CUcontext);
MR_CALL(cuCtxSetCurrent, CUcontext);
MR_CALL(cuCtxGetCurrent, CUcontext*);
MR_CALL_AS(cuCtxPushCurrent, cuCtxPushCurrent_v2, CUcontext);
MR_CALL_AS(cuCtxPopCurrent, cuCtxPopCurrent_v2, CUcontext*);
MR_CALL(cuCtxSynchronize, void);
MR_CALL(cuDevicePrimaryCtxRetain, CUcontext*, CUdevice);
MR_CALL(cuDevicePrimaryCtxRelease, CUdevice);
MR_CALL(cuStreamCreate, CUstream*, unsigned);
MR_CALL_AS(cuStreamDestroy, cuStreamDestroy_v2, CUstream);
MR_CALL(cuStreamSynchronize, CUstream);
MR_CALL(cuStreamQuery, CUstream);
MR_CALL(cuStreamWaitEvent, CUstream, CUevent, unsigned);
MR_CALL_AS(cuMemGetInfo, cuMemGetInfo_v2, size_t*, size_t*);
MR_CALL_AS(cuMemAlloc, cuMemAlloc_v2, CUdeviceptr*, size_t);
MR_CALL_AS(cuMemFree, cuMemFree_v2, CUdeviceptr);
MR_CALL(cuMemHostAlloc, void**, size_t, unsigned);
MR_CALL(cuMemFreeHost, void*);
MR_CALL(cuMemsetD8Async, CUdeviceptr, unsigned char, size_t, CUstream);
MR_CALL(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, size_t, CUstream);
MR_CALL_AS(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, CUdeviceptr, const void*, size_t, CUstream);
MR_CALL_AS(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, void*, CUdeviceptr, size_t, CUstream);
MR_CALL(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
        unsigned, CUstream, void**, void**);
MR_CALL(cuLaunchKernelEx, const CUlaunchConfig*, CUfunction, void**, void**);
MR_CALL(cuLaunchHostFunc, CUstream, CUhostFn, void*);
MR_CALL(cuFuncSetAttribute, CUfunction, int, int);
MR_CALL(cuFuncGetAttribute, int*, int, CUfunction);
MR_CALL(cuModuleLoadData, CUmodule*, const void*);
MR_CALL(cuModuleGetFunction, CUfunction*, CUmodule, const char*);
MR_CALL(cuModuleUnload, CUmodule);
MR_CALL(cuEventCreate, CUevent*, unsigned);
MR_CALL_AS(cuEventDestroy, cuEventDestroy_v2, CUevent);
MR_CALL(cuEventRecord, CUevent, CUstream);
MR_CALL(cuEventSynchronize, CUevent);
MR_CALL_AS(cuEventElapsedTime, cuEventElapsedTime_v2, float*, CUevent, CUevent);
MR_CALL(cuGetErrorName, CUresult, const char**);
MR_CALL(cuGetErrorString, CUresult, const char**);
MR_CALL(cuMemGetAllocationGranularity, size_t*, const CUmemAllocationProp*, int);
MR_CALL(cuMemAddressReserve, CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long);
MR_CALL(cuMemAddressFree, CUdeviceptr, size_t);
MR_CALL(cuMemCreate, CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
        unsigned long long);
MR_CALL(cuMemRelease, CUmemGenericAllocationHandle);
MR_CALL(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
MR_CALL(cuMemUnmap, CUdeviceptr, size_t);
MR_CALL(cuMemSetAccess, CUdeviceptr, size_t, const CUmemAccessDesc*, size_t);
MR_CALL_AS(cuStreamBeginCapture, cuStreamBeginCapture_v2, CUstream, int);
MR_CALL(cuStreamEndCapture, CUstream, CUgraph*);
MR_CALL(cuGraphInstantiateWithFlags, CUgraphExec*, CUgraph, unsigned long long);
MR_CALL(cuGraphLaunch, CUgraphExec, CUstream);
MR_CALL(cuGraphDestroy, CUgraph);
MR_CALL(cuGraphExecDestroy, CUgraphExec);
MR_CALL(nvrtcVersion, int*, int*);
MR_CALL(nvrtcCreateProgram, void**, const char*, const char*, int, const char* const*,
        const char* const*);
MR_CALL(nvrtcCompileProgram, void*, int, const char* const*);
MR_CALL(nvrtcGetPTXSize, void*, size_t*);
MR_CALL(nvrtcGetPTX, void*, char*);
MR_CALL(nvrtcGetCUBINSize, void*, size_t*);
MR_CALL(nvrtcGetProgramLogSize, void*, size_t*);
MR_CALL(nvrtcGetProgramLog, void*, char*);
MR_CALL(nvrtcDestroyProgram, void**);

std::string file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

struct Compiled {
  int result = 0;
  std::string ptx, log;
};

// The real ptx.hpp is passed, as the host passes it; the emulated NVRTC replaces it.
Compiled compile(const std::string& source, std::vector<const char*> options = {},
                 std::map<std::string, std::string> headers = {}) {
  headers.emplace("ptx.hpp", file(MR_KERNELS "/cuda/device/ptx.hpp"));
  options.push_back("--gpu-architecture=compute_90");
  options.push_back("--std=c++20");
  options.push_back("-default-device");
  options.push_back("--fmad=false");
  std::vector<const char*> names, texts;
  for (const auto& [name, text] : headers) {
    names.push_back(name.c_str());
    texts.push_back(text.c_str());
  }
  Compiled compiled;
  void* program = nullptr;
  EXPECT_EQ(nvrtcCreateProgram(&program, source.c_str(), "test.cu", static_cast<int>(names.size()),
                               texts.data(), names.data()),
            0);
  compiled.result = nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
  size_t bytes = 0;
  EXPECT_EQ(nvrtcGetProgramLogSize(program, &bytes), 0);
  compiled.log.resize(bytes);
  EXPECT_EQ(nvrtcGetProgramLog(program, compiled.log.data()), 0);
  compiled.log.resize(bytes - 1);
  if (compiled.result == 0) {
    EXPECT_EQ(nvrtcGetPTXSize(program, &bytes), 0);
    compiled.ptx.resize(bytes);
    EXPECT_EQ(nvrtcGetPTX(program, compiled.ptx.data()), 0);
  }
  EXPECT_EQ(nvrtcDestroyProgram(&program), 0);
  return compiled;
}

const char kTypes[] = R"(
using uint8_t = unsigned char; using int8_t = signed char; using uint16_t = unsigned short;
using uint32_t = unsigned int; using int32_t = int; using int64_t = long; using uint64_t = unsigned long;
#define MR_INLINE __forceinline__
#include "ptx.hpp"
)";

class Emulator : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuInit(0), 0);
    ASSERT_EQ(cuCtxCreate(&context, nullptr, 0, 0), 0);
    ASSERT_EQ(cuStreamCreate(&stream, 1), 0);
  }
  void TearDown() override {
    EXPECT_EQ(cuCtxSetCurrent(context), 0);
    EXPECT_EQ(cuCtxDestroy(context), 0);
  }

  CUfunction kernel(const std::string& source, const char* name,
                    std::vector<const char*> options = {}) {
    const Compiled compiled = compile(kTypes + source, std::move(options));
    EXPECT_EQ(compiled.result, 0) << compiled.log;
    CUmodule module = nullptr;
    EXPECT_EQ(cuModuleLoadData(&module, compiled.ptx.c_str()), 0);
    CUfunction function = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&function, module, name), 0);
    return function;
  }
  template <class... A>
  int launch(CUfunction function, unsigned grid, unsigned block, unsigned shared, A... arguments) {
    void* pointers[] = {&arguments..., nullptr};
    return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, pointers, nullptr);
  }
  CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr at = 0;
    EXPECT_EQ(cuMemAlloc(&at, bytes), 0);
    return at;
  }
  template <class T>
  CUdeviceptr upload(const std::vector<T>& values) {
    const CUdeviceptr at = allocate(values.size() * sizeof(T));
    EXPECT_EQ(cuMemcpyHtoDAsync(at, values.data(), values.size() * sizeof(T), stream), 0);
    return at;
  }
  template <class T>
  std::vector<T> download(CUdeviceptr at, size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(cuMemcpyDtoHAsync(values.data(), at, count * sizeof(T), stream), 0);
    EXPECT_EQ(cuStreamSynchronize(stream), 0);
    return values;
  }

  CUcontext context = nullptr;
  CUstream stream = nullptr;
};
using EmulatorDeathTest = Emulator;

std::mt19937 random_bits(1);
std::vector<float> random_floats(size_t count) {
  std::vector<float> out(count);
  for (float& x : out) x = std::normal_distribution<float>()(random_bits);
  return out;
}
float bf16_to_float(uint16_t x) {
  const uint32_t bits = uint32_t{x} << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
uint16_t float_to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float f16_to_float(uint16_t x) {
  const int exponent = x >> 10 & 31, fraction = x & 0x3ff;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(fraction), -24)
                              : std::ldexp(1 + static_cast<float>(fraction) / 1024, exponent - 15);
  return x & 0x8000 ? -magnitude : magnitude;
}

// ---- Plain kernels

const char kAdd[] = R"(
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
extern "C" __global__ void write(float* p, int64_t at) { p[at] = 1; }
extern "C" __global__ void fail(int* p, int zero) { p[0] = 1 / zero; }
extern "C" __global__ void trap() { __trap(); }
)";

TEST_F(Emulator, AddsVectors) {
  const auto a = random_floats(1000), b = random_floats(1000);
  const auto da = upload(a), db = upload(b), dc = allocate(4000);
  const CUfunction add = kernel(kAdd, "add");
  ASSERT_EQ(launch(add, 8, 128, 0, da, db, dc, 1000), 0);
  const auto c = download<float>(dc, 1000);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(c[i], a[i] + b[i]);
  for (CUdeviceptr p : {da, db, dc}) EXPECT_EQ(cuMemFree(p), 0);
}

TEST_F(Emulator, IndexesThreeDimensions) {
  const CUfunction f = kernel(R"(
extern "C" __global__ void index(int* out) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
      threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z + 1000 * blockIdx.z;
})",
                              "index");
  auto out = allocate(2 * 3 * 4 * 5 * 3 * 2 * 4);
  void* arguments[] = {&out};
  ASSERT_EQ(cuLaunchKernel(f, 2, 3, 4, 5, 3, 2, 0, stream, arguments, nullptr), 0);
  const auto values = download<int>(out, 2 * 3 * 4 * 30);
  EXPECT_EQ(values.back(), 4 + 20 + 100 + 3000);
  EXPECT_EQ(values[0], 0);
  EXPECT_EQ(values[30 + 17], 2 + 0 + 100);
}

const char kHalfWarps[] = R"(
extern "C" __global__ void reduce(const float* in, float* out, int* first) {
  const unsigned mask = 0xffffu << (threadIdx.x % 32 / 16 * 16);
  float x = in[threadIdx.x];
  for (int by = 8; by > 0; by /= 2) x += __shfl_xor_sync(mask, x, by, 16);
  // The halves may go different ways.
  if (threadIdx.x % 32 < 16) x = __shfl_sync(mask, x, 3, 16) + 1;
  out[threadIdx.x] = x;
  first[threadIdx.x] = __shfl_sync(mask, (int)threadIdx.x, 5, 16);
}
extern "C" __global__ void across(int* out) {
  const int lane = threadIdx.x;
  out[lane] = __shfl_up_sync(0xffffffffu, lane, 3, 8);
  out[32 + lane] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
  out[64 + lane] = __shfl_xor_sync(0xffffffffu, lane, 12, 8);
  out[96 + lane] = __shfl_sync(0xffffffffu, lane, -1);
  out[128 + lane] = __ballot_sync(0xffffffffu, lane % 3 == 0);
  const unsigned long wide = __shfl_sync(0xffffffffu, 0x100000000ul * lane, 7);
  out[160 + lane] = wide >> 32;
})";

TEST_F(Emulator, ShufflesHalfWarps) {
  const auto in = random_floats(64);
  const auto din = upload(in), out = allocate(256), first = allocate(256);
  ASSERT_EQ(launch(kernel(kHalfWarps, "reduce"), 1, 64, 0, din, out, first), 0);
  const auto sums = download<float>(out, 64);
  const auto firsts = download<int>(first, 64);
  for (int half = 0; half < 4; ++half) {
    float x[16];
    std::copy_n(&in[half * 16], 16, x);
    for (int by = 8; by > 0; by /= 2) {
      float y[16];
      for (int i = 0; i < 16; ++i) y[i] = x[i] + x[i ^ by];
      std::copy_n(y, 16, x);
    }
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(sums[half * 16 + i], x[0] + (half % 2 == 0 ? 1 : 0));
      EXPECT_EQ(firsts[half * 16 + i], half * 16 + 5);
    }
  }
}

TEST_F(Emulator, ShufflesAcross) {
  const auto out = allocate(192 * 4);
  ASSERT_EQ(launch(kernel(kHalfWarps, "across"), 1, 32, 0, out), 0);
  const auto v = download<int>(out, 192);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(v[i], i % 8 < 3 ? i : i - 3);
    EXPECT_EQ(v[32 + i], i % 8 >= 5 ? i : i + 3);
    EXPECT_EQ(v[64 + i], (i ^ 12) > i / 8 * 8 + 7 ? i : i ^ 12);  // of later groups: its own
    EXPECT_EQ(v[96 + i], 31);
    EXPECT_EQ(v[128 + i], 0x49249249);
    EXPECT_EQ(v[160 + i], 7);
  }
}

const char kShared[] = R"(
template <int N> __forceinline__ int sum(int x) {
  __shared__ int parts[N];
  parts[threadIdx.x] = x;
  __syncthreads();
  int all = 0;
  for (int i = 0; i < N; ++i) all += parts[i];
  __syncthreads();
  return all;
}
extern "C" __global__ void reverse(const int* in, int* out, int n) {
  MR_DYNAMIC_SHARED(int, cells);
  for (int i = threadIdx.x; i < n; i += blockDim.x) cells[i] = in[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = cells[n - 1 - i];
}
extern "C" __global__ void plain(int* out) {
  extern __shared__ float4 cells[];
  int* words = reinterpret_cast<int*>(cells);
  words[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = words[blockDim.x - 1 - threadIdx.x] + sum<64>(1) + sum<64>(threadIdx.x);
}
extern "C" __global__ void fresh(unsigned* out) {
  __shared__ unsigned one;
  MR_DYNAMIC_SHARED(unsigned, many);
  out[2 * blockIdx.x] = one;
  out[2 * blockIdx.x + 1] = many[0];
  one = many[0] = 1;
}
extern "C" __global__ void overrun(int at) {
  MR_DYNAMIC_SHARED(int, cells);
  cells[at] = 1;
})";

TEST_F(Emulator, LimitsDynamicSharedMemory) {
  constexpr int kCount = 16 << 10;  // 64 KiB
  std::vector<int> in(kCount);
  for (int i = 0; i < kCount; ++i) in[i] = i * i;
  const auto din = upload(in), dout = allocate(kCount * 4);
  const CUfunction f = kernel(kShared, "reverse");
  EXPECT_EQ(launch(f, 1, 256, 64 << 10, din, dout, kCount), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncSetAttribute(f, 8, (227 << 10) + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncSetAttribute(f, 8, 227 << 10), 0);
  int value = 0;
  EXPECT_EQ(cuFuncGetAttribute(&value, 8, f), 0);
  EXPECT_EQ(value, 227 << 10);
  ASSERT_EQ(launch(f, 1, 256, 64 << 10, din, dout, kCount), 0);
  const auto out = download<int>(dout, kCount);
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(out[i], in[kCount - 1 - i]);
}

TEST_F(Emulator, HasStaticSharedMemory) {
  const auto out = allocate(256);
  ASSERT_EQ(launch(kernel(kShared, "plain"), 1, 64, 256, out), 0);
  const auto v = download<int>(out, 64);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(v[i], 63 - i + 64 + 2016);
}

TEST_F(Emulator, FillsSharedMemoryOfEveryBlock) {
  const auto out = allocate(24);
  ASSERT_EQ(launch(kernel(kShared, "fresh"), 3, 1, 4, out), 0);
  EXPECT_EQ(download<uint32_t>(out, 6), std::vector<uint32_t>(6, 0xffffffffu));
}

TEST_F(Emulator, FindsOverrunsOfSharedMemory) {
  EXPECT_EQ(launch(kernel(kShared, "overrun"), 1, 1, 64, 15), 0);
  EXPECT_EQ(launch(kernel(kShared, "overrun"), 1, 1, 64, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
}

// ---- Products. Fragments are written as the PTX manual's formulas, element by element.

const char kMultiply[] = R"(
extern "C" __global__ void multiply16(const uint16_t* a, const uint16_t* b, float* c) {
  const int g = threadIdx.x >> 2, t = threadIdx.x % 4;
  uint16_t fa[8], fb[4];
  for (int i = 0; i < 8; ++i) {
    const int row = i < 2 || (i >= 4 && i < 6) ? g : g + 8;
    const int column = t * 2 + (i & 1) + (i < 4 ? 0 : 8);
    fa[i] = a[row * 16 + column];
  }
  for (int i = 0; i < 4; ++i) fb[i] = b[(t * 2 + (i & 1) + (i < 2 ? 0 : 8)) * 8 + g];
  uint32_t wa[4];
  for (int i = 0; i < 4; ++i) wa[i] = fa[2 * i] | (uint32_t)fa[2 * i + 1] << 16;
  float fc[4];
  for (int i = 0; i < 4; ++i) fc[i] = c[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)];
  mr_ptx::multiply(fc, wa, fb[0] | (uint32_t)fb[1] << 16, fb[2] | (uint32_t)fb[3] << 16);
  for (int i = 0; i < 4; ++i) c[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)] = fc[i];
}
extern "C" __global__ void multiply8(const uint8_t* a, const uint8_t* b, int32_t* c) {
  const int g = threadIdx.x >> 2, t = threadIdx.x % 4;
  uint32_t wa[4] = {}, wb[2] = {};
  for (int i = 0; i < 16; ++i) {
    const int row = i < 4 || (i >= 8 && i < 12) ? g : g + 8;
    const int column = t * 4 + (i & 3) + (i < 8 ? 0 : 16);
    wa[i / 4] |= (uint32_t)a[row * 32 + column] << (i % 4 * 8);
  }
  for (int i = 0; i < 8; ++i) {
    wb[i / 4] |= (uint32_t)b[(t * 4 + (i & 3) + (i < 4 ? 0 : 16)) * 8 + g] << (i % 4 * 8);
  }
  int32_t fc[4];
  for (int i = 0; i < 4; ++i) fc[i] = c[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)];
  mr_ptx::multiply(fc, wa, wb[0], wb[1]);
  for (int i = 0; i < 4; ++i) c[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)] = fc[i];
}
extern "C" __global__ void pairs(const float* in, uint32_t* out, float* powers) {
  for (int i = 0; i < 8; ++i) {
    out[i] = mr_ptx::pair_of(in[i], in[(i + 1) % 8]);
    powers[i] = mr_ptx::exp2(in[i]);
  }
}
extern "C" __global__ void convert(const float* in, uint16_t* halves, float* out, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    halves[i] = mr_ptx::half_of(in[i]);
    out[i] = mr_ptx::float_of(halves[i]);
  }
})";

TEST_F(Emulator, MultipliesOperands) {
  for (const bool bf16 : {true, false}) {
    const CUfunction f = kernel(kMultiply, "multiply16", {bf16 ? "-DMR_BF16=1" : "-DMR_BF16=0"});
    for (int repeat = 0; repeat < 10; ++repeat) {
      std::vector<uint16_t> a(256), b(128);
      const auto number = [&](uint16_t x) { return bf16 ? bf16_to_float(x) : f16_to_float(x); };
      for (auto* m : {&a, &b}) {
        for (uint16_t& x : *m) {
          x = bf16 ? float_to_bf16(std::normal_distribution<float>()(random_bits))
                   // All magnitudes but NaNs and infinities, subnormal ones too.
                   : static_cast<uint16_t>(random_bits() & 0xbbff);
        }
      }
      auto c = random_floats(128);
      const auto da = upload(a), db = upload(b), dc = upload(c);
      ASSERT_EQ(launch(f, 1, 32, 0, da, db, dc), 0);
      const auto sums = download<float>(dc, 128);
      for (int m = 0; m < 16; ++m) {
        for (int n = 0; n < 8; ++n) {
          float sum = c[m * 8 + n];
          for (int k = 0; k < 16; ++k) {
            sum = std::fma(number(a[m * 16 + k]), number(b[k * 8 + n]), sum);
          }
          ASSERT_EQ(sums[m * 8 + n], sum) << m << " " << n;
        }
      }
    }
  }
}

TEST_F(Emulator, MultipliesBytes) {
  const CUfunction f = kernel(kMultiply, "multiply8");
  for (int repeat = 0; repeat < 10; ++repeat) {
    std::vector<uint8_t> a(512), b(256);
    for (uint8_t& x : a) x = repeat ? static_cast<uint8_t>(random_bits()) : 0x80;
    for (uint8_t& x : b) x = repeat ? static_cast<uint8_t>(random_bits()) : 0x80;
    std::vector<int32_t> c(128);
    for (int32_t& x : c) x = static_cast<int32_t>(random_bits());
    const auto da = upload(a), db = upload(b), dc = upload(c);
    ASSERT_EQ(launch(f, 1, 32, 0, da, db, dc), 0);
    const auto sums = download<int32_t>(dc, 128);
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 8; ++n) {
        uint32_t sum = static_cast<uint32_t>(c[m * 8 + n]);
        for (int k = 0; k < 32; ++k) {
          sum += static_cast<uint32_t>(static_cast<int8_t>(a[m * 32 + k]) *
                                       static_cast<int8_t>(b[k * 8 + n]));
        }
        ASSERT_EQ(sums[m * 8 + n], static_cast<int32_t>(sum)) << m << " " << n;
      }
    }
  }
}

TEST_F(Emulator, ConvertsHalves) {
  std::vector<float> in{0.0f,
                        -0.0f,
                        1.0f,
                        65504.0f,
                        65519.9f,
                        65520.0f,
                        1e30f,
                        -INFINITY,
                        5.9604645e-8f,
                        2.9802322e-8f,
                        2.98023224e-8f * 1.0001f,
                        6.1e-5f,
                        1.0009766f,
                        1.00048828125f,
                        1.00146484375f};
  const std::vector<uint16_t> expected{0, 0x8000, 0x3c00, 0x7bff, 0x7bff, 0x7c00, 0x7c00, 0xfc00,
                                       1, 0,      1,      0x03ff, 0x3c01, 0x3c00, 0x3c02};
  const auto din = upload(in), halves = allocate(in.size() * 2), out = allocate(in.size() * 4);
  ASSERT_EQ(
      launch(kernel(kMultiply, "convert"), 1, 32, 0, din, halves, out, static_cast<int>(in.size())),
      0);
  EXPECT_EQ(download<uint16_t>(halves, in.size()), expected);
  const auto back = download<float>(out, in.size());
  EXPECT_EQ(back[3], 65504.0f);
  EXPECT_EQ(back[5], INFINITY);
  EXPECT_EQ(back[8], 0x1p-24f);
  EXPECT_TRUE(std::signbit(back[1]));
}

TEST_F(Emulator, ConvertsPairs) {
  const auto in =
      upload(std::vector<float>{1, -2, 1.00390625f, 1.01171875f, -INFINITY, NAN, -126, -127});
  const auto out = allocate(32), powers = allocate(32);
  ASSERT_EQ(launch(kernel(kMultiply, "pairs", {"-DMR_BF16=1"}), 1, 1, 0, in, out, powers), 0);
  EXPECT_EQ(download<uint32_t>(out, 8),
            (std::vector<uint32_t>{0xc0003f80, 0x3f80c000, 0x3f823f80, 0xff803f82, 0x7fffff80,
                                   0xc2fc7fff, 0xc2fec2fc, 0x3f80c2fe}));
  const auto v = download<float>(powers, 8);
  EXPECT_EQ(v[0], 2);
  EXPECT_EQ(v[1], 0.25f);
  EXPECT_EQ(v[4], 0);
  EXPECT_EQ(v[6], 0x1p-126f);
  EXPECT_EQ(v[7], 0);  // denormals are 0
  ASSERT_EQ(launch(kernel(kMultiply, "pairs", {"-DMR_BF16=0"}), 1, 1, 0, in, out, powers), 0);
  EXPECT_EQ(download<uint32_t>(out, 1)[0], 0xc0003c00u);
}

// ---- Matrices from shared memory

const char kMatrices[] = R"(
extern "C" __global__ void load(uint32_t* out) {
  __shared__ float4 cells[4 * 8];
  uint16_t* numbers = reinterpret_cast<uint16_t*>(cells);
  for (int i = threadIdx.x; i < 256; i += 32) {
    numbers[i] = 1000 * (i / 64 + 1) + 10 * (i / 8 % 8) + i % 8;  // matrix, row, column
  }
  __syncthreads();
  uint32_t words[4];
  mr_ptx::load_matrices(words, cells + threadIdx.x);
  for (int i = 0; i < 4; ++i) out[i * 32 + threadIdx.x] = words[i];
  const uint32_t turned = mr_ptx::transposed(words[1]);
  mr_ptx::load_transposed(words, cells + threadIdx.x);
  for (int i = 0; i < 4; ++i) out[(4 + i) * 32 + threadIdx.x] = words[i];
  out[8 * 32 + threadIdx.x] = turned;
}
extern "C" __global__ void crooked() {
  __shared__ float4 cells[33];
  uint32_t words[4];
  mr_ptx::load_matrices(words, reinterpret_cast<char*>(cells) + 16 * threadIdx.x + 8);
}
extern "C" __global__ void elsewhere(float4* p) {
  uint32_t words[4];
  mr_ptx::load_matrices(words, p);
})";

TEST_F(Emulator, LoadsMatrices) {
  const auto out = allocate(9 * 32 * 4);
  ASSERT_EQ(launch(kernel(kMatrices, "load"), 1, 32, 0, out), 0);
  const auto words = download<uint32_t>(out, 9 * 32);
  const auto low = [&](int i, int lane) { return words[i * 32 + lane] & 0xffff; };
  const auto high = [&](int i, int lane) { return words[i * 32 + lane] >> 16; };
  // PTX ISA, ldmatrix: lane 0 has the first two numbers of row 0, lane 5 the third and fourth of
  // row 1, lane 31 the last two of row 7.
  EXPECT_EQ(low(0, 0), 1000u);
  EXPECT_EQ(high(0, 0), 1001u);
  EXPECT_EQ(low(0, 5), 1012u);
  EXPECT_EQ(high(0, 5), 1013u);
  EXPECT_EQ(low(2, 31), 3076u);
  EXPECT_EQ(high(2, 31), 3077u);
  EXPECT_EQ(low(3, 4), 4010u);
  // Transposed: lane 0 has the first two numbers of column 0, lane 5 the third and fourth of
  // column 1.
  EXPECT_EQ(low(4, 0), 1000u);
  EXPECT_EQ(high(4, 0), 1010u);
  EXPECT_EQ(low(4, 5), 1021u);
  EXPECT_EQ(high(4, 5), 1031u);
  EXPECT_EQ(low(6, 31), 3067u);
  EXPECT_EQ(high(6, 31), 3077u);
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < 4; ++m) {
      const unsigned first = 1000u * (m + 1), r = lane / 4, c = 2 * (lane % 4);
      EXPECT_EQ(low(m, lane), first + 10 * r + c);
      EXPECT_EQ(high(m, lane), first + 10 * r + c + 1);
      EXPECT_EQ(low(4 + m, lane), first + 10 * c + r);
      EXPECT_EQ(high(4 + m, lane), first + 10 * (c + 1) + r);
    }
    // movmatrix of what ldmatrix has loaded is what ldmatrix.trans loads.
    EXPECT_EQ(words[8 * 32 + lane], words[5 * 32 + lane]);
  }
}

// ---- Asynchronous copies

const char kCopies[] = R"(
extern "C" __global__ void copy(float4* in, float4* out, int waits, int change) {
  __shared__ float4 cells[3 * 32];
  mr_ptx::copy16(&cells[threadIdx.x], &in[threadIdx.x]);
  mr_ptx::commit_copies();
  mr_ptx::copy16(&cells[32 + threadIdx.x], &in[32 + threadIdx.x]);
  mr_ptx::copy16(&cells[64 + threadIdx.x], nullptr, false);
  mr_ptx::commit_copies();
  if (change) in[threadIdx.x].x = 7;
  if (waits == 1) mr_ptx::wait_copies<1>();
  if (waits == 2) mr_ptx::wait_copies<0>();
  for (int i = 0; i < 3; ++i) out[32 * i + threadIdx.x] = cells[32 * i + threadIdx.x];
}
extern "C" __global__ void crooked(const char* in) {
  __shared__ float4 cells[1];
  mr_ptx::copy16(cells, in + 8);
}
extern "C" __global__ void open(float4* in, float4* out) {
  __shared__ float4 cells[1];
  mr_ptx::copy16(cells, in);
  mr_ptx::wait_copies<0>();  // of a set that is not closed
  out[0] = cells[0];
}
extern "C" __global__ void once(const char* in, mr_ptx::Words4* out, int at) {
  out[0] = mr_ptx::load_once(in + at);
})";

TEST_F(Emulator, CopiesWhenWaitedFor) {
  const auto values = random_floats(256);
  const auto in = upload(values), out = allocate(96 * 16);
  const CUfunction f = kernel(kCopies, "copy");
  const auto is_copy = [&](const std::vector<float>& v, int set) {
    return std::memcmp(&v[set * 128], &values[set * 128], 512) == 0;
  };
  ASSERT_EQ(launch(f, 1, 32, 0, in, out, 2, 0), 0);
  auto v = download<float>(out, 384);
  EXPECT_TRUE(is_copy(v, 0));
  EXPECT_TRUE(is_copy(v, 1));
  for (int i = 256; i < 384; ++i) EXPECT_EQ(v[i], 0);

  ASSERT_EQ(launch(f, 1, 32, 0, in, out, 1, 0), 0);
  v = download<float>(out, 384);
  EXPECT_TRUE(is_copy(v, 0));
  for (int i = 128; i < 384; ++i) EXPECT_TRUE(std::isnan(v[i]));

  ASSERT_EQ(launch(f, 1, 32, 0, in, out, 0, 0), 0);
  v = download<float>(out, 384);
  for (int i = 0; i < 384; ++i) EXPECT_TRUE(std::isnan(v[i]));

  ASSERT_EQ(launch(f, 1, 32, 0, in, out, 2, 1), 0);  // of what is there at the wait
  EXPECT_EQ(download<float>(out, 384)[0], 7);

  ASSERT_EQ(launch(kernel(kCopies, "open"), 1, 1, 0, in, out), 0);
  EXPECT_TRUE(std::isnan(download<float>(out, 1)[0]));
}

TEST_F(EmulatorDeathTest, EndsForMisalignedAccesses) {
  const auto in = allocate(64), out = allocate(64);
  const CUfunction crooked = kernel(kCopies, "crooked"), once = kernel(kCopies, "once"),
                   matrices = kernel(kMatrices, "crooked"),
                   elsewhere = kernel(kMatrices, "elsewhere");
  EXPECT_DEATH(launch(crooked, 1, 1, 0, in),
               "kernel crooked.*cp.async from an address that is not");
  EXPECT_EQ(launch(once, 1, 1, 0, in, out, 16), 0);
  EXPECT_DEATH(launch(once, 1, 1, 0, in, out, 4), "kernel once.*a load of 16 bytes");
  EXPECT_DEATH(launch(matrices, 1, 32, 0), "ldmatrix of a row that is not aligned");
  EXPECT_DEATH(launch(elsewhere, 1, 32, 0, in), "not in shared memory");
}

// ---- Misuse of operations of a warp

const char kMisuse[] = R"(
extern "C" __global__ void half_there(int* out) {
  int x = threadIdx.x;
  if (threadIdx.x < 16) x = __shfl_sync(0xffffffffu, x, 0);
  out[threadIdx.x] = x;
}
extern "C" __global__ void half_gone(int* out) {
  if (threadIdx.x < 16) return;
  out[threadIdx.x] = __shfl_sync(0xffffffffu, threadIdx.x, 20);
}
extern "C" __global__ void two_ways(int* out) {
  int x = threadIdx.x;
  if (threadIdx.x < 16) {
    x = __shfl_sync(0xffffffffu, x, 0);
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = x;
}
extern "C" __global__ void two_operations(int* out) {
  int x = threadIdx.x;
  if (threadIdx.x < 16) {
    x = __shfl_sync(0xffffffffu, x, 0);
  } else {
    x = __shfl_xor_sync(0xffffffffu, x, 1);
  }
  out[threadIdx.x] = x;
}
extern "C" __global__ void not_in_mask(int* out) { out[0] = __shfl_sync(0xfffffffeu, 1, 5); }
extern "C" __global__ void from_outside(int* out) {
  if (threadIdx.x < 16) out[0] = __shfl_sync(0x0000ffffu, 1, 20);
}
extern "C" __global__ void exits(int* out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();  // those that have not exited
  out[threadIdx.x] = 1;
}
extern "C" __global__ void partial(float* out) {
  float c[4] = {}; uint32_t a[4] = {};
  if (threadIdx.x < 31) mr_ptx::multiply(c, a, 0, 0);
  out[0] = c[0];
}
extern "C" __global__ void reconverges(int* out) {
  int x = threadIdx.x;
  // Lanes of a pair meet in an operation of their own, before that of the warp.
  if (threadIdx.x < 2) x = __shfl_sync(3u, x + 10, 1);
  __syncwarp();
  out[threadIdx.x] = __shfl_sync(0xffffffffu, x, threadIdx.x ^ 1);
})";

TEST_F(EmulatorDeathTest, FindsDivergentOperations) {
  const auto out = allocate(1024);
  const auto dies = [&](const char* name, unsigned threads, const char* message) {
    const CUfunction f = kernel(kMisuse, name);
    EXPECT_DEATH(launch(f, 1, threads, 0, out), message) << name;
  };
  dies("half_there", 32,
       "kernel half_there, block \\(0, 0, 0\\): deadlock.*\n"
       ".*lanes 0 to 15: waits in __shfl_sync, mask 0xffffffff\n"
       ".*lanes 16 to 31: exited");
  dies("half_gone", 32,
       "deadlock.*\n.*lanes 0 to 15: exited\n.*lanes 16 to 31: waits in __shfl_sync");
  dies("two_ways", 64,
       "deadlock.*\n.*lanes 0 to 15: waits in __shfl_sync.*\n"
       ".*lanes 16 to 31: waits in __syncthreads");
  dies("two_operations", 32,
       "deadlock.*\n.*0 to 15: waits in __shfl_sync.*\n"
       ".*16 to 31: waits in __shfl_xor_sync");
  dies("not_in_mask", 32, "lane 0 of warp 0: a lane that is not in its own mask");
  dies("from_outside", 32, "a shuffle from a lane that is not in the mask, lane 0x14");
  dies("partial", 32, "0 to 30: waits in mma.*\n.*31 to 31: exited");
}

TEST_F(Emulator, AllowsDivergenceThatIsDefined) {
  const auto out = allocate(256);
  ASSERT_EQ(launch(kernel(kMisuse, "exits"), 1, 64, 0, out), 0);
  ASSERT_EQ(launch(kernel(kMisuse, "reconverges"), 1, 32, 0, out), 0);
  const auto v = download<int>(out, 32);
  EXPECT_EQ(v[0], 11);
  EXPECT_EQ(v[1], 11);
  EXPECT_EQ(v[2], 3);
}

// ---- Memory

TEST_F(Emulator, CountsMemory) {
  size_t before = 0, after = 0, total = 0;
  ASSERT_EQ(cuMemGetInfo(&before, &total), 0);
  EXPECT_EQ(total, size_t{2} << 30);
  const auto a = allocate(1000003);
  EXPECT_EQ(a % 256, 0u);
  EXPECT_EQ(cuMemGetInfo(&after, &total), 0);
  EXPECT_EQ(before - after, 1000003u);
  EXPECT_EQ(download<uint8_t>(a, 3), std::vector<uint8_t>(3, 0xcd));
  CUdeviceptr b = 0;
  EXPECT_EQ(cuMemAlloc(&b, after + 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc(&b, after), 0);
  EXPECT_EQ(cuMemFree(b), 0);
  EXPECT_EQ(cuMemFree(a), 0);
  EXPECT_EQ(cuMemGetInfo(&after, &total), 0);
  EXPECT_EQ(before, after);
  EXPECT_EQ(cuMemFree(a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(a + 256), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc(&b, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Emulator, FaultsForWrongAddresses) {
  const CUfunction f = kernel(kAdd, "write");
  const auto p = allocate(1024);
  EXPECT_EQ(launch(f, 1, 1, 0, p, int64_t{255}), 0);
  EXPECT_EQ(launch(f, 1, 1, 0, p, int64_t{256}), CUDA_ERROR_ILLEGAL_ADDRESS);
  // The context is of no use any more.
  EXPECT_EQ(launch(f, 1, 1, 0, p, int64_t{0}), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr other = 0;
  EXPECT_EQ(cuMemAlloc(&other, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  // A new one is.
  EXPECT_EQ(cuCtxDestroy(context), 0);
  SetUp();
  const CUfunction again = kernel(kAdd, "write");
  EXPECT_EQ(launch(again, 1, 1, 0, p, int64_t{0}), 0);
  EXPECT_EQ(cuMemFree(p), 0);
  EXPECT_EQ(launch(again, 1, 1, 0, p, int64_t{0}), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(Emulator, FaultsForHostMemory) {
  float host = 0;
  EXPECT_EQ(launch(kernel(kAdd, "write"), 1, 1, 0, &host, int64_t{0}), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(Emulator, FaultsForTraps) {
  EXPECT_EQ(launch(kernel(kAdd, "trap"), 1, 1, 0), CUDA_ERROR_ILLEGAL_INSTRUCTION);
}

TEST_F(Emulator, FaultsForStacksThatOverflow) {
  const CUfunction f = kernel(R"(
__attribute__((noinline)) int deep(volatile int* p, int n) {
  volatile int cells[64];
  cells[n % 64] = n;
  return n == 0 ? cells[0] : deep(p, n - 1) + cells[n % 64] + *p;
}
extern "C" __global__ void recurse(int* p, int n) { p[0] = 1; p[0] = deep(p, n); })",
                              "recurse");
  const auto p = allocate(4);
  EXPECT_EQ(launch(f, 1, 32, 0, p, 10), 0);
  EXPECT_EQ(launch(f, 1, 32, 0, p, 100000), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(EmulatorDeathTest, FindsWritesBesideAnAllocation) {
  const CUfunction f = kernel(kAdd, "write");
  const auto p = allocate(1000);
  EXPECT_EQ(launch(f, 1, 1, 0, p, int64_t{250}), 0);
  EXPECT_DEATH(cuMemFree(p), "a write after an allocation of 1000 bytes");
}

TEST_F(Emulator, MapsVirtualMemory) {
  const CUmemAllocationProp properties{1, 0, {1, 0}, nullptr, {}};
  const CUmemAccessDesc access{{1, 0}, 3};
  size_t granularity = 0, before = 0, after = 0, total = 0;
  ASSERT_EQ(cuMemGetAllocationGranularity(&granularity, &properties, 1), 0);
  EXPECT_EQ(granularity, size_t{2} << 20);
  ASSERT_EQ(cuMemGetInfo(&before, &total), 0);
  CUdeviceptr at = 0;
  EXPECT_EQ(cuMemAddressReserve(&at, granularity + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemAddressReserve(&at, size_t{64} << 30, 0, 0, 0), 0);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, 4096, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, size_t{3} << 30, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemCreate(&handle, 2 * granularity, &properties, 0), 0);
  EXPECT_EQ(cuMemsetD8Async(at, 1, 1, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(at + 4096, granularity, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(at, 4 * granularity, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(at, 2 * granularity, 0, handle + 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemSetAccess(at, 2 * granularity, &access, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemMap(at, 2 * granularity, 0, handle, 0), 0);
  EXPECT_EQ(cuMemMap(at, 2 * granularity, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8Async(at, 1, 1, stream), CUDA_ERROR_INVALID_VALUE);  // no access yet
  ASSERT_EQ(cuMemSetAccess(at, 2 * granularity, &access, 1), 0);
  EXPECT_EQ(cuMemRelease(handle), 0);  // the mapping keeps it
  ASSERT_EQ(cuMemGetInfo(&after, &total), 0);
  EXPECT_EQ(before - after, 2 * granularity);
  EXPECT_EQ(download<uint8_t>(at, 1)[0], 0xcd);
  EXPECT_EQ(cuMemsetD8Async(at, 5, 2 * granularity, stream), 0);
  EXPECT_EQ(cuMemsetD8Async(at, 5, 2 * granularity + 1, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(download<uint8_t>(at + 2 * granularity - 1, 1)[0], 5);

  const CUfunction f = kernel(kAdd, "write");
  EXPECT_EQ(launch(f, 1, 1, 0, at, int64_t{(4 << 20) / 4 - 1}), 0);
  EXPECT_EQ(cuMemUnmap(at, granularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(at + 2 * granularity, granularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(at, size_t{64} << 30), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(at, 2 * granularity), 0);
  EXPECT_EQ(cuMemUnmap(at, 2 * granularity), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemGetInfo(&after, &total), 0);
  EXPECT_EQ(before, after);
  EXPECT_EQ(cuMemAddressFree(at, granularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(f, 1, 1, 0, at, int64_t{0}), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuMemAddressFree(at, size_t{64} << 30), 0);
}

TEST_F(Emulator, AllocatesHostMemory) {
  void* host = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&host, 4000, 0), 0);
  const auto p = allocate(4000);
  std::memset(host, 9, 4000);
  EXPECT_EQ(cuMemcpyAsync(p, reinterpret_cast<CUdeviceptr>(host), 4000, stream), 0);
  EXPECT_EQ(download<uint8_t>(p, 4000), std::vector<uint8_t>(4000, 9));
  EXPECT_EQ(cuMemcpyAsync(p, reinterpret_cast<CUdeviceptr>(host), 4001, stream),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(host), host, 1, stream),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(reinterpret_cast<CUdeviceptr>(host)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeHost(host), 0);
}

// ---- Calls

TEST_F(Emulator, ChecksArguments) {
  const CUfunction f = kernel(kAdd, "add");
  const auto p = allocate(4);
  EXPECT_EQ(launch(f, 0, 32, 0, p, p, p, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(f, 1, 0, 0, p, p, p, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(f, 1, 1025, 0, p, p, p, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(f, 1, 1024, 0, p, p, p, 0), 0);
  EXPECT_EQ(launch(f, 1, 1, (48 << 10) + 1, p, p, p, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(nullptr, 1, 1, 0, p, p, p, 0), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuMemsetD8Async(p, 0, 5, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoDAsync(p, &p, 5, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncSetAttribute(f, 8, -1), CUDA_ERROR_INVALID_VALUE);

  const CUstream gone = stream;
  EXPECT_EQ(cuStreamDestroy(gone), 0);
  EXPECT_EQ(cuStreamDestroy(gone), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(launch(f, 1, 1, 0, p, p, p, 0), CUDA_ERROR_INVALID_HANDLE);
  stream = nullptr;
  EXPECT_EQ(launch(f, 1, 1, 0, p, p, p, 0), 0);

  CUdevice device = 0;
  EXPECT_EQ(cuDeviceGet(&device, 1), CUDA_ERROR_INVALID_DEVICE);
  int value = 0;
  EXPECT_EQ(cuDeviceGetAttribute(&value, 97, 0), 0);
  EXPECT_EQ(value, 227 << 10);
  EXPECT_EQ(cuDeviceGetAttribute(&value, 75, 0), 0);
  EXPECT_EQ(value, 9);
  const char* text = nullptr;
  EXPECT_EQ(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text), 0);
  EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(cuGetErrorString(12345, &text), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Emulator, NeedsACurrentContext) {
  const CUfunction f = kernel(kAdd, "add");
  CUcontext other = nullptr, popped = nullptr;
  EXPECT_EQ(cuCtxPopCurrent(&popped), 0);
  EXPECT_EQ(popped, context);
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAlloc(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
  std::thread([&] { EXPECT_EQ(cuMemAlloc(&p, 1), CUDA_ERROR_INVALID_CONTEXT); }).join();
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&other, 0), 0);
  EXPECT_EQ(cuCtxPushCurrent(other), 0);
  EXPECT_EQ(launch(f, 1, 1, 0, p, p, p, 0), CUDA_ERROR_INVALID_HANDLE);  // of another context
  EXPECT_EQ(cuCtxDestroy(other), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuDevicePrimaryCtxRelease(0), 0);
  EXPECT_EQ(cuMemAlloc(&p, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuCtxSetCurrent(reinterpret_cast<CUcontext>(1)), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(Emulator, ChecksModules) {
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoadData(&module, "//\n// Generated by NVIDIA NVVM Compiler\n.version 9.0\n"),
            CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  EXPECT_EQ(cuModuleLoadData(&module, "\177ELF"), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(cuModuleLoadData(&module, "//millrace-emulated 2 /none.so\n"),
            CUDA_ERROR_INVALID_IMAGE);
  const Compiled compiled = compile(std::string(kTypes) + kAdd);
  ASSERT_EQ(cuModuleLoadData(&module, compiled.ptx.c_str()), 0);
  CUfunction f = nullptr, again = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&f, module, "missing"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuModuleGetFunction(&f, module, "trap"), 0);
  EXPECT_EQ(cuModuleGetFunction(&again, module, "trap"), 0);
  EXPECT_EQ(f, again);
  EXPECT_EQ(cuModuleUnload(module), 0);
  EXPECT_EQ(launch(f, 1, 1, 0), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(EmulatorDeathTest, NeedsKernelsThatStartEarlyToWait) {
  const char source[] = R"(
extern "C" __global__ void waits(int* p) { mr_ptx::start_next(); mr_ptx::wait_for_previous(); p[0] = 1; }
extern "C" __global__ void does_not(int* p) { p[0] = 1; })";
  auto p = allocate(4);
  void* arguments[] = {&p};
  CUlaunchAttribute early{6, {}, {}};
  early.value.value = 1;
  const CUlaunchConfig config{1, 1, 1, 1, 1, 1, 0, stream, &early, 1};
  EXPECT_EQ(cuLaunchKernelEx(&config, kernel(source, "waits"), arguments, nullptr), 0);
  const CUfunction f = kernel(source, "does_not");
  EXPECT_DEATH(cuLaunchKernelEx(&config, f, arguments, nullptr),
               "kernel does_not: .*does not wait");
}

TEST_F(Emulator, KeepsLaunchBounds) {
  const CUfunction f = kernel(R"(
constexpr int kThreads = 64;
extern "C" __global__ void __launch_bounds__(kThreads * 2) bounded(int* p) { p[threadIdx.x] = 1; })",
                              "bounded");
  const auto p = allocate(1024);
  EXPECT_EQ(launch(f, 1, 128, 0, p), 0);
  EXPECT_EQ(launch(f, 1, 129, 0, p), CUDA_ERROR_INVALID_VALUE);
  int architecture = 0;
  EXPECT_EQ(cuFuncGetAttribute(&architecture, 5, f), 0);
  EXPECT_EQ(architecture, 90);
}

TEST_F(Emulator, ReportsErrorsOfTheCompiler) {
  Compiled compiled = compile("extern \"C\" __global__ void f() { missing(); }");
  EXPECT_EQ(compiled.result, 6);
  EXPECT_NE(compiled.log.find("'missing' was not declared"), std::string::npos) << compiled.log;
  EXPECT_NE(compiled.log.find("test.cu:1"), std::string::npos) << compiled.log;
  compiled = compile("#include <cstdint>\n");
  EXPECT_EQ(compiled.result, 6);
  compiled = compile("int x;", {"--no-such-option"});
  EXPECT_EQ(compiled.result, 5);
  compiled = compile("#include \"a/b.hpp\"\nstatic_assert(kOne == 1);", {"-DONE=1"},
                     {{"a/b.hpp", "constexpr int kOne = ONE;"}});
  EXPECT_EQ(compiled.result, 0) << compiled.log;
}

TEST_F(Emulator, CompilesTheSameAtOnce) {
  const std::string source = "extern \"C\" __global__ void f() {}  // " + std::to_string(getpid());
  std::vector<std::future<Compiled>> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(std::async(std::launch::async, [&] { return compile(source); }));
  }
  const std::string ptx = all[0].get().ptx;
  EXPECT_FALSE(ptx.empty());
  for (int i = 1; i < 4; ++i) EXPECT_EQ(all[i].get().ptx, ptx);
}

// ---- Streams

TEST_F(Emulator, RunsHostFunctionsInOrder) {
  static std::promise<void>* go;
  std::promise<void> promise;
  go = &promise;
  const auto p = allocate(4);
  EXPECT_EQ(cuMemsetD8Async(p, 1, 4, stream), 0);
  EXPECT_EQ(cuLaunchHostFunc(
                stream,
                [](void* result) {
                  go->get_future().wait();
                  *static_cast<int*>(result) = cuCtxSynchronize();  // is not allowed here
                },
                &promise),
            0);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuMemsetD8Async(p, 2, 4, stream), 0);
  CUstream other = nullptr;
  CUevent event = nullptr;
  EXPECT_EQ(cuStreamCreate(&other, 1), 0);
  EXPECT_EQ(cuEventCreate(&event, 2), 0);
  EXPECT_EQ(cuEventRecord(event, stream), 0);
  EXPECT_EQ(cuStreamWaitEvent(other, event, 0), 0);
  const auto q = allocate(4);
  EXPECT_EQ(cuMemcpyAsync(q, p, 4, other), 0);
  EXPECT_EQ(cuStreamQuery(other), CUDA_ERROR_NOT_READY);
  uint8_t now = 0;
  std::memcpy(&now, reinterpret_cast<const void*>(p), 1);
  EXPECT_EQ(now, 1);
  promise.set_value();
  EXPECT_EQ(cuStreamSynchronize(other), 0);
  EXPECT_EQ(download<uint8_t>(q, 1)[0], 2);
}

TEST_F(Emulator, TimesEvents) {
  CUevent first = nullptr, last = nullptr;
  ASSERT_EQ(cuEventCreate(&first, 0), 0);
  ASSERT_EQ(cuEventCreate(&last, 0), 0);
  float milliseconds = -1;
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, first, last), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventRecord(first, stream), 0);
  EXPECT_EQ(cuEventRecord(last, stream), 0);
  EXPECT_EQ(cuEventSynchronize(last), 0);
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, first, last), 0);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cuEventDestroy(first), 0);
  EXPECT_EQ(cuEventDestroy(first), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Emulator, CapturesGraphs) {
  const auto a = upload(std::vector<float>(4, 1)), b = upload(std::vector<float>(4, 2));
  const CUfunction add = kernel(kAdd, "add");
  ASSERT_EQ(cuStreamBeginCapture(stream, 0), 0);
  EXPECT_EQ(launch(add, 1, 4, 0, a, b, a, 4), 0);
  EXPECT_EQ(launch(add, 1, 4, 0, a, b, b, 4), 0);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), 0);
  EXPECT_EQ(download<float>(a, 1)[0], 1);  // nothing has run
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&executable, graph, 0), 0);
  EXPECT_EQ(cuGraphDestroy(graph), 0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(cuGraphLaunch(executable, stream), 0);
  EXPECT_EQ(download<float>(a, 1)[0], 8);
  EXPECT_EQ(download<float>(b, 1)[0], 13);
  EXPECT_EQ(cuGraphExecDestroy(executable), 0);
  EXPECT_EQ(cuGraphLaunch(executable, stream), CUDA_ERROR_INVALID_VALUE);

  ASSERT_EQ(cuStreamBeginCapture(stream, 0), 0);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(launch(add, 1, 4, 0, a, b, a, 4), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  ASSERT_EQ(cuStreamBeginCapture(stream, 0), 0);
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAlloc(&p, 1), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  // Another stream joins, and has to be joined.
  for (const bool joined : {false, true}) {
    CUstream other = nullptr;
    CUevent fork = nullptr, join = nullptr;
    ASSERT_EQ(cuStreamCreate(&other, 1), 0);
    ASSERT_EQ(cuEventCreate(&fork, 2), 0);
    ASSERT_EQ(cuEventCreate(&join, 2), 0);
    ASSERT_EQ(cuStreamBeginCapture(stream, 0), 0);
    EXPECT_EQ(cuEventRecord(fork, stream), 0);
    EXPECT_EQ(cuStreamWaitEvent(other, fork, 0), 0);
    EXPECT_EQ(cuMemsetD8Async(a, 0, 16, other), 0);
    EXPECT_EQ(cuEventRecord(join, other), 0);
    if (joined) {
      EXPECT_EQ(cuStreamWaitEvent(stream, join, 0), 0);
    }
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), joined ? 0 : CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  }
}

TEST_F(Emulator, RunsInManyThreads) {
  const CUfunction add = kernel(kAdd, "add"), reduce = kernel(kShared, "plain");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      ASSERT_EQ(cuCtxSetCurrent(context), 0);
      CUstream mine = nullptr;
      ASSERT_EQ(cuStreamCreate(&mine, 1), 0);
      CUdeviceptr p = 0;
      ASSERT_EQ(cuMemAlloc(&p, 1024), 0);
      int n = 64;
      void* add_arguments[] = {&p, &p, &p, &n};
      void* reduce_arguments[] = {&p};
      for (int i = 0; i < 50; ++i) {
        ASSERT_EQ(cuLaunchKernel(add, 1, 1, 1, 64, 1, 1, 0, mine, add_arguments, nullptr), 0);
        ASSERT_EQ(cuLaunchKernel(reduce, 1, 1, 1, 64, 1, 1, 256, mine, reduce_arguments, nullptr),
                  0);
      }
      int out[64] = {};
      ASSERT_EQ(cuMemcpyDtoHAsync(out, p, sizeof out, mine), 0);
      for (int i = 0; i < 64; ++i) EXPECT_EQ(out[i], 63 - i + 64 + 2016);
      EXPECT_EQ(cuMemFree(p), 0);
    });
  }
  for (auto& thread : threads) thread.join();
}

// ---- Millrace's kernels

// The device files as the host passes them.
std::map<std::string, std::string> device_files() {
  std::map<std::string, std::string> files;
  for (const char* folder : {MR_KERNELS "/gpu/device", MR_KERNELS "/cuda/device"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      files[entry.path().filename().string()] = file(entry.path().string());
    }
  }
  files["shapes.hpp"] = file(MR_KERNELS "/gpu/shapes.hpp");
  for (const char* name : {"sycl/sycl.hpp", "cstdint", "limits", "type_traits"}) {
    files[name] = "#include \"shim.hpp\"\n";
  }
  return files;
}

TEST_F(Emulator, RunsMillracesKernels) {
  namespace mr = millrace::gpu;
  const Compiled compiled = compile(
      "#include \"norm.cpp\"\n#include \"linear.cpp\"\n",
      {"-DMR_BF16=1", "-DMR_LANES=16", "-DMR_XMX=0", "-DMR_MOST_SLICES=16"}, device_files());
  ASSERT_EQ(compiled.result, 0) << compiled.log;
  CUmodule module = nullptr;
  CUfunction norm = nullptr, linear = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, compiled.ptx.c_str()), 0);
  ASSERT_EQ(cuModuleGetFunction(&norm, module, "mr_norm"), 0);
  ASSERT_EQ(cuModuleGetFunction(&linear, module, "mr_linear_1"), 0);

  constexpr int kRows = 3, kDepth = 40, kWidth = 50;
  const auto x = random_floats(kRows * kDepth), weight = random_floats(kDepth);
  const auto bias = random_floats(64);
  const auto dx = upload(x), dweight = upload(weight), dbias = upload(bias);
  const auto normed = allocate(kRows * kDepth * 2), out = allocate(kRows * kWidth * 4);
  mr::NormShape norm_shape{};
  norm_shape.width = norm_shape.stride = kDepth;
  norm_shape.groups = norm_shape.layer_norm = 1;
  norm_shape.eps = 1e-5f;
  ASSERT_EQ(launch(norm, kRows, mr::kNormItems, 0, dx, dweight, CUdeviceptr{0}, normed,
                   CUdeviceptr{0}, CUdeviceptr{0}, norm_shape),
            0);
  const auto rows = download<uint16_t>(normed, kRows * kDepth);
  for (int r = 0; r < kRows; ++r) {
    double mean = 0, square = 0;
    for (int i = 0; i < kDepth; ++i) mean += x[r * kDepth + i] / kDepth;
    for (int i = 0; i < kDepth; ++i) square += std::pow(x[r * kDepth + i] - mean, 2) / kDepth;
    for (int i = 0; i < kDepth; ++i) {
      const double y = (x[r * kDepth + i] - mean) / std::sqrt(square + 1e-5) * weight[i];
      EXPECT_NEAR(bf16_to_float(rows[r * kDepth + i]), y, std::abs(y) / 250 + 1e-6);
    }
  }

  // W in blocks of 16 columns by 16 along the sum: [column block][depth block][pair][lane].
  constexpr int kDepthBlocks = 3, kBlocks = 4, kSlices = 2;
  std::vector<uint16_t> w(kDepth * 64), packed(kBlocks * kDepthBlocks * 256);
  for (uint16_t& v : w) v = float_to_bf16(std::normal_distribution<float>()(random_bits));
  for (int k = 0; k < kDepth; ++k) {
    for (int n = 0; n < 64; ++n) {
      const int pair = k % 16 / 2,
                word = ((n / 16 * kDepthBlocks + k / 16) * 8 + pair) * 16 + n % 16;
      packed[2 * word + k % 2] = w[k * 64 + n];
    }
  }
  const auto dw = upload(packed);
  mr::LinearShape shape{};
  shape.rows = kRows;
  shape.depth = kDepth;
  shape.width = kWidth;
  shape.depth_blocks = kDepthBlocks;
  shape.slices = kSlices;
  shape.slice_blocks = 2;
  shape.bias = shape.out_f32 = 1;
  constexpr unsigned kShared = kSlices * mr::kColumnBlocks * 16 * 4;
  ASSERT_EQ(launch(linear, kRows * kBlocks / 2, kSlices * 16, kShared, normed, dw, dbias, out,
                   char{}, shape),
            0);
  const auto y = download<float>(out, kRows * kWidth);
  for (int r = 0; r < kRows; ++r) {
    for (int n = 0; n < kWidth; ++n) {
      float total = 0;
      for (int first = 0; first < kDepth; first += 32) {
        float sum = 0;
        for (int k = first; k < kDepth && k < first + 32; ++k) {
          sum = std::fma(bf16_to_float(rows[r * kDepth + k]), bf16_to_float(w[k * 64 + n]), sum);
        }
        total += sum;
      }
      EXPECT_EQ(y[r * kWidth + n], total + bias[n]) << r << " " << n;
    }
  }
}

// ---- Speed: --gtest_also_run_disabled_tests

const char kSpeed[] = R"(
extern "C" __global__ void shuffles(float* out, int n) {
  float x = threadIdx.x;
  for (int i = 0; i < n; ++i) x += __shfl_xor_sync(0xffffffffu, x, 1);
  out[threadIdx.x] = x;
}
extern "C" __global__ void halves(float* out, int n) {
  float x = threadIdx.x;
  const unsigned mask = 0xffffu << (threadIdx.x % 32 / 16 * 16);
  for (int i = 0; i < n; ++i) x += __shfl_xor_sync(mask, x, 1, 16);
  out[threadIdx.x] = x;
}
extern "C" __global__ void barriers(int n) {
  for (int i = 0; i < n; ++i) __syncthreads();
}
extern "C" __global__ void products(float* out, int n) {
  float c[4] = {}; uint32_t a[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
  for (int i = 0; i < n; ++i) mr_ptx::multiply(c, a, 0x3f803f80, 0x3f803f80);
  out[threadIdx.x] = c[0];
}
extern "C" __global__ void bytes(int* out, int n) {
  int c[4] = {}; uint32_t a[4] = {threadIdx.x, 1, 2, 3};
  for (int i = 0; i < n; ++i) mr_ptx::multiply(c, a, i, 3);
  out[threadIdx.x] = c[0];
}
extern "C" __global__ void matrices(uint32_t* out, int n) {
  __shared__ float4 cells[32];
  uint32_t words[4], x = 0;
  for (int i = 0; i < n; ++i) {
    mr_ptx::load_matrices(words, &cells[threadIdx.x % 32]);
    x += words[0];
  }
  out[threadIdx.x] = x;
}
extern "C" __global__ void nothing() {}
)";

double nanoseconds() {  // of this thread
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e9 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec);
}

TEST_F(Emulator, DISABLED_Speed) {
  const auto out = allocate(4096);
  const auto measure = [&](const char* what, double count, const std::function<int()>& f) {
    ASSERT_EQ(f(), 0);
    double least = 1e30;
    for (int i = 0; i < 5; ++i) {
      const double begin = nanoseconds();
      ASSERT_EQ(f(), 0);
      least = std::min(least, nanoseconds() - begin);
    }
    std::printf("%-40s %8.1f ns\n", what, least / count);
  };
  const std::vector<const char*> bf16{"-DMR_BF16=1"};
  constexpr int kCount = 10000;
  for (const unsigned threads : {32u, 256u, 1024u}) {
    const unsigned n = kCount * 32 / threads;
    const double warps = n * (threads / 32.0);
    std::printf("%u threads\n", threads);
    const auto one = [&](const char* name, const char* what, double count) {
      const CUfunction f = kernel(kSpeed, name, bf16);
      measure(what, count, [&] { return launch(f, 1, threads, 0, out, static_cast<int>(n)); });
    };
    one("shuffles", "shuffle of 32 lanes, per lane", warps * 32);
    one("halves", "shuffle of 16 lanes, per lane", warps * 32);
    one("products", "mma bf16, per warp", warps);
    one("bytes", "mma s8, per warp", warps);
    one("matrices", "ldmatrix, per warp", warps);
    const CUfunction barriers = kernel(kSpeed, "barriers", bf16);
    measure("__syncthreads, per thread", warps * 32,
            [&] { return launch(barriers, 1, threads, 0, static_cast<int>(n)); });
    const CUfunction nothing = kernel(kSpeed, "nothing", bf16);
    measure("launch of one block", 1000, [&] {
      int result = 0;
      for (int i = 0; i < 1000; ++i) result |= launch(nothing, 1, threads, 0);
      return result;
    });
    measure("block", 10000, [&] { return launch(nothing, 10000, threads, 0); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  setenv("XDG_CACHE_HOME", MR_EMULATOR_FOLDER "/cache", 1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
