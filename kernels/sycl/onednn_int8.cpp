#include "gpu/onednn_int8.hpp"

#include <map>
#include <oneapi/dnnl/dnnl_sycl.hpp>
#include <string>
#include <tuple>
#include <unordered_map>

#include "gpu/onednn.hpp"

namespace millrace::gpu {
namespace {

using dnnl::memory;
namespace interop = dnnl::sycl_interop;

memory::desc our_weights(int depth, int columns) {
  return {{depth, columns}, memory::data_type::s8, memory::format_tag::BA16a64b4a};
}

bool reference(const dnnl::matmul::primitive_desc& desc) {
  return std::string(desc.impl_info_str()).find("ref") != std::string::npos;
}

struct Product {
  dnnl::matmul matmul;
  std::unordered_map<int, memory> arguments;
  bool reference;
};

class CpuProducts : public Int8Products {
 public:
  explicit CpuProducts(Stream& stream)
      : stream_(stream),
        engine_(interop::make_engine(stream.device(), stream.queue().get_context())),
        queue_(interop::make_stream(engine_, const_cast<sycl::queue&>(stream.queue()))) {}

  bool can(int most_rows, int depth, int columns) override {
    try {
      for (const int rows : onednn_block_sizes(most_rows)) {
        if (product(rows, depth, columns).reference) return false;
      }
      return true;
    } catch (const dnnl::error& e) {
      if (e.status != dnnl_unimplemented) throw;
      return false;
    }
  }

  Buffer adopt(Buffer words, int depth, int columns) override {
    const memory::desc wanted = weights(depth, columns);
    if (wanted.get_size() <= words.size()) return words;
    Buffer adopted = stream_.allocate(wanted.get_size());
    const Buffer flat = stream_.allocate(words.size());
    const auto usm = [&](const memory::desc& d, const Buffer& data) {
      return interop::make_memory(d, engine_, interop::memory_kind::usm, data.data());
    };
    const memory from = usm(our_weights(depth, columns), words);
    const memory between =
        usm({{depth, columns}, memory::data_type::s8, memory::dims{1, depth}}, flat);
    const memory to = usm(wanted, adopted);
    stream_.wait();
    // oneDNN has no reorder from one to the other.
    reorder(from, between);
    reorder(between, to);
    return adopted;
  }

  void run(int most_rows, int rows, int depth, int columns, const void* codes, void* weights,
           void* sums) override {
    for (const int size : onednn_block_sizes(most_rows)) {
      if (size < rows) continue;
      Product& p = product(size, depth, columns);
      p.arguments.at(DNNL_ARG_SRC).set_data_handle(const_cast<void*>(codes));
      p.arguments.at(DNNL_ARG_WEIGHTS).set_data_handle(weights);
      p.arguments.at(DNNL_ARG_DST).set_data_handle(sums);
      // A host task of the runtime, which reads its arguments when it runs: see onednn.cpp.
      stream_.wait();
      stream_.submit_by([&] { return interop::execute(p.matmul, queue_, p.arguments); });
      stream_.wait();
      return;
    }
  }

 private:
  void reorder(memory from, memory to) {
    dnnl::reorder(from, to).execute(queue_, from, to);
    stream_.wait();
  }

  // How it wants weights in our order. Processors that multiply unsigned codes by signed ones want
  // numbers after them that correct the sums.
  const memory::desc& weights(int depth, int columns) {
    const auto key = std::pair(depth, columns);
    const auto known = weights_.find(key);
    if (known != weights_.end()) return known->second;
    const memory::desc ours = our_weights(depth, columns);
    memory::desc best = ours;
    if (reference(description(kOneDnnRows, depth, columns, ours))) {
      const memory::desc any({depth, columns}, memory::data_type::s8, memory::format_tag::any);
      const memory::desc theirs = description(kOneDnnRows, depth, columns, any).weights_desc();
      const bool same = theirs.get_inner_blks() == ours.get_inner_blks() &&
                        theirs.get_inner_idxs() == ours.get_inner_idxs() &&
                        theirs.get_strides() == ours.get_strides();
      if (same) best = theirs;
    }
    return weights_.emplace(key, best).first->second;
  }

  Product& product(int rows, int depth, int columns) {
    const auto key = std::tuple(rows, depth, columns);
    const auto known = products_.find(key);
    if (known != products_.end()) return known->second;
    const auto desc = description(rows, depth, columns, weights(depth, columns));
    Product p{dnnl::matmul(desc), {}, reference(desc)};
    const auto argument = [&](int name, const memory::desc& d) {
      p.arguments.emplace(name,
                          interop::make_memory(d, engine_, interop::memory_kind::usm, nullptr));
    };
    argument(DNNL_ARG_SRC, desc.src_desc());
    argument(DNNL_ARG_WEIGHTS, desc.weights_desc());
    argument(DNNL_ARG_DST, desc.dst_desc());
    return products_.emplace(key, std::move(p)).first->second;
  }

  dnnl::matmul::primitive_desc description(int rows, int depth, int columns,
                                           const memory::desc& weights) {
    const memory::desc in({rows, depth}, memory::data_type::s8, memory::dims{depth, 1});
    const memory::desc out({rows, columns}, memory::data_type::s32, memory::dims{columns, 1});
    return {engine_, in, weights, out};
  }

  Stream& stream_;
  dnnl::engine engine_;
  dnnl::stream queue_;
  std::map<std::pair<int, int>, memory::desc> weights_;
  std::map<std::tuple<int, int, int>, Product> products_;
};

}  // namespace

std::unique_ptr<Int8Products> open_int8_products(Stream& stream) {
  return stream.device().is_cpu() ? std::make_unique<CpuProducts>(stream) : nullptr;
}

}  // namespace millrace::gpu
