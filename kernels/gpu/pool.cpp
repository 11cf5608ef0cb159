#include "gpu/pool.hpp"

#include <algorithm>

#include "exec/error.hpp"
#include "gpu/shapes.hpp"
#include "platform/runtime.hpp"
#include "platform/virtual_memory.hpp"

namespace millrace::gpu {

DevicePool::DevicePool(std::shared_ptr<Stream> stream, Kernel copy, const KvLayout& layout,
                       int slabs)
    : KvPool(layout, slabs),
      stream_(std::move(stream)),
      transfers_(stream_->beside()),
      copy_(std::move(copy)) {
  const DeviceMemory memory = device_memory(stream_->device());
  if (bytes() > memory.available) {
    fail(MR_NO_MEMORY, "KV pool of %d slabs needs %.2f GiB, available are %.2f GiB", slabs,
         static_cast<double>(bytes()) / (1u << 30),
         static_cast<double>(memory.available) / (1u << 30));
  }
  memory_ = open_kv_memory({slab_bytes(), slabs, memory.largest}, open_virtual_memory(*stream_),
                           [this](size_t bytes) { return stream_->allocate(bytes); });
}

void DevicePool::copy_slab(int from, int to, int tokens) {
  // With what lies after the blocks, as a state fills a slab; and where blocks differ.
  const KvLayout::Layer& first = layout_.layers.front();
  const auto same = [&](const KvLayout::Layer& layer) {
    return layer.heads == 0 || layer == first;
  };
  if (tokens == kSlabTokens || first.latent || first.key != first.value ||
      !std::ranges::all_of(layout_.layers, same)) {
    stream_->copy(slab(to), slab(from), slab_bytes());
    return stream_->wait();
  }
  const auto block = static_cast<int32_t>(first.bytes[0] / sizeof(uint32_t));
  const size_t blocks = layout_.layers.size() / layout_.groups * 2 * first.heads;
  if (blocks == 0) return;
  constexpr size_t kPage = 4096;
  if (blocks * first.bytes[0] + kPage <= slab_bytes()) {  // other ranks have theirs in it
    stream_->copy(slab(to), slab(from), slab_bytes());
    return stream_->wait();
  }
  stream_->launch(copy_, blocks, kRowItems, static_cast<const void*>(slab(from)),
                  static_cast<void*>(slab(to)), block, block / kSlabTokens * tokens);
  stream_->wait();
}

void DevicePool::read_slab(int index, void* to) { transfer(to, slab(index)); }

void DevicePool::write_slab(int index, const void* from) { transfer(slab(index), from); }

void DevicePool::transfer(void* to, const void* from) {
  try {
    transfers_->copy(to, from, slab_bytes());
    transfers_->wait();
  } catch (const Error& e) {
    fail(e.status(), "a copy of a KV slab failed: %s", e.what());
  }
}

}  // namespace millrace::gpu
