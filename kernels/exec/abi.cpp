#include "exec/abi.hpp"

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "exec/error.hpp"
#include "exec/executor.hpp"

struct mr_device {
  std::vector<std::unique_ptr<millrace::Device>> ranks;
  std::unique_ptr<millrace::RankThreads> threads;  // null: the one rank runs on the caller's thread

  int size() const { return static_cast<int>(ranks.size()); }
  void each(const std::function<void(int)>& fn, millrace::Exchange* exchange = nullptr) const {
    if (threads == nullptr) return fn(0);
    threads->run(fn, exchange);
  }
};

struct mr_program {
  mr_program(const mr_device& device, const mr_program_desc* descs);

  millrace::Executor& first() const { return *ranks.front(); }
  void run(const mr_step& step);
  void info(mr_program_info& out) const;
  void reserve(int slabs, const millrace::PoolFile& file) const;

  const mr_device& device;
  millrace::Exchange exchange;
  std::vector<std::unique_ptr<millrace::Executor>> ranks;
  std::string numerics;
};

namespace millrace {
namespace {

// What the programs of all ranks have alike: what they meet for, and what a region and a step are.
bool alike(const Executor& a, const Executor& b) {
  const Program &p = a.program(), &q = b.program();
  if (p.vocab != q.vocab || p.kv_groups != q.kv_groups || p.lookback != q.lookback ||
      p.max_positions != q.max_positions || p.max_rows != q.max_rows ||
      p.max_outputs != q.max_outputs || p.max_hidden != q.max_hidden ||
      a.layout().type != b.layout().type || a.layout().head_slabs != b.layout().head_slabs ||
      a.layout().most_slabs != b.layout().most_slabs) {
    return false;
  }
  const auto meetings = [](const Program& p) {
    std::vector<std::pair<int, bool>> all;  // the width, and whether of outputs
    for (const Op& op : p.ops) {
      if (op.kind == MR_OP_ALL_REDUCE)
        all.emplace_back(p.slots[op.out].width, op.index >= p.select);
    }
    return all;
  };
  return meetings(p) == meetings(q);
}

}  // namespace
}  // namespace millrace

mr_program::mr_program(const mr_device& device, const mr_program_desc* descs)
    : device(device), exchange(device.size()) {
  std::vector<millrace::RankShare> shares(device.size());
  size_t slab_bytes = 0;
  int classes = 0;
  for (int r = 0; r < device.size(); ++r) {
    ranks.push_back(std::make_unique<millrace::Executor>(*device.ranks[r], descs[r]));
    if (!millrace::alike(first(), *ranks[r])) {
      millrace::fail(MR_INVALID,
                     "the program of rank %d has other groups of layers, limits or ALL_REDUCEs "
                     "than that of rank 0",
                     r);
    }
    shares[r] = {r, slab_bytes, 0, classes, 0};
    slab_bytes += ranks[r]->layout().slab_bytes;
    classes += ranks[r]->program().classes;
  }
  device.each([&](int r) {
    shares[r].slab_bytes = slab_bytes;
    shares[r].classes = classes;
    ranks[r]->load(shares[r], exchange);
  });
  numerics = first().numerics();
  if (device.size() > 1) numerics += " ranks-" + std::to_string(device.size());
}

void mr_program::run(const mr_step& step) {
  for (const auto& rank : ranks) rank->begin(step);
  exchange.begin();
  device.each([&](int r) { ranks[r]->run(step); }, &exchange);
}

void mr_program::info(mr_program_info& out) const {
  first().info(out);
  for (size_t r = 1; r < ranks.size(); ++r) {
    mr_program_info rank;
    ranks[r]->info(rank);
    out.weight_bytes += rank.weight_bytes;
    out.activation_bytes += rank.activation_bytes;
  }
}

void mr_program::reserve(int slabs, const millrace::PoolFile& file) const {
  first().reserve(slabs, file);
  for (size_t r = 1; r < ranks.size(); ++r) ranks[r]->share_pool(first().pool());
}

namespace millrace {
namespace {

int32_t report(mr_error* error, mr_status status, const char* message) noexcept {
  if (error != nullptr) {
    error->status = status;
    std::snprintf(error->message, sizeof error->message, "%s", message);
  }
  return status;
}

// Runs a call of the ABI. No exception leaves.
template <class F>
int32_t guarded(mr_error* error, F&& call) noexcept {
  try {
    call();
    return report(error, MR_OK, "");
  } catch (const Error& e) {
    return report(error, e.status(), e.what());
  } catch (const std::bad_alloc&) {
    return report(error, MR_NO_MEMORY, "out of memory");
  } catch (const std::system_error& e) {
    return report(error, MR_DEVICE, e.what());
  } catch (const std::exception& e) {
    return report(error, MR_DEVICE, e.what());
  } catch (...) {
    return report(error, MR_DEVICE, "unknown exception");
  }
}

template <class... P>
void need(const P*... pointers) {
  if (((pointers == nullptr) || ...)) fail(MR_INVALID, "a null pointer, expected an object");
}

void device_close(mr_device* device) { delete device; }

int32_t device_info(mr_device* device, mr_device_info* out, mr_error* error) {
  return guarded(error, [&] {
    need(device, out);
    *out = {};
    device->ranks[0]->info(*out);
    for (int r = 1; r < device->size(); ++r) {
      mr_device_info rank{};
      device->ranks[r]->info(rank);
      out->threads += rank.threads;
      out->keeps_logits = 0;  // each rank has some of the classes
    }
  });
}

int32_t device_measure(mr_device* device, mr_measurement* out, mr_error* error) {
  return guarded(error, [&] {
    need(device, out);
    std::vector<mr_measurement> ranks(device->size());
    device->each([&](int r) { ranks[r] = device->ranks[r]->measure(); });
    *out = {};
    for (const mr_measurement& m : ranks) {
      out->read_gbps += m.read_gbps;
      out->peak_gflops += m.peak_gflops;
      out->peak_int8_gops += m.peak_int8_gops;
    }
  });
}

int32_t program_load(mr_device* device, const mr_program_desc* desc, mr_program** out,
                     mr_error* error) {
  return guarded(error, [&] {
    need(device, desc, out);
    *out = new mr_program(*device, desc);
  });
}

void program_unload(mr_program* program) { delete program; }

int32_t program_info(mr_program* program, mr_program_info* out, mr_error* error) {
  return guarded(error, [&] {
    need(program, out);
    program->info(*out);
  });
}

int32_t program_packed(mr_program* program, int32_t index, mr_span* out, mr_error* error) {
  return guarded(error, [&] {
    need(program, out);
    *out = program->ranks.size() > 1 ? mr_span{} : program->first().packed(index);
  });
}

int32_t program_numerics(mr_program* program, const char** out, mr_error* error) {
  return guarded(error, [&] {
    need(program, out);
    *out = program->numerics.c_str();
  });
}

int32_t program_run(mr_program* program, const mr_step* step, mr_error* error) {
  return guarded(error, [&] {
    need(program, step);
    program->run(*step);
  });
}

int32_t kv_reserve(mr_program* program, int32_t slabs, mr_error* error) {
  return guarded(error, [&] {
    need(program);
    program->reserve(slabs, {});
  });
}

int32_t kv_reserve_file(mr_program* program, int32_t slabs, int32_t file, uint64_t offset,
                        mr_error* error) {
  return guarded(error, [&] {
    need(program);
    if (file < 0) fail(MR_INVALID, "file %d, expected an open one", file);
    program->reserve(slabs, {file, offset});
  });
}

int32_t region_create(mr_program* program, int32_t slabs, mr_region** out, mr_error* error) {
  return guarded(error, [&] {
    need(program, out);
    *out = new mr_region(program->first().pool(), slabs);
  });
}

int32_t region_map(mr_region* region, int32_t index, const int32_t* slabs, int32_t n,
                   mr_error* error) {
  return guarded(error, [&] {
    need(region, slabs);
    region->map(index, slabs, n);
  });
}

int32_t region_unmap(mr_region* region, int32_t index, int32_t n, mr_error* error) {
  return guarded(error, [&] {
    need(region);
    region->unmap(index, n);
  });
}

void region_destroy(mr_region* region) { delete region; }

int32_t slab_copy(mr_program* program, int32_t from, int32_t to, int32_t tokens, mr_error* error) {
  return guarded(error, [&] {
    need(program);
    program->first().pool()->copy(from, to, tokens);
  });
}

int32_t slab_read(mr_program* program, int32_t slab, void* to, mr_error* error) {
  return guarded(error, [&] {
    need(program, to);
    program->first().pool()->read(slab, to);
  });
}

int32_t slab_write(mr_program* program, int32_t slab, const void* from, mr_error* error) {
  return guarded(error, [&] {
    need(program, from);
    program->first().pool()->write(slab, from);
  });
}

int32_t program_logits(mr_program* program, int32_t row, float* out, mr_error* error) {
  return guarded(error, [&] {
    need(program, out);
    program->first().read_logits(row, out);
  });
}

int32_t program_draw(mr_program* program, const mr_draw* draws, int32_t n, const uint32_t* masks,
                     int32_t n_masks, int32_t* tokens, mr_error* error) {
  return guarded(error, [&] {
    need(program);
    if (n < 0 || n_masks < 0 || (n > 0 && (draws == nullptr || tokens == nullptr)) ||
        (n_masks > 0 && masks == nullptr)) {
      fail(MR_INVALID, "%d draws with %d masks, or a null pointer", n, n_masks);
    }
    program->first().draw({draws, size_t(n)}, masks, n_masks, tokens);
  });
}

int32_t program_start(mr_program* program, const mr_step* step, const mr_draw* draws,
                      mr_error* error) {
  return guarded(error, [&] {
    need(program, step);
    if (program->ranks.size() > 1) fail(MR_UNSUPPORTED, "ranks keep no logits to draw from");
    program->first().start(*step, draws);
  });
}

int32_t program_drawn(mr_program* program, int32_t* tokens, int32_t n, mr_error* error) {
  return guarded(error, [&] {
    need(program);
    if (n < 0 || (n > 0 && tokens == nullptr)) {
      fail(MR_INVALID, "%d tokens, or a null pointer", n);
    }
    program->first().drawn({tokens, size_t(n)});
  });
}

}  // namespace

int32_t open_device(OpenDevice open, const mr_device_config* config, mr_device** out,
                    mr_error* error, PlaceRanks places) noexcept {
  return guarded(error, [&] {
    need(config, out);
    if (config->ranks < 0 || config->ranks > MR_MAX_RANKS) {
      fail(MR_INVALID, "%d ranks, expected 0 to %d", config->ranks, MR_MAX_RANKS);
    }
    auto device = std::make_unique<mr_device>();
    if (config->ranks > 1) {
      if (places == nullptr) {
        fail(MR_UNSUPPORTED, "%d ranks: this backend has one", config->ranks);
      }
      device->threads = std::make_unique<RankThreads>(places(*config));
    }
    device->ranks.resize(std::max(1, config->ranks));
    device->each([&](int r) {
      mr_device_config rank = *config;
      if (device->threads != nullptr) rank.threads = device->threads->place(r).threads;
      device->ranks[r] = open(rank, r);
    });
    *out = device.release();
  });
}

mr_backend backend_table(const char* name, decltype(mr_backend::device_open) device_open) {
  return {MR_ABI_VERSION,   name,           device_open,    device_close,  device_info,
          device_measure,   program_load,   program_unload, program_info,  program_packed,
          program_numerics, program_run,    kv_reserve,     region_create, region_map,
          region_unmap,     region_destroy, slab_copy,      slab_read,     slab_write,
          kv_reserve_file,  program_logits, program_draw,   program_start, program_drawn};
}

}  // namespace millrace
