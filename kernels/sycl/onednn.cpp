#include "sycl/onednn.hpp"

#include <algorithm>
#include <map>
#include <oneapi/dnnl/dnnl_sycl.hpp>
#include <optional>
#include <unordered_map>
#include <vector>

#include "sycl/weights.hpp"

namespace millrace::sycl_backend {
namespace {

using dnnl::memory;
namespace interop = dnnl::sycl_interop;

// Rows that one product takes at most: more go block by block, each as fast.
constexpr int kBlockRows = 256;

memory::data_type data_type(mr_dtype type) {
  return type == MR_BF16 ? memory::data_type::bf16 : memory::data_type::f16;
}

memory::desc matrix(int64_t rows, int64_t columns, memory::data_type type) {
  return {{rows, columns}, type, memory::dims{columns, 1}};
}

std::optional<dnnl::algorithm> algorithm(int activation) {
  switch (activation) {
    case MR_ACT_SILU:
      return dnnl::algorithm::eltwise_swish;
    case MR_ACT_GELU_TANH:
      return dnnl::algorithm::eltwise_gelu_tanh;
    case MR_ACT_GELU_ERF:
      return dnnl::algorithm::eltwise_gelu_erf;
    case MR_ACT_RELU:
      return dnnl::algorithm::eltwise_relu;
    default:
      return std::nullopt;
  }
}

struct Ending {
  int activation;
  bool factor;  // times a [rows][width] matrix of floats
  bool accumulate, bias;
  memory::data_type out;
};

// out = act(in . W^T + b) * factor, or added to out, of one block of rows.
class Product {
 public:
  Product(const dnnl::engine& engine, const LinearKind& kind, const Ending& ending, int rows,
          const memory::desc& weights) {
    const auto type = data_type(kind.type);
    const memory::desc out = matrix(rows, kind.width, ending.out);
    const memory::desc factor = matrix(rows, kind.width, memory::data_type::f32);
    dnnl::post_ops post;
    if (const auto activation = algorithm(ending.activation)) {
      const float alpha = ending.activation == MR_ACT_SILU ? 1.0f : 0.0f;
      post.append_eltwise(*activation, alpha, 0.0f);
    }
    const int factor_argument = DNNL_ARG_ATTR_MULTIPLE_POST_OP(post.len()) | DNNL_ARG_SRC_1;
    if (ending.factor) post.append_binary(dnnl::algorithm::binary_mul, factor);
    if (ending.accumulate) post.append_sum();
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(post);
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const memory::desc bias =
        ending.bias ? matrix(1, kind.width, memory::data_type::f32) : memory::desc();
    const dnnl::matmul::primitive_desc desc(engine, matrix(rows, kind.depth, type), weights, bias,
                                            out, attributes);
    weights_ = desc.weights_desc();
    scratch_bytes_ = desc.scratchpad_desc().get_size();
    reference_ = std::string(desc.impl_info_str()).find("ref") != std::string::npos;
    matmul_ = dnnl::matmul(desc);
    const auto argument = [&](int name, const memory::desc& d) {
      arguments_.emplace(name, interop::make_memory(d, engine, interop::memory_kind::usm, nullptr));
    };
    argument(DNNL_ARG_SRC, desc.src_desc());
    argument(DNNL_ARG_WEIGHTS, weights_);
    argument(DNNL_ARG_DST, out);
    argument(DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc());
    if (ending.bias) argument(DNNL_ARG_BIAS, bias);
    if (ending.factor) {
      argument(factor_argument, factor);
      factor_ = factor_argument;
    }
  }

  sycl::event run(dnnl::stream& stream, const void* in, const Buffer& weights, const Buffer& bias,
                  const void* factor, void* scratch, void* out) {
    set(DNNL_ARG_SRC, in);
    set(DNNL_ARG_WEIGHTS, weights.data());
    set(DNNL_ARG_DST, out);
    set(DNNL_ARG_SCRATCHPAD, scratch);
    if (bias.size() > 0) set(DNNL_ARG_BIAS, bias.data());
    if (factor_ != 0) set(factor_, factor);
    return interop::execute(matmul_, stream, arguments_);
  }

  const memory::desc& weights() const { return weights_; }
  size_t scratch_bytes() const { return scratch_bytes_; }
  bool reference() const { return reference_; }

 private:
  void set(int name, const void* data) {
    arguments_.at(name).set_data_handle(const_cast<void*>(data));
  }

  dnnl::matmul matmul_;
  memory::desc weights_;
  std::unordered_map<int, memory> arguments_;
  size_t scratch_bytes_;
  int factor_ = 0;
  bool reference_;
};

// The products of a kind of op, by rows. A gated op is up, then gate times up.
class Products {
 public:
  Products(const dnnl::engine& engine, const LinearKind& kind, const Ending& ending) {
    const std::vector<int> sizes = onednn_block_sizes(kind.most_rows);
    memory::desc weights({kind.depth, kind.width}, data_type(kind.type), memory::format_tag::any);
    // The largest one says how the weights lie.
    for (auto rows = sizes.rbegin(); rows != sizes.rend(); ++rows) {
      const auto [it, added] = by_rows_.try_emplace(*rows, engine, kind, ending, *rows, weights);
      weights = it->second.weights();
    }
  }

  const memory::desc& weights() const { return by_rows_.begin()->second.weights(); }
  Product& of(int rows) { return by_rows_.lower_bound(rows)->second; }
  size_t scratch_bytes() const {
    size_t bytes = 0;
    for (const auto& [rows, product] : by_rows_) bytes = std::max(bytes, product.scratch_bytes());
    return bytes;
  }
  bool reference() const {
    return std::any_of(by_rows_.begin(), by_rows_.end(),
                       [](const auto& entry) { return entry.second.reference(); });
  }

 private:
  std::map<int, Product> by_rows_;
};

// What the ops of a kind share.
struct Shared {
  std::unique_ptr<Products> products, up;
};

// The memory between two products, and within one: the queue is in order.
struct Scratch {
  Buffer up;      // [kBlockRows][width] floats
  Buffer inside;  // oneDNN's own

  void reach(Stream& stream, size_t up_bytes, size_t inside_bytes) {
    if (up_bytes > up.size()) up = stream.allocate(up_bytes);
    if (inside_bytes > inside.size()) inside = stream.allocate(inside_bytes);
  }
};

class OneDnnLinear : public Linear {
 public:
  struct Weights {
    Buffer numbers, bias;
  };

  OneDnnLinear(dnnl::stream& queue, const LinearKind& kind, Shared& shared, Scratch& scratch,
               Weights weights, Weights up, bool host_task)
      : queue_(queue),
        kind_(kind),
        shared_(shared),
        scratch_(scratch),
        weights_(std::move(weights)),
        up_(std::move(up)),
        host_task_(host_task) {}

  void run(Stream& stream, int rows, const void* in, void* out) override {
    const int64_t in_row = int64_t{kind_.depth} * 2;
    const int64_t out_row = int64_t{kind_.width} * (kind_.out_f32 ? 4 : 2);
    for (int first = 0; first < rows; first += kBlockRows) {
      run_block(stream, std::min(rows - first, kBlockRows),
                static_cast<const std::byte*>(in) + first * in_row,
                static_cast<std::byte*>(out) + first * out_row);
    }
  }

  uint64_t bytes() const override {
    return weights_.numbers.size() + weights_.bias.size() + up_.numbers.size() + up_.bias.size();
  }

 private:
  void run_block(Stream& stream, int rows, const void* in, void* out) {
    void* inside = scratch_.inside.data();
    void* up = kind_.gated ? scratch_.up.data() : nullptr;
    const auto submit = [&](Products& products, const Weights& w, const void* factor, void* to) {
      Product& product = products.of(rows);
      if (host_task_) stream.wait();
      stream.submit_by(
          [&] { return product.run(queue_, in, w.numbers, w.bias, factor, inside, to); });
      if (host_task_) stream.wait();
    };
    if (kind_.gated) submit(*shared_.up, up_, nullptr, up);
    submit(*shared_.products, weights_, up, out);
  }

  dnnl::stream& queue_;
  LinearKind kind_;
  Shared& shared_;
  Scratch& scratch_;
  Weights weights_, up_;
  // On a CPU oneDNN is a host task of the runtime. It reads its arguments when it
  // runs, so there is one at a time; and to queue anything behind one costs 0.2 ms,
  // but to wait before and after it 10 us each.
  bool host_task_;
};

class Opened : public OneDnn {
 public:
  explicit Opened(Stream& stream)
      : stream_(stream),
        engine_(interop::make_engine(stream.device(), stream.queue().get_context())),
        queue_(interop::make_stream(engine_, const_cast<sycl::queue&>(stream.queue()))) {}

  std::unique_ptr<Linear> linear(const LinearKind& kind, const Program& program,
                                 const Op& op) override {
    Shared* shared = share(kind);
    if (shared == nullptr) return nullptr;
    OneDnnLinear::Weights up;
    if (kind.gated) up = load(kind, *shared->up, program, op, kind.width);
    return std::make_unique<OneDnnLinear>(queue_, kind, *shared, scratch_,
                                          load(kind, *shared->products, program, op, 0),
                                          std::move(up), stream_.device().is_cpu());
  }

  uint64_t scratch_bytes() const override { return scratch_.up.size() + scratch_.inside.size(); }

 private:
  // Null where oneDNN cannot compute the kind well, or not at all.
  Shared* share(const LinearKind& kind) {
    const auto [it, added] = shared_.try_emplace(kind);
    Shared& shared = it->second;
    if (!added) return shared.products ? &shared : nullptr;
    const auto floats = memory::data_type::f32;
    const Ending ending{kind.activation, kind.gated, kind.accumulate, kind.bias,
                        kind.out_f32 ? floats : data_type(kind.type)};
    try {
      auto products = std::make_unique<Products>(engine_, kind, ending);
      if (products->reference()) return nullptr;
      size_t inside = products->scratch_bytes();
      if (kind.gated) {
        const Ending up{MR_ACT_NONE, false, false, kind.bias, floats};
        shared.up = std::make_unique<Products>(engine_, kind, up);
        if (shared.up->reference()) return nullptr;
        inside = std::max(inside, shared.up->scratch_bytes());
      }
      const size_t rows = std::min(kind.most_rows, kBlockRows);
      scratch_.reach(stream_, kind.gated ? rows * kind.width * sizeof(float) : 0, inside);
      shared.products = std::move(products);
    } catch (const dnnl::error& e) {
      if (e.status != dnnl_unimplemented) throw;
      return nullptr;
    }
    return &shared;
  }

  // Rows [first, first + width) of W, in oneDNN's own order.
  OneDnnLinear::Weights load(const LinearKind& kind, const Products& products,
                             const Program& program, const Op& op, int64_t first) {
    std::vector<uint16_t> numbers(int64_t{kind.width} * kind.depth);
    std::vector<float> bias(kind.bias ? kind.width : 0);
    parallel(kind.width, [&](int64_t column) {
      const SourceRow source = source_row(program, op, first + column);
      read_row(source, kind.depth, kind.type, numbers.data() + column * kind.depth);
      if (source.bias != nullptr) bias[column] = element(*source.bias, source.row);
    });
    const Buffer plain = stream_.allocate(numbers.size() * sizeof numbers[0]);
    stream_.copy(plain.data(), numbers.data(), plain.size());
    OneDnnLinear::Weights loaded{stream_.allocate(products.weights().get_size()),
                                 stream_.allocate(bias.size() * sizeof(float))};
    if (kind.bias) stream_.copy(loaded.bias.data(), bias.data(), loaded.bias.size());
    stream_.wait();
    const auto usm = [&](const memory::desc& d, const Buffer& data) {
      return interop::make_memory(d, engine_, interop::memory_kind::usm, data.data());
    };
    const memory from =
        usm({{kind.depth, kind.width}, data_type(kind.type), memory::dims{1, kind.depth}}, plain);
    const memory to = usm(products.weights(), loaded.numbers);
    dnnl::reorder(from, to).execute(queue_, const_cast<memory&>(from), const_cast<memory&>(to));
    stream_.wait();
    return loaded;
  }

  Stream& stream_;
  dnnl::engine engine_;
  dnnl::stream queue_;
  std::map<LinearKind, Shared> shared_;
  Scratch scratch_;
};

}  // namespace

std::string onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor);
}

// Other numbers of rows take the next larger
// one, whose last rows nobody reads. None below 4: on a CPU oneDNN adds up a
// single row in another order, and reads weights slower for 2 rows than for 4.
std::vector<int> onednn_block_sizes(int most_rows) {
  std::vector<int> sizes;
  for (const int rows : {4, 8, 16, 24, 32, 48, 64, 96, 128, 192, kBlockRows}) {
    if (rows <= most_rows) sizes.push_back(rows);
  }
  // The last block of a full step, behind which there may be no memory.
  const int last = most_rows % kBlockRows;
  if (last > 0) sizes.push_back(last);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

std::unique_ptr<OneDnn> open_onednn(Stream& stream) { return std::make_unique<Opened>(stream); }

}  // namespace millrace::sycl_backend
