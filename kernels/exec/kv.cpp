#include "exec/kv.hpp"

#include <unistd.h>

#include <algorithm>

#include "exec/error.hpp"
#include "millrace_kernels.h"

namespace millrace {

KvLayout::KvLayout(const std::vector<LayerShape>& shapes, int groups, int32_t type,
                   const std::function<size_t(int width)>& block_bytes)
    : groups(groups), type(type) {
  const size_t each = shapes.size() / groups;
  size_t end = 0;
  at_least(1);
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (i % each == 0) end = 0;
    Layer& layer = layers.emplace_back(Layer{shapes[i], end, {}});
    if (layer.heads > 0) {
      layer.bytes[0] = block_bytes(layer.key);
      if (!layer.latent) layer.bytes[1] = block_bytes(layer.value);
    }
    end += layer.heads * (layer.bytes[0] + layer.bytes[1]);
    at_least(end);
  }
}

void KvLayout::at_least(size_t bytes) {
  const size_t page = sysconf(_SC_PAGESIZE);
  slab_bytes = std::max(slab_bytes, (bytes + page - 1) / page * page);
}

void KvLayout::place(size_t from, size_t bytes) {
  for (Layer& layer : layers) layer.begin += from;
  slab_bytes = bytes;
}

size_t KvLayout::block(int place, int value, int head) const {
  const Layer& layer = layers[place];
  if (layer.latent) value = 0;
  return layer.begin + value * layer.heads * layer.bytes[0] + head * layer.bytes[value];
}

KvPool::KvPool(const KvLayout& layout, int slabs) : layout_(layout), slabs_(slabs) {
  if (slabs < 1) fail(MR_INVALID, "KV pool of %d slabs, expected at least 1", slabs);
}

void KvPool::copy(int from, int to, int tokens) {
  for (const int slab : {from, to}) {
    if (slab < 0 || slab >= slabs_) {
      fail(MR_INVALID, "slab copy %d to %d: expected slabs 0 to %d", from, to, slabs_ - 1);
    }
  }
  if (from == to) fail(MR_INVALID, "slab copy %d to %d: expected two slabs", from, to);
  if (tokens < 0 || tokens > MR_SLAB_TOKENS) {
    fail(MR_INVALID, "slab copy of %d tokens, expected 0 to %d", tokens, MR_SLAB_TOKENS);
  }
  copy_slab(from, to, tokens);
}

void KvPool::check(int slab) const {
  if (slab < 0 || slab >= slabs_) {
    fail(MR_INVALID, "slab %d does not exist, expected 0 to %d", slab, slabs_ - 1);
  }
}

void KvPool::read(int slab, void* to) {
  check(slab);
  read_slab(slab, to);
}

void KvPool::write(int slab, const void* from) {
  check(slab);
  write_slab(slab, from);
}

KvRegion::KvRegion(std::shared_ptr<KvPool> pool, int slabs)
    : pool_(std::move(pool)), slabs_(slabs) {
  // A reservation costs addresses only; the bounds keep the products sound.
  constexpr uint64_t kMostBytes = uint64_t{1} << 44;
  const uint64_t most = std::min(kMostBytes / pool_->slab_bytes() / pool_->groups(),
                                 uint64_t{INT32_MAX} / pool_->groups());
  if (slabs < 1 || uint64_t(slabs) > most) {
    fail(MR_INVALID, "region of %d slabs, expected 1 to %llu", slabs,
         static_cast<unsigned long long>(most));
  }
  slab_.assign(place(pool_->groups()), -1);
  data_ = pool_->reserve(static_cast<int>(slab_.size()));
}

KvRegion::~KvRegion() { pool_->release(data_, static_cast<int>(slab_.size())); }

std::byte* KvRegion::at(size_t index) const {
  return data_ == nullptr ? nullptr : data_ + pool_->slab_bytes() * index;
}

void KvRegion::check(int index, int n, bool expect_mapped) const {
  const int places = static_cast<int>(slab_.size());
  if (index < 0 || n < 1 || n > places - index) {
    fail(MR_INVALID, "region places %d and %d following, expected inside its %d", index, n - 1,
         places);
  }
  for (int i = index; i < index + n; ++i) {
    if ((slab_[i] >= 0) == expect_mapped) continue;
    if (expect_mapped) fail(MR_INVALID, "region place %d is not mapped", i);
    fail(MR_INVALID, "region place %d maps slab %d already", i, slab_[i]);
  }
}

void KvRegion::map(int index, const int32_t* slabs, int n) {
  check(index, n, false);
  for (int i = 0; i < n; ++i) {
    if (slabs[i] < 0 || slabs[i] >= pool_->slabs()) {
      fail(MR_INVALID, "slab %d does not exist, expected 0 to %d", slabs[i], pool_->slabs() - 1);
    }
  }
  pool_->map(at(index), slabs, n);
  std::copy_n(slabs, n, slab_.begin() + index);
}

void KvRegion::unmap(int index, int n) {
  check(index, n, true);
  pool_->unmap(at(index), n);
  std::fill_n(slab_.begin() + index, n, -1);
}

}  // namespace millrace
