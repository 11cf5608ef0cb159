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
  Product& product(int rows, int depth, int columns) {
    const auto key = std::tuple(rows, depth, columns);
    const auto known = products_.find(key);
    if (known != products_.end()) return known->second;
    const memory::desc in({rows, depth}, memory::data_type::s8, memory::dims{depth, 1});
    const memory::desc weights({depth, columns}, memory::data_type::s8,
                               memory::format_tag::BA16a64b4a);
    const memory::desc out({rows, columns}, memory::data_type::s32, memory::dims{columns, 1});
    const dnnl::matmul::primitive_desc desc(engine_, in, weights, out);
    Product p{
        dnnl::matmul(desc), {}, std::string(desc.impl_info_str()).find("ref") != std::string::npos};
    const auto argument = [&](int name, const memory::desc& d) {
      p.arguments.emplace(name,
                          interop::make_memory(d, engine_, interop::memory_kind::usm, nullptr));
    };
    argument(DNNL_ARG_SRC, in);
    argument(DNNL_ARG_WEIGHTS, weights);
    argument(DNNL_ARG_DST, out);
    return products_.emplace(key, std::move(p)).first->second;
  }

  Stream& stream_;
  dnnl::engine engine_;
  dnnl::stream queue_;
  std::map<std::tuple<int, int, int>, Product> products_;
};

}  // namespace

std::unique_ptr<Int8Products> open_int8_products(Stream& stream) {
  return stream.device().is_cpu() ? std::make_unique<CpuProducts>(stream) : nullptr;
}

}  // namespace millrace::gpu
