#include "platform/stream.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>

#include "exec/error.hpp"
#include "gpu/fault.hpp"

namespace millrace::gpu {
namespace {

constexpr unsigned kNoTiming = 2;  // of an event

CUdeviceptr address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

bool on_device(const void* data) {
  constexpr int kMemoryType = 2, kDevice = 2;
  int type = 0;
  // Fails for memory that the driver does not know: the host's.
  return cuda().pointer_attribute.address(&type, kMemoryType, address(data)) == 0 &&
         type == kDevice;
}

}  // namespace

// The driver copies from memory that may be paged out only while the caller waits. So everything goes through memory
// that may not, in chunks: the host fills or empties one while the device copies others.
class Staging {
 public:
  explicit Staging(const Queue& queue) : queue_(queue) {}
  ~Staging() {
    queue_.drain();
    for (const Chunk& c : chunks_) {
      if (c.data != nullptr) cuda().host_free.address(c.data);
      if (c.copied != nullptr) cuda().event_destroy.address(c.copied);
    }
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // `from` may change when this returns.
  void upload(CUdeviceptr to, const std::byte* from, size_t bytes) {
    for (size_t done = 0; done < bytes; done += kChunkBytes) {
      const size_t n = std::min(bytes - done, kChunkBytes);
      const Chunk& chunk = next();
      std::memcpy(chunk.data, from + done, n);
      cuda().copy(to + done, address(chunk.data), n, queue_.stream);
      cuda().event_record(chunk.copied, queue_.stream);
    }
  }

  // `to` has the bytes when this returns.
  void download(std::byte* to, CUdeviceptr from, size_t bytes) {
    std::array<const Chunk*, kChunks> chunks;
    size_t begun = 0;
    for (size_t done = 0; done < bytes; done += kChunkBytes) {
      for (; begun < bytes && begun < done + kChunks * kChunkBytes; begun += kChunkBytes) {
        const Chunk& chunk = next();
        chunks[begun / kChunkBytes % kChunks] = &chunk;
        cuda().copy(address(chunk.data), from + begun, std::min(bytes - begun, kChunkBytes),
                    queue_.stream);
        cuda().event_record(chunk.copied, queue_.stream);
      }
      const Chunk& chunk = *chunks[done / kChunkBytes % kChunks];
      cuda().event_synchronize(chunk.copied);
      std::memcpy(to + done, chunk.data, std::min(bytes - done, kChunkBytes));
    }
  }

 private:
  static constexpr size_t kChunkBytes = size_t{1} << 20;
  static constexpr size_t kChunks = 8;  // the tables of two steps, and their draws

  struct Chunk {
    void* data = nullptr;
    CUevent copied = nullptr;
  };

  // The chunk whose copy is the oldest, when that has ended.
  const Chunk& next() {
    Chunk& chunk = chunks_[next_++ % kChunks];
    if (chunk.copied == nullptr) {
      cuda().host_allocate(&chunk.data, kChunkBytes, 0);
      cuda().event_create(&chunk.copied, kNoTiming);
    } else {
      cuda().event_synchronize(chunk.copied);
    }
    return chunk;
  }

  const Queue& queue_;
  std::array<Chunk, kChunks> chunks_;
  size_t next_ = 0;
};

struct Stream::Failure {
  std::mutex mutex;
  std::string text;
};

Kernel::Kernel(std::shared_ptr<Context> context, CUfunction function)
    : state_(std::make_shared<State>(std::move(context), function)) {
  constexpr int kPtxVersion = 5, kHopper = 90;
  int version = 0;  // of the architecture that the code was made for, whatever it runs on
  cuda().function_attribute(&version, kPtxVersion, function);
  state_->waits = version >= kHopper;
}

void Kernel::allow_shared(size_t bytes) const {
  constexpr int kMaxDynamicSharedBytes = 8;
  if (bytes <= state_->shared) return;
  cuda().function_set_attribute(state_->function, kMaxDynamicSharedBytes, static_cast<int>(bytes));
  state_->shared = bytes;
}

Recording::~Recording() {
  try {
    context_->make_current();
    cuda().graph_exec_destroy(graph_);
  } catch (const Error&) {
    // The context is lost, and the graph with it.
  }
}

Queue::Queue(std::shared_ptr<Context> c) : context(std::move(c)) {
  constexpr unsigned kNonBlocking = 1;  // does not wait for the driver's default stream
  context->make_current();
  cuda().stream_create(&stream, kNonBlocking);
}

Queue::~Queue() {
  drain();
  cuda().stream_destroy.address(stream);
}

void Queue::drain() const noexcept {
  try {
    context->make_current();
    cuda().stream_synchronize(stream);
  } catch (const Error&) {
    // The context is lost, and its memory with it.
  }
}

Stream::Stream(const DeviceHandle& device, bool profile) : Stream(Context::of(device), profile) {}

Stream::Stream(std::shared_ptr<Context> context, bool profile)
    : queue_(std::make_shared<Queue>(std::move(context))),
      failure_(std::make_shared<Failure>()),
      staging_(std::make_unique<Staging>(*queue_)),
      profile_(profile) {}

Stream::~Stream() {
  queue_->drain();
  for (const CUevent event : events_) cuda().event_destroy.address(event);
}

std::unique_ptr<Stream> Stream::beside() const {
  return std::unique_ptr<Stream>(new Stream(context(), false));
}

template <class F>
void Stream::guarded(F&& call) {
  try {
    if (!lost_.empty()) fail(MR_DEVICE, "CUDA: %s", lost_.c_str());
    context()->make_current();
    call();
  } catch (const Error& e) {
    if (e.status() == MR_DEVICE) Context::forget(context().get());
    throw;
  }
}

Buffer Stream::allocate(size_t bytes) {
  if (bytes == 0) return {};
  CUdeviceptr data = 0;
  guarded([&] {
    const auto& call = cuda().memory_allocate;
    const int result = call.address(&data, bytes);
    if (result == kCudaOutOfMemory) fail(MR_NO_MEMORY, "%zu bytes of device memory", bytes);
    if (result != 0) fail_cuda(call.name, result);
  });
  Buffer buffer(reinterpret_cast<void*>(data), bytes, [queue = queue_](void* p) {
    queue->drain();  // a failed step may have left kernels running
    cuda().memory_free.address(address(p));
  });
  guarded([&] { cuda().fill(data, 0, bytes, queue_->stream); });
  wait();
  return buffer;
}

Buffer Stream::upload(const void* data, size_t bytes) {
  Buffer buffer = allocate(bytes);
  if (bytes > 0) copy(buffer.data(), data, bytes);
  wait();
  return buffer;
}

void Stream::copy(void* to, const void* from, size_t bytes) {
  guarded([&] {
    const bool upload = on_device(to), download = on_device(from);
    if (upload && !download) {
      staging_->upload(address(to), static_cast<const std::byte*>(from), bytes);
    } else if (download && !upload) {
      staging_->download(static_cast<std::byte*>(to), address(from), bytes);
    } else {
      cuda().copy(address(to), address(from), bytes, queue_->stream);
    }
  });
}

void Stream::wait() {
  guarded([&] {
    cuda().stream_synchronize(queue_->stream);
    throw_failure();
  });
}

void Stream::throw_failure() const {
  const std::lock_guard lock(failure_->mutex);
  const std::string text = std::exchange(failure_->text, "");
  if (!text.empty()) fail(MR_DEVICE, "CUDA: %s", text.c_str());
}

Readback::Readback(Stream& stream, size_t most_bytes) : queue_(stream.queue()) {
  stream.guarded([&] {
    cuda().event_create(&copied_, kNoTiming);
    cuda().host_allocate(&host_, most_bytes, 0);
  });
}

Readback::~Readback() {
  queue_->drain();
  if (host_ != nullptr) cuda().host_free.address(host_);
  if (copied_ != nullptr) cuda().event_destroy.address(copied_);
}

void Readback::begin(Stream& stream, const void* from, size_t bytes) {
  stream.guarded([&] {
    if (bytes > 0) cuda().copy(address(host_), address(from), bytes, queue_->stream);
    cuda().event_record(copied_, queue_->stream);
  });
}

void Readback::end(Stream& stream, void* to, size_t bytes) {
  stream.guarded([&] {
    cuda().event_synchronize(copied_);
    stream.throw_failure();
  });
  std::memcpy(to, host_, bytes);
}

void Stream::run(const Kernel& kernel, size_t groups, size_t items, size_t shared_bytes,
                 void** arguments) {
  guarded([&] {
    if (groups > size_t{std::numeric_limits<int32_t>::max()}) {
      fail(MR_INVALID, "a launch of %zu work-groups", groups);
    }
    inject();
    kernel.allow_shared(shared_bytes);
    if (profile_) timed();
    if (groups > 0) {
      constexpr int kProgrammaticStreamSerialization = 6;
      CUlaunchAttribute early{kProgrammaticStreamSerialization, {1}};
      const CUlaunchConfig config{{static_cast<unsigned>(groups), 1, 1},
                                  {static_cast<unsigned>(items), 1, 1},
                                  static_cast<unsigned>(shared_bytes),
                                  queue_->stream,
                                  &early,
                                  kernel.waits() && !profile_ ? 1u : 0u};
      cuda().launch_kernel(&config, kernel.function(), arguments, nullptr);
    }
    if (profile_) timed();
  });
  ++launches_;
}

bool Stream::begin_recording() {
  if (profile_) return false;      // its events are not for a graph
  constexpr int kThreadLocal = 1;  // other threads may call what they like
  guarded([&] { cuda().capture_begin(queue_->stream, kThreadLocal); });
  return true;
}

std::shared_ptr<Recording> Stream::end_recording() {
  std::shared_ptr<Recording> recording;
  guarded([&] {
    CUgraph graph = nullptr;
    CUgraphExec made = nullptr;
    cuda().capture_end(queue_->stream, &graph);
    const auto& call = cuda().graph_instantiate;
    const int result = call.address(&made, graph, 0);
    cuda().graph_destroy(graph);
    if (result != 0) fail_cuda(call.name, result);
    recording = std::make_shared<Recording>(context(), made, std::exchange(launches_, 0));
  });
  return recording;
}

void Stream::replay(const Recording& recording) {
  guarded([&] { cuda().graph_launch(recording.graph(), queue_->stream); });
  launches_ += recording.launches();
}

CUevent Stream::timed() {
  if (used_ == events_.size()) cuda().event_create(&events_.emplace_back(nullptr), 0);
  const CUevent event = events_[used_++];
  cuda().event_record(event, queue_->stream);
  return event;
}

void Stream::forget_launches() {
  fault_step();
  launches_ = 0;
  used_ = 0;
}

mr_op_time Stream::take_launches() {
  mr_op_time time{0, std::exchange(launches_, 0), 0};
  guarded([&] {
    double milliseconds = 0;
    for (size_t i = 0; i + 1 < used_; i += 2) {
      float passed = 0;
      cuda().event_elapsed(&passed, events_[i], events_[i + 1]);
      milliseconds += passed;
    }
    time.nanoseconds = static_cast<decltype(time.nanoseconds)>(milliseconds * 1e6);
  });
  used_ = 0;
  return time;
}

void Stream::inject() {
  const FaultKind kind = fault_launch();
  switch (kind) {
    case FaultKind::none:
      return;
    case FaultKind::async: {
      struct Late {
        std::shared_ptr<Failure> failure;
        FaultKind kind;
      };
      const auto late = [](void* data) {
        const std::unique_ptr<Late> l(static_cast<Late*>(data));
        const std::lock_guard lock(l->failure->mutex);
        l->failure->text = fault_text(l->kind);
      };
      cuda().launch_host(queue_->stream, late, new Late{failure_, kind});
      return;
    }
    case FaultKind::hang: {
      const auto sleep = [](void*) {
        for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
      };
      cuda().launch_host(queue_->stream, sleep, nullptr);
      return;
    }
    case FaultKind::lost:
      lost_ = fault_text(kind);
      [[fallthrough]];
    default:
      fail(MR_DEVICE, "CUDA: %s", fault_text(kind).c_str());
  }
}

}  // namespace millrace::gpu
