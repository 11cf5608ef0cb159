// libcuda.so.1, emulated. Arguments are checked as the real driver checks them, as far as that is
// known, and more strictly where it says that a use is undefined.
#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda.hpp"
#include "machine.hpp"
#include "memory.hpp"
#include "stream.hpp"

#define EXPORT extern "C" MR_EMULATED_EXPORT

namespace mr_emulator {
namespace {

constexpr u64 kSharedDefault = 48 << 10, kSharedOptIn = 227 << 10;
constexpr int kMultiprocessors = 4;

// What the emulated NVRTC has compiled.
struct Library {
  void* handle = nullptr;
  std::mutex mutex;  // held by a grid, if there is static shared memory
  u64 static_begin = 0, static_end = 0;

  ~Library() {
    if (handle) dlclose(handle);
  }
};
struct Module {
  std::shared_ptr<Context> context;
  std::shared_ptr<Library> library;
  std::map<std::string, CUfunction> functions;
};
struct Function {
  std::shared_ptr<Context> context;
  std::shared_ptr<Library> library;
  const Kernel* kernel;
  u64 most_shared;  // dynamic
};

// Handles are numbers that are not used again, so that a stale one is found.
template <class T>
class Handles {
 public:
  void* add(std::shared_ptr<T> object) {
    static u64 next = 0x100000;
    void* const handle = reinterpret_cast<void*>(next += 16);
    objects_[handle] = std::move(object);
    return handle;
  }
  std::shared_ptr<T> find(const void* handle) const {
    const auto it = objects_.find(handle);
    return it == objects_.end() ? nullptr : it->second;
  }
  bool remove(const void* handle) { return objects_.erase(handle) != 0; }
  auto begin() const { return objects_.begin(); }
  auto end() const { return objects_.end(); }
  template <class F>
  void remove_if(F&& f) {
    std::erase_if(objects_, [&](const auto& entry) { return f(*entry.second); });
  }

 private:
  std::unordered_map<const void*, std::shared_ptr<T>> objects_;
};

long environment(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtol(text, nullptr, 0) : otherwise;
}

struct Driver {
  std::mutex mutex;
  bool initialized = false;
  const bool async = environment("MILLRACE_CUDA_EMULATOR_ASYNC", 0) != 0;
  const int devices = static_cast<int>(
      std::min<long>(environment("MILLRACE_CUDA_EMULATOR_DEVICES", 1), kMostDevices));
  Handles<Context> contexts;
  CUcontext primary[kMostDevices] = {};
  Handles<Stream> streams;
  Handles<Event> events;
  Handles<Module> modules;
  Handles<Function> functions;
  Handles<Graph> graphs, executables;
  std::vector<std::shared_ptr<Capture>> captures;
};
Driver& driver() {
  static auto& all = *new Driver;  // never freed: threads may outlive main
  return all;
}

thread_local std::vector<CUcontext> current;  // a stack; the last one is current
thread_local bool in_host_function = false;

using Lock = std::unique_lock<std::mutex>;

template <class F>
CUresult call(F&& f) {
  if (in_host_function) return CUDA_ERROR_NOT_PERMITTED;
  Driver& d = driver();
  Lock lock(d.mutex);
  if (!d.initialized) return CUDA_ERROR_NOT_INITIALIZED;
  return f(d, lock);
}

template <class F>
CUresult call_in_context(F&& f) {
  return call([&](Driver& d, Lock& lock) -> CUresult {
    if (current.empty() || !current.back()) return CUDA_ERROR_INVALID_CONTEXT;
    const std::shared_ptr<Context> context = d.contexts.find(current.back());
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (const CUresult error = context->error) return error;
    return f(d, lock, context);
  });
}

bool is_device(const Driver& d, CUdevice device) { return device >= 0 && device < d.devices; }

std::shared_ptr<Context> make_context(Driver& d, CUdevice device) {
  auto context = std::make_shared<Context>();
  context->device = device;
  context->legacy = std::make_shared<Stream>(context, 0, d.async);
  return context;
}

std::shared_ptr<Stream> find_stream(const Driver& d, const std::shared_ptr<Context>& context,
                                    CUstream stream) {
  if (reinterpret_cast<u64>(stream) <= 2) return context->legacy;
  return d.streams.find(stream);
}

std::vector<std::shared_ptr<Stream>> streams_of(const Driver& d,
                                                const std::shared_ptr<Context>& context) {
  std::vector<std::shared_ptr<Stream>> all{context->legacy};
  for (const auto& [handle, stream] : d.streams) {
    if (stream->context == context) all.push_back(stream);
  }
  return all;
}

void wait_for_all(Lock& lock, const std::vector<std::shared_ptr<Stream>>& streams) {
  lock.unlock();
  for (const auto& stream : streams) stream->wait();
  lock.lock();
}

// A call that a capture does not allow ends it.
CUresult refuse_in_capture(Driver& d) {
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : d.captures) {
    if (capture->mode == 0 ||
        (capture->mode == 1 && capture->thread == std::this_thread::get_id())) {
      capture->invalid = true;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return result;
}

// Submits to the stream, or adds to the graph that the stream is captured into. Unlocks.
CUresult enqueue(Driver& d, Lock& lock, const std::shared_ptr<Context>& context, CUstream handle,
                 Operation operation) {
  const auto stream = find_stream(d, context, handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->context != context) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream == context->legacy) {
    bool implicit = false;
    for (const auto& capture : d.captures) {
      if (capture->origin->context != context || capture->origin->flags & 1) continue;
      capture->invalid = true;
      implicit = true;
    }
    if (implicit) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (stream->capture) {
    if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    stream->capture->graph->operations.push_back(std::move(operation));
    ++stream->capture->parts[stream.get()].operations;
    return CUDA_SUCCESS;
  }
  lock.unlock();
  stream->submit(std::move(operation));
  return context->error;
}

// ---- Modules

constexpr char kMark[] = "//millrace-emulated ";

// Static shared memory is what the module has of zeroed data.
void find_static(Library& library) {
  link_map* map = nullptr;
  if (dlinfo(library.handle, RTLD_DI_LINKMAP, &map) != 0) return;
  const auto* const base = reinterpret_cast<const char*>(map->l_addr);
  const auto* const header = reinterpret_cast<const ElfW(Ehdr)*>(base);
  const auto* const programs = reinterpret_cast<const ElfW(Phdr)*>(base + header->e_phoff);
  for (int i = 0; i < header->e_phnum; ++i) {
    const ElfW(Phdr)& p = programs[i];
    if (p.p_type != PT_LOAD || !(p.p_flags & PF_W) || p.p_memsz <= p.p_filesz) continue;
    library.static_begin = reinterpret_cast<u64>(base + p.p_vaddr + p.p_filesz);
    library.static_end = reinterpret_cast<u64>(base + p.p_vaddr + p.p_memsz);
  }
}

// All modules of one text share what is loaded.
std::shared_ptr<Library> open_library(const std::string& path, std::string& error) {
  static auto& all = *new std::map<std::string, std::weak_ptr<Library>>;
  std::weak_ptr<Library>& known = all[path];
  if (auto library = known.lock()) return library;
  auto library = std::make_shared<Library>();
  library->handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library->handle) {
    error = dlerror();
    return nullptr;
  }
  find_static(*library);
  known = library;
  return library;
}

CUresult load_image(const char* image, std::shared_ptr<Library>& library, std::string& error) {
  if (std::strncmp(image, kMark, sizeof kMark - 1) != 0) {
    error = "not compiled by the emulated NVRTC";
    if (std::memcmp(image, "\177ELF", 4) == 0) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    return std::strstr(image, ".version") ? CUDA_ERROR_UNSUPPORTED_PTX_VERSION
                                          : CUDA_ERROR_INVALID_IMAGE;
  }
  const char* at = image + sizeof kMark - 1;
  char* path = nullptr;
  const unsigned long abi = std::strtoul(at, &path, 10);
  const char* const end = std::strchr(path, '\n');
  if (abi != kAbi || *path != ' ' || !end) {
    error = "compiled by another version of the emulated NVRTC";
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  }
  library = open_library(std::string(path + 1, static_cast<size_t>(end - path - 1)), error);
  return library ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

// ---- Launches

struct Submission {
  std::shared_ptr<Context> context;
  std::shared_ptr<Library> library;
  const Kernel* kernel;
  Dim grid, block;
  u64 shared_bytes;
  bool early;
  std::vector<u64> storage;  // of the arguments
  std::vector<void*> arguments;

  void run() const;
};

void Submission::run() const {
  if (context->error != CUDA_SUCCESS) return;
  for (u32 i = 0; i < kernel->count; ++i) {
    if (!kernel->pointers[i]) continue;
    const u64 at = *static_cast<const u64*>(arguments[i]);
    if (!at || !memory().outside(at)) continue;
    std::fprintf(stderr,
                 "millrace CUDA emulator: kernel %s: argument %u, 0x%lx, is not device memory\n",
                 kernel->name, i, at);
    context->error = CUDA_ERROR_ILLEGAL_ADDRESS;
    return;
  }
  Lock lock(library->mutex, std::defer_lock);
  if (library->static_end > library->static_begin) lock.lock();
  const Launch launch{kernel,
                      const_cast<void**>(arguments.data()),
                      grid,
                      block,
                      shared_bytes,
                      library->static_begin,
                      library->static_end,
                      early};
  switch (mr_emulator::run(launch)) {
    case Fault::none:
      return;
    case Fault::illegal_address:
      context->error = CUDA_ERROR_ILLEGAL_ADDRESS;
      return;
    case Fault::illegal_instruction:
      context->error = CUDA_ERROR_ILLEGAL_INSTRUCTION;
      return;
    case Fault::arithmetic:
      context->error = CUDA_ERROR_LAUNCH_FAILED;
      return;
  }
}

CUresult launch(CUfunction function, Dim grid, Dim block, u64 shared_bytes, bool early,
                CUstream stream, void** arguments, void** extra) {
  return call_in_context([&](Driver& d, Lock& lock,
                             const std::shared_ptr<Context>& context) -> CUresult {
    const auto f = d.functions.find(function);
    if (!f || f->context != context) return CUDA_ERROR_INVALID_HANDLE;
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 ||
        !block.x || !block.y || !block.z || block.x > kMostThreads || block.y > kMostThreads ||
        block.z > 64 || u64{block.x} * block.y * block.z > f->kernel->most_threads ||
        shared_bytes > f->most_shared) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (extra) return CUDA_ERROR_NOT_SUPPORTED;
    const Kernel& kernel = *f->kernel;
    if (kernel.count && !arguments) return CUDA_ERROR_INVALID_VALUE;
    auto submission = std::make_shared<Submission>(
        Submission{context, f->library, &kernel, grid, block, shared_bytes, early, {}, {}});
    // Arguments may be aligned to 16 bytes.
    u64 words = 1;
    for (u32 i = 0; i < kernel.count; ++i) words += (kernel.sizes[i] + 15) / 16 * 2;
    submission->storage.resize(words);
    submission->arguments.resize(kernel.count + 1);
    u64* at = submission->storage.data();
    if (reinterpret_cast<u64>(at) % 16) ++at;
    for (u32 i = 0; i < kernel.count; ++i) {
      if (!arguments[i]) return CUDA_ERROR_INVALID_VALUE;
      std::memcpy(at, arguments[i], kernel.sizes[i]);
      submission->arguments[i] = at;
      at += (kernel.sizes[i] + 15) / 16 * 2;
    }
    return enqueue(d, lock, context, stream, {[submission] { submission->run(); }});
  });
}

// ---- Copies

CUresult copy(u64 to, u64 from, u64 bytes, CUstream stream, bool to_device, bool from_device) {
  return call_in_context([&](Driver& d, Lock& lock,
                             const std::shared_ptr<Context>& context) -> CUresult {
    if (!bytes) return CUDA_SUCCESS;
    const Kind target = memory().kind(to, bytes), source = memory().kind(from, bytes);
    if (target == Kind::none || source == Kind::none || !to || !from ||
        (to_device && target != Kind::device) || (from_device && source != Kind::device)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto s = find_stream(d, context, stream);
    const bool captured = s && s->capture;
    // Host memory that is not pinned: it is read before this returns, and written too.
    const bool staged = source == Kind::host && memory().outside(from) && !captured && d.async;
    const bool waits = target == Kind::host && memory().outside(to) && !captured;
    std::shared_ptr<std::vector<char>> stage;
    if (staged) {
      const auto* const first = reinterpret_cast<const char*>(from);
      stage = std::make_shared<std::vector<char>>(first, first + bytes);
    }
    const CUresult result =
        enqueue(d, lock, context, stream, {[context, to, from, bytes, stage] {
                  if (context->error != CUDA_SUCCESS) return;
                  std::memmove(reinterpret_cast<void*>(to),
                               stage ? stage->data() : reinterpret_cast<const char*>(from), bytes);
                }});
    if (result != CUDA_SUCCESS || !waits) return result;
    s->wait();
    return context->error;
  });
}

template <class T>
CUresult fill(CUdeviceptr to, T value, size_t count, CUstream stream) {
  return call_in_context(
      [&](Driver& d, Lock& lock, const std::shared_ptr<Context>& context) -> CUresult {
        if (!count) return CUDA_SUCCESS;
        if (to % sizeof(T) || memory().kind(to, count * sizeof(T)) != Kind::device) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        return enqueue(d, lock, context, stream, {[context, to, value, count] {
                         if (context->error != CUDA_SUCCESS) return;
                         T* const first = reinterpret_cast<T*>(to);
                         std::fill(first, first + count, value);
                       }});
      });
}

struct ErrorText {
  CUresult code;
  const char *name, *text;
};
constexpr ErrorText kErrors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

CUresult describe(CUresult code, const char** out, const char* ErrorText::*member) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  for (const ErrorText& e : kErrors) {
    if (e.code != code) continue;
    *out = e.*member;
    return CUDA_SUCCESS;
  }
  *out = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

bool attribute(int number, int device, int* out) {
  switch (number) {
    case 1:  // threads of a block
    case 2:  // along x
    case 3:
      *out = 1024;
      return true;
    case 4:
      *out = 64;
      return true;
    case 5:
      *out = 0x7fffffff;
      return true;  // blocks of a grid
    case 6:
    case 7:
      *out = 65535;
      return true;
    case 8:
      *out = kSharedDefault;
      return true;
    case 9:
      *out = 65536;
      return true;  // constant memory
    case 10:
      *out = 32;
      return true;  // lanes of a warp
    case 12:
      *out = 65536;
      return true;  // registers of a block
    case 13:
      *out = 1755000;
      return true;
    case 15:
      *out = 1;
      return true;
    case 16:
      *out = kMultiprocessors;
      return true;
    case 17:
    case 18:
      *out = 0;
      return true;  // integrated
    case 19:
      *out = 1;
      return true;
    case 20:
      *out = 0;
      return true;
    case 31:
      *out = 1;
      return true;
    case 32:
      *out = 1;
      return true;
    case 33:
      *out = device + 1;
      return true;  // PCI bus
    case 34:
    case 50:
      *out = 0;
      return true;
    case 36:
      *out = 2619000;
      return true;
    case 37:
      *out = 5120;
      return true;
    case 38:
      *out = 50 << 20;
      return true;  // second cache
    case 39:
      *out = 2048;
      return true;
    case 40:
      *out = 3;
      return true;
    case 41:
      *out = 1;
      return true;
    case 75:
      *out = 9;
      return true;
    case 76:
      *out = 0;
      return true;
    case 78:
    case 79:
    case 80:
      *out = 1;
      return true;
    case 81:
      *out = 228 << 10;
      return true;
    case 82:
      *out = 65536;
      return true;
    case 83:
      *out = 1;
      return true;
    case 88:
      *out = 0;
      return true;
    case 89:
    case 90:
    case 95:
      *out = 1;
      return true;
    case 97:
      *out = kSharedOptIn;
      return true;
    case 99:
      *out = 1;
      return true;
    case 100:
      *out = 0;
      return true;
    case 102:
      *out = 1;
      return true;  // virtual memory
    case 103:
      *out = 1;
      return true;
    case 106:
      *out = 32;
      return true;
    case 108:
    case 109:
      *out = 0;
      return true;
    case 111:
      *out = 1024;
      return true;
    case 115:
      *out = 0;
      return true;  // memory pools
    case 120:
      *out = 0;
      return true;  // clusters
    default:
      return false;
  }
}

}  // namespace
}  // namespace mr_emulator

using namespace mr_emulator;

// ---- The driver and its devices

EXPORT CUresult cuInit(unsigned flags) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  Driver& d = driver();
  const Lock lock(d.mutex);
  if (d.devices < 1) return CUDA_ERROR_NO_DEVICE;
  d.initialized = true;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = 13000;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorString(CUresult code, const char** text) {
  return describe(code, text, &ErrorText::text);
}
EXPORT CUresult cuGetErrorName(CUresult code, const char** name) {
  return describe(code, name, &ErrorText::name);
}
EXPORT CUresult cuDeviceGetCount(int* count) {
  return call([&](Driver& d, Lock&) -> CUresult {
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = d.devices;
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return call([&](Driver& d, Lock&) -> CUresult {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(d, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  return call([&](Driver& d, Lock&) -> CUresult {
    if (!name || length < 1) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(d, device)) return CUDA_ERROR_INVALID_DEVICE;
    std::snprintf(name, static_cast<size_t>(length), "NVIDIA GPU, emulated");
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return call([&](Driver& d, Lock&) -> CUresult {
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(d, device)) return CUDA_ERROR_INVALID_DEVICE;
    std::memcpy(uuid->bytes, "millrace-emulate", 16);
    uuid->bytes[15] = static_cast<char>(device);
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  return call([&](Driver& d, Lock&) -> CUresult {
    if (!id || length < 1) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(d, device)) return CUDA_ERROR_INVALID_DEVICE;
    std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuDeviceGetAttribute(int* value, int number, CUdevice device) {
  return call([&](Driver& d, Lock&) -> CUresult {
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(d, device)) return CUDA_ERROR_INVALID_DEVICE;
    return attribute(number, device, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}
EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  return call([&](Driver& d, Lock&) -> CUresult {
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(d, device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = memory().total();
    return CUDA_SUCCESS;
  });
}

// ---- Contexts

static CUresult create_context(CUcontext* context, unsigned flags, CUdevice device) {
  return call([&](Driver& d, Lock&) -> CUresult {
    if (!context || flags & ~0xffu) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(d, device)) return CUDA_ERROR_INVALID_DEVICE;
    *context = static_cast<CUcontext>(d.contexts.add(make_context(d, device)));
    current.push_back(*context);
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
  return create_context(context, flags, device);
}
EXPORT CUresult cuCtxCreate_v4(CUcontext* context, void* parameters, unsigned flags,
                               CUdevice device) {
  if (parameters) return CUDA_ERROR_NOT_SUPPORTED;
  return create_context(context, flags, device);
}

// What belongs to a context ends with it, but for its memory, which is freed by address.
static void end_context(Driver& d, const std::shared_ptr<Context>& context) {
  context->destroyed = true;
  context->legacy->close();
  const auto of_it = [&](const auto& object) { return object.context == context; };
  for (const auto& [handle, stream] : d.streams) {
    if (of_it(*stream)) stream->close();
  }
  d.streams.remove_if(of_it);
  d.events.remove_if(of_it);
  d.functions.remove_if(of_it);
  d.modules.remove_if(of_it);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext handle) {
  return call([&](Driver& d, Lock& lock) -> CUresult {
    const auto context = d.contexts.find(handle);
    if (!context || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (context->error == CUDA_SUCCESS) wait_for_all(lock, streams_of(d, context));
    end_context(d, context);
    if (!current.empty() && current.back() == handle) current.pop_back();
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  return call([&](Driver& d, Lock&) -> CUresult {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(d, device)) return CUDA_ERROR_INVALID_DEVICE;
    auto context = d.contexts.find(d.primary[device]);
    if (!context || context->destroyed) {
      context = make_context(d, device);
      context->primary = true;
      d.primary[device] = static_cast<CUcontext>(d.contexts.add(context));
    }
    ++context->retained;
    *out = d.primary[device];
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return call([&](Driver& d, Lock& lock) -> CUresult {
    if (!is_device(d, device)) return CUDA_ERROR_INVALID_DEVICE;
    const auto context = d.contexts.find(d.primary[device]);
    if (!context || context->destroyed) return CUDA_ERROR_INVALID_CONTEXT;
    if (--context->retained > 0) return CUDA_SUCCESS;
    if (context->error == CUDA_SUCCESS) wait_for_all(lock, streams_of(d, context));
    end_context(d, context);
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return cuDevicePrimaryCtxRelease_v2(device);
}

static CUresult check_context(const Driver& d, CUcontext handle) {
  const auto context = d.contexts.find(handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  return context->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  return call([&](Driver& d, Lock&) -> CUresult {
    if (!context) {
      if (!current.empty()) current.pop_back();
      return CUDA_SUCCESS;
    }
    if (const CUresult result = check_context(d, context)) return result;
    if (current.empty()) current.push_back(context);
    current.back() = context;
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  return call([&](Driver&, Lock&) -> CUresult {
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = current.empty() ? nullptr : current.back();
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  return call([&](Driver& d, Lock&) -> CUresult {
    if (const CUresult result = check_context(d, context)) return result;
    current.push_back(context);
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  return call([&](Driver&, Lock&) -> CUresult {
    if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = current.back();
    current.pop_back();
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  return call_in_context([&](Driver&, Lock&, const std::shared_ptr<Context>& context) -> CUresult {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuCtxSynchronize() {
  return call_in_context(
      [&](Driver& d, Lock& lock, const std::shared_ptr<Context>& context) -> CUresult {
        if (const CUresult result = refuse_in_capture(d)) return result;
        wait_for_all(lock, streams_of(d, context));
        return context->error;
      });
}

// ---- Memory

EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return call_in_context([&](Driver&, Lock&, const std::shared_ptr<Context>& context) -> CUresult {
    if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
    *total = memory().total();
    *free = *total - memory().used(context->device);
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  return call_in_context(
      [&](Driver& d, Lock&, const std::shared_ptr<Context>& context) -> CUresult {
        if (!out) return CUDA_ERROR_INVALID_VALUE;
        if (const CUresult result = refuse_in_capture(d)) return result;
        u64 at = 0;
        const CUresult result = memory().allocate(context->device, bytes, &at);
        if (result == CUDA_SUCCESS) *out = at;
        return result;
      });
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr at) {
  return call_in_context(
      [&](Driver& d, Lock& lock, const std::shared_ptr<Context>& context) -> CUresult {
        if (const CUresult result = refuse_in_capture(d)) return result;
        wait_for_all(lock, streams_of(d, context));
        return memory().free(at);
      });
}
EXPORT CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  return call_in_context([&](Driver& d, Lock&, const std::shared_ptr<Context>&) -> CUresult {
    if (!out || flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = refuse_in_capture(d)) return result;
    return memory().allocate_host(bytes, out);
  });
}
EXPORT CUresult cuMemAllocHost_v2(void** out, size_t bytes) {
  return cuMemHostAlloc(out, bytes, 0);
}
EXPORT CUresult cuMemFreeHost(void* at) {
  return call_in_context(
      [&](Driver& d, Lock& lock, const std::shared_ptr<Context>& context) -> CUresult {
        if (const CUresult result = refuse_in_capture(d)) return result;
        wait_for_all(lock, streams_of(d, context));
        return memory().free_host(at);
      });
}
EXPORT CUresult cuPointerGetAttribute(void* out, int number, CUdeviceptr at) {
  return call([&](Driver&, Lock&) -> CUresult {
    if (!out || !at || memory().outside(at)) return CUDA_ERROR_INVALID_VALUE;
    const Kind kind = memory().kind(at, 1);
    if (kind == Kind::none) return CUDA_ERROR_INVALID_VALUE;
    switch (number) {
      case 2:
        *static_cast<unsigned*>(out) = kind == Kind::device ? 2 : 1;
        return CUDA_SUCCESS;
      case 3:
        *static_cast<CUdeviceptr*>(out) = at;
        return CUDA_SUCCESS;
      case 8:
        *static_cast<int*>(out) = 0;
        return CUDA_SUCCESS;  // managed
      default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
  });
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count,
                                CUstream stream) {
  return fill<unsigned char>(to, value, count, stream);
}
EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return fill<unsigned>(to, value, count, stream);
}
EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(to, from, bytes, stream, false, false);
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                     CUstream stream) {
  return copy(to, reinterpret_cast<u64>(from), bytes, stream, true, false);
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(reinterpret_cast<u64>(to), from, bytes, stream, false, true);
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                     CUstream stream) {
  return copy(to, from, bytes, stream, true, true);
}
EXPORT CUresult cuStreamSynchronize(CUstream stream);
EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  const CUresult result = cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr);
  return result ? result : cuStreamSynchronize(nullptr);
}
EXPORT CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  const CUresult result = cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr);
  return result ? result : cuStreamSynchronize(nullptr);
}

// ---- Virtual memory

static CUresult check_properties(const Driver& d, const CUmemAllocationProp* p) {
  if (!p || p->type != 1 || p->location.type != 1) return CUDA_ERROR_INVALID_VALUE;
  return is_device(d, p->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
EXPORT CUresult cuMemGetAllocationGranularity(size_t* out, const CUmemAllocationProp* properties,
                                              int option) {
  return call([&](Driver& d, Lock&) -> CUresult {
    if (!out || option < 0 || option > 1) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = check_properties(d, properties)) return result;
    *out = kGranularity;
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t alignment, CUdeviceptr,
                                    unsigned long long flags) {
  return call([&](Driver&, Lock&) -> CUresult {
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    u64 at = 0;
    const CUresult result = memory().reserve(bytes, alignment, &at);
    if (result == CUDA_SUCCESS) *out = at;
    return result;
  });
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) {
  return call([&](Driver&, Lock&) { return memory().unreserve(at, bytes); });
}
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes,
                            const CUmemAllocationProp* properties, unsigned long long flags) {
  return call([&](Driver& d, Lock&) -> CUresult {
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = check_properties(d, properties)) return result;
    u64 handle = 0;
    const CUresult result = memory().create(properties->location.id, bytes, &handle);
    if (result == CUDA_SUCCESS) *out = handle;
    return result;
  });
}
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return call([&](Driver&, Lock&) { return memory().release(handle); });
}
EXPORT CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return call([&](Driver&, Lock&) -> CUresult {
    if (offset || flags) return CUDA_ERROR_INVALID_VALUE;
    return memory().map(at, bytes, handle);
  });
}
EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
  return call([&](Driver&, Lock&) { return memory().unmap(at, bytes); });
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc* access,
                               size_t count) {
  return call([&](Driver& d, Lock&) -> CUresult {
    if (!access || !count) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      if (access[i].location.type != 1) return CUDA_ERROR_INVALID_VALUE;
      if (!is_device(d, access[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
      if (const CUresult result = memory().set_access(at, bytes, access[i].flags)) return result;
    }
    return CUDA_SUCCESS;
  });
}

// ---- Modules and functions

// Only the buffers of logs are used, of all options.
EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count,
                                   int* options, void** values) {
  return call_in_context(
      [&](Driver& d, Lock&, const std::shared_ptr<Context>& context) -> CUresult {
        if (!module || !image || (count && (!options || !values))) return CUDA_ERROR_INVALID_VALUE;
        std::shared_ptr<Library> library;
        std::string error;
        const CUresult result = load_image(static_cast<const char*>(image), library, error);
        char* buffer[2] = {};
        for (unsigned i = 0; i < count; ++i) {
          if (options[i] == 3 || options[i] == 5) {
            buffer[options[i] / 4] = static_cast<char*>(values[i]);
          }
        }
        for (unsigned i = 0; i < count; ++i) {
          if (options[i] != 4 && options[i] != 6) continue;
          char* const text = buffer[(options[i] - 1) / 4];
          const size_t room = static_cast<unsigned>(reinterpret_cast<u64>(values[i]));
          const std::string& log = options[i] == 6 ? error : std::string();
          if (text && room) std::snprintf(text, room, "%s", log.c_str());
          values[i] = reinterpret_cast<void*>(log.size());
        }
        if (result != CUDA_SUCCESS) return result;
        *module = static_cast<CUmodule>(
            d.modules.add(std::make_shared<Module>(Module{context, std::move(library), {}})));
        return CUDA_SUCCESS;
      });
}
EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}
EXPORT CUresult cuModuleUnload(CUmodule handle) {
  return call_in_context(
      [&](Driver& d, Lock& lock, const std::shared_ptr<Context>& context) -> CUresult {
        auto module = d.modules.find(handle);
        if (!module || module->context != context) return CUDA_ERROR_INVALID_HANDLE;
        for (const auto& [name, function] : module->functions) d.functions.remove(function);
        d.modules.remove(handle);
        wait_for_all(lock, streams_of(d, context));
        return CUDA_SUCCESS;
      });
}
EXPORT CUresult cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  return call_in_context([&](Driver& d, Lock&,
                             const std::shared_ptr<Context>& context) -> CUresult {
    if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
    const auto module = d.modules.find(handle);
    if (!module || module->context != context) return CUDA_ERROR_INVALID_HANDLE;
    CUfunction& function = module->functions[name];
    if (!function) {
      const auto* const kernel = static_cast<const Kernel*>(
          dlsym(module->library->handle, ("mr_emulator_kernel_" + std::string(name)).c_str()));
      if (!kernel) {
        module->functions.erase(name);
        return CUDA_ERROR_NOT_FOUND;
      }
      if (kernel->abi != kAbi) return CUDA_ERROR_INVALID_IMAGE;
      function = static_cast<CUfunction>(d.functions.add(
          std::make_shared<Function>(Function{context, module->library, kernel, kSharedDefault})));
    }
    *out = function;
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuFuncSetAttribute(CUfunction function, int number, int value) {
  return call_in_context(
      [&](Driver& d, Lock&, const std::shared_ptr<Context>& context) -> CUresult {
        const auto f = d.functions.find(function);
        if (!f || f->context != context) return CUDA_ERROR_INVALID_HANDLE;
        if (number == 8) {
          if (value < 0 || static_cast<u64>(value) > kSharedOptIn) return CUDA_ERROR_INVALID_VALUE;
          f->most_shared = static_cast<u64>(value);
          return CUDA_SUCCESS;
        }
        if (number == 9) {
          return value >= -1 && value <= 100 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_ERROR_INVALID_VALUE;
      });
}
EXPORT CUresult cuFuncGetAttribute(int* value, int number, CUfunction function) {
  return call_in_context(
      [&](Driver& d, Lock&, const std::shared_ptr<Context>& context) -> CUresult {
        const auto f = d.functions.find(function);
        if (!f || f->context != context) return CUDA_ERROR_INVALID_HANDLE;
        if (!value) return CUDA_ERROR_INVALID_VALUE;
        switch (number) {
          case 0:
            *value = static_cast<int>(f->kernel->most_threads);
            break;
          case 1:  // static shared memory: that of all kernels of the module
            *value = static_cast<int>(f->library->static_end - f->library->static_begin);
            break;
          case 2:
          case 3:
          case 7:
            *value = 0;
            break;
          case 4:
            *value = 64;
            break;  // registers
          case 5:
            *value = static_cast<int>(f->kernel->architecture);
            break;
          case 6:
            *value = 90;
            break;
          case 8:
            *value = static_cast<int>(f->most_shared);
            break;
          case 9:
            *value = -1;
            break;
          default:
            return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
      });
}
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                            int threads, size_t shared_bytes) {
  return call_in_context([&](Driver& d, Lock&,
                             const std::shared_ptr<Context>& context) -> CUresult {
    const auto f = d.functions.find(function);
    if (!f || f->context != context) return CUDA_ERROR_INVALID_HANDLE;
    if (!blocks || threads < 1) return CUDA_ERROR_INVALID_VALUE;
    const size_t by_threads = 2048 / (static_cast<size_t>(threads) + 31) / 32 * 32;
    const size_t by_shared = (size_t{228} << 10) / (shared_bytes + 1024);
    *blocks = static_cast<int>(std::min({size_t{32}, std::max(by_threads, size_t{1}), by_shared}));
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                               unsigned grid_z, unsigned block_x, unsigned block_y,
                               unsigned block_z, unsigned shared_bytes, CUstream stream,
                               void** arguments, void** extra) {
  return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes,
                false, stream, arguments, extra);
}
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction function, void** arguments,
                                 void** extra) {
  if (!c || (c->numAttrs && !c->attrs)) return CUDA_ERROR_INVALID_VALUE;
  bool early = false;
  for (unsigned i = 0; i < c->numAttrs; ++i) {
    if (c->attrs[i].id == 6) early = c->attrs[i].value.value != 0;
    const auto& cluster = c->attrs[i].value.cluster;
    if (c->attrs[i].id == 4 && (cluster.x != 1 || cluster.y != 1 || cluster.z != 1)) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return launch(function, {c->gridDimX, c->gridDimY, c->gridDimZ},
                {c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes, early, c->hStream,
                arguments, extra);
}
EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return call_in_context(
      [&](Driver& d, Lock& lock, const std::shared_ptr<Context>& context) -> CUresult {
        if (!function) return CUDA_ERROR_INVALID_VALUE;
        return enqueue(d, lock, context, stream,
                       {[context, function, data] {
                          if (context->error != CUDA_SUCCESS) return;
                          in_host_function = true;
                          function(data);
                          in_host_function = false;
                        },
                        true});
      });
}

// ---- Streams and events

EXPORT CUresult cuStreamCreate(CUstream* out, unsigned flags) {
  return call_in_context([&](Driver& d, Lock&,
                             const std::shared_ptr<Context>& context) -> CUresult {
    if (!out || flags > 1) return CUDA_ERROR_INVALID_VALUE;
    *out = static_cast<CUstream>(d.streams.add(std::make_shared<Stream>(context, flags, d.async)));
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int) {
  return cuStreamCreate(out, flags);
}
EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
  return call_in_context([&](Driver& d, Lock&, const std::shared_ptr<Context>&) -> CUresult {
    const auto stream = d.streams.find(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) stream->capture->invalid = true;
    stream->close();
    d.streams.remove(handle);
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  return call_in_context(
      [&](Driver& d, Lock& lock, const std::shared_ptr<Context>& context) -> CUresult {
        const auto stream = find_stream(d, context, handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (stream->capture) {
          stream->capture->invalid = true;
          return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        wait_for_all(lock, {stream});
        return stream->context->error;
      });
}
EXPORT CUresult cuStreamQuery(CUstream handle) {
  return call_in_context(
      [&](Driver& d, Lock&, const std::shared_ptr<Context>& context) -> CUresult {
        const auto stream = find_stream(d, context, handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (stream->capture) {
          stream->capture->invalid = true;
          return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        if (!stream->idle()) return CUDA_ERROR_NOT_READY;
        return stream->context->error;
      });
}
EXPORT CUresult cuEventCreate(CUevent* out, unsigned flags) {
  return call_in_context(
      [&](Driver& d, Lock&, const std::shared_ptr<Context>& context) -> CUresult {
        if (!out || flags & ~7u || (flags & 6) == 4) return CUDA_ERROR_INVALID_VALUE;
        auto event = std::make_shared<Event>();
        event->context = context;
        event->flags = flags;
        *out = static_cast<CUevent>(d.events.add(std::move(event)));
        return CUDA_SUCCESS;
      });
}
EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
  return call_in_context([&](Driver& d, Lock&, const std::shared_ptr<Context>&) -> CUresult {
    return d.events.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}
EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  return call_in_context(
      [&](Driver& d, Lock& lock, const std::shared_ptr<Context>& context) -> CUresult {
        const auto event = d.events.find(handle);
        const auto stream = find_stream(d, context, stream_handle);
        if (!event || !stream || event->context != stream->context) {
          return CUDA_ERROR_INVALID_HANDLE;
        }
        event->capture = stream->capture;
        if (stream->capture) {
          if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
          event->stream = stream.get();
          event->operations = stream->capture->parts[stream.get()].operations;
          return CUDA_SUCCESS;
        }
        auto record = event->record = std::make_shared<Record>();
        return enqueue(d, lock, context, stream_handle, {[record] { record->finish(); }});
      });
}
EXPORT CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags) {
  return call_in_context(
      [&](Driver& d, Lock& lock, const std::shared_ptr<Context>& context) -> CUresult {
        const auto event = d.events.find(handle);
        const auto stream = find_stream(d, context, stream_handle);
        if (!event || !stream) return CUDA_ERROR_INVALID_HANDLE;
        if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
        if (event->capture) {
          const auto& capture = event->capture;
          if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
          if (stream->capture && stream->capture != capture) {
            stream->capture->invalid = capture->invalid = true;
            return CUDA_ERROR_STREAM_CAPTURE_MERGE;
          }
          stream->capture = capture;
          capture->parts[stream.get()];
          auto& part = capture->parts[event->stream];
          if (event->stream != stream.get()) {
            part.joined = std::max(part.joined, event->operations + 1);
            ++capture->parts[stream.get()].operations;  // has to be joined too
          }
          return CUDA_SUCCESS;
        }
        if (!event->record) return CUDA_SUCCESS;
        if (stream->capture) {
          stream->capture->invalid = true;
          return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        if (event->record->done()) return CUDA_SUCCESS;
        return enqueue(d, lock, context, stream_handle,
                       {[record = event->record] { record->wait(); }, true});
      });
}
EXPORT CUresult cuEventQuery(CUevent handle) {
  return call_in_context([&](Driver& d, Lock&, const std::shared_ptr<Context>&) -> CUresult {
    const auto event = d.events.find(handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    return !event->record || event->record->done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}
EXPORT CUresult cuEventSynchronize(CUevent handle) {
  return call_in_context(
      [&](Driver& d, Lock& lock, const std::shared_ptr<Context>& context) -> CUresult {
        const auto event = d.events.find(handle);
        if (!event) return CUDA_ERROR_INVALID_HANDLE;
        if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
        const auto record = event->record;
        lock.unlock();
        if (record) record->wait();
        return context->error;
      });
}
EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent begin, CUevent end) {
  return call_in_context([&](Driver& d, Lock&, const std::shared_ptr<Context>&) -> CUresult {
    const auto first = d.events.find(begin), last = d.events.find(end);
    if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
    if (!first || !last || !first->record || !last->record || (first->flags | last->flags) & 2) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!first->record->done() || !last->record->done()) return CUDA_ERROR_NOT_READY;
    *milliseconds =
        std::chrono::duration<float, std::milli>(last->record->time() - first->record->time())
            .count();
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  return cuEventElapsedTime_v2(milliseconds, begin, end);
}

// ---- Graphs: the operations of a capture, in the order in which they were captured

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
  return call_in_context(
      [&](Driver& d, Lock&, const std::shared_ptr<Context>& context) -> CUresult {
        if (mode < 0 || mode > 2) return CUDA_ERROR_INVALID_VALUE;
        const auto stream = find_stream(d, context, handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (stream == context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        if (stream->capture) return CUDA_ERROR_INVALID_VALUE;
        auto capture = std::make_shared<Capture>();
        capture->origin = stream.get();
        capture->mode = mode;
        capture->thread = std::this_thread::get_id();
        stream->capture = capture;
        d.captures.push_back(std::move(capture));
        return CUDA_SUCCESS;
      });
}
EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph* out) {
  return call_in_context(
      [&](Driver& d, Lock&, const std::shared_ptr<Context>& context) -> CUresult {
        if (!out) return CUDA_ERROR_INVALID_VALUE;
        *out = nullptr;
        const auto stream = find_stream(d, context, handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        const auto capture = stream->capture;
        if (!capture) return CUDA_ERROR_INVALID_VALUE;
        if (capture->origin != stream.get()) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
        if (capture->mode != 2 && capture->thread != std::this_thread::get_id()) {
          return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
        }
        for (const auto& [h, other] : d.streams) {
          if (other->capture == capture) other->capture = nullptr;
        }
        stream->capture = nullptr;
        std::erase(d.captures, capture);
        if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        for (const auto& [part_of, part] : capture->parts) {
          if (part_of == capture->origin) continue;
          if (part.joined < part.operations + 1) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        }
        *out = static_cast<CUgraph>(d.graphs.add(capture->graph));
        return CUDA_SUCCESS;
      });
}
EXPORT CUresult cuStreamIsCapturing(CUstream handle, int* status) {
  return call_in_context(
      [&](Driver& d, Lock&, const std::shared_ptr<Context>& context) -> CUresult {
        const auto stream = find_stream(d, context, handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (!status) return CUDA_ERROR_INVALID_VALUE;
        *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
        return CUDA_SUCCESS;
      });
}
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph handle, unsigned long long) {
  return call_in_context([&](Driver& d, Lock&, const std::shared_ptr<Context>&) -> CUresult {
    const auto graph = d.graphs.find(handle);
    if (!out || !graph) return CUDA_ERROR_INVALID_VALUE;
    *out = static_cast<CUgraphExec>(d.executables.add(std::make_shared<Graph>(*graph)));
    return CUDA_SUCCESS;
  });
}
EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  return call_in_context(
      [&](Driver& d, Lock& lock, const std::shared_ptr<Context>& context) -> CUresult {
        const auto graph = d.executables.find(handle);
        if (!graph) return CUDA_ERROR_INVALID_VALUE;
        const auto stream = find_stream(d, context, stream_handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (stream->capture) {
          if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
          auto& operations = stream->capture->graph->operations;
          operations.insert(operations.end(), graph->operations.begin(), graph->operations.end());
          ++stream->capture->parts[stream.get()].operations;
          return CUDA_SUCCESS;
        }
        lock.unlock();
        for (const Operation& operation : graph->operations) stream->submit(operation);
        return context->error;
      });
}
EXPORT CUresult cuGraphUpload(CUgraphExec handle, CUstream) {
  return call_in_context([&](Driver& d, Lock&, const std::shared_ptr<Context>&) -> CUresult {
    return d.executables.find(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}
EXPORT CUresult cuGraphDestroy(CUgraph handle) {
  return call([&](Driver& d, Lock&) -> CUresult {
    return d.graphs.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}
EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle) {
  return call([&](Driver& d, Lock&) -> CUresult {
    return d.executables.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}
EXPORT CUresult cuGraphGetNodes(CUgraph handle, void** nodes, size_t* count) {
  return call([&](Driver& d, Lock&) -> CUresult {
    const auto graph = d.graphs.find(handle);
    if (!graph || !count || nodes) return CUDA_ERROR_INVALID_VALUE;
    *count = graph->operations.size();
    return CUDA_SUCCESS;
  });
}
