#include "gpu/onednn.hpp"

#include <algorithm>
#include <map>
#include <oneapi/dnnl/dnnl_sycl.hpp>
#include <unordered_map>
#include <vector>

#include "gpu/weights.hpp"

namespace millrace::gpu {
namespace {

using dnnl::memory;
namespace interop = dnnl::sycl_interop;

// What products multiply, and how weights lie.
enum class Order {
  pairs,   // operands; as device/packed.cpp has pairs
  floats,  // rows and weights are widened before; as device/packed.cpp has weights for floats
  theirs,  // operands; as oneDNN wants them
};

// Weights that are widened at a time: they stay in the caches until they are multiplied.
constexpr int64_t kWidenedBytes = 8 << 20;

memory::data_type data_type(mr_dtype type) {
  return type == MR_BF16 ? memory::data_type::bf16 : memory::data_type::f16;
}

memory::desc matrix(int64_t rows, int64_t columns, memory::data_type type) {
  return {{rows, columns}, type, memory::dims{columns, 1}};
}

// The columns of an op's product: a gated op has both halves, block by block.
int64_t product_columns(const LinearKind& kind) {
  constexpr int kHalf = kPackedColumns / 2;
  if (!kind.gated) return kind.width;
  return int64_t{(kind.width + kHalf - 1) / kHalf} * kPackedColumns;
}

// Whether the product alone is the op; else mr_finish makes it of floats.
bool plain(const LinearKind& kind) {
  return !kind.gated && kind.activation.kind == MR_ACT_NONE && kind.out_f32;
}

// Whether the product itself adds to the output.
bool accumulates(const LinearKind& kind) { return kind.accumulate && plain(kind); }

// sums = in . W^T + b, or added to them, of one block of rows and some columns of the op's product.
class Product {
 public:
  Product(const dnnl::engine& engine, const LinearKind& kind, int rows, memory::data_type in,
          const memory::desc& weights) {
    const int64_t columns = weights.get_dims()[1];
    const memory::desc out({rows, columns}, memory::data_type::f32,
                           memory::dims{product_columns(kind), 1});
    dnnl::post_ops post;
    if (accumulates(kind)) post.append_sum();
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(post);
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const memory::desc bias =
        kind.bias ? matrix(1, columns, memory::data_type::f32) : memory::desc();
    const dnnl::matmul::primitive_desc desc(engine, matrix(rows, kind.depth, in), weights, bias,
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
    if (kind.bias) argument(DNNL_ARG_BIAS, bias);
  }

  // bias: null where the op has none.
  sycl::event run(dnnl::stream& stream, const void* in, const void* weights, const float* bias,
                  void* scratch, void* out) {
    set(DNNL_ARG_SRC, in);
    set(DNNL_ARG_WEIGHTS, weights);
    set(DNNL_ARG_DST, out);
    set(DNNL_ARG_SCRATCHPAD, scratch);
    if (bias != nullptr) set(DNNL_ARG_BIAS, bias);
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
  bool reference_;
};

// The products of a kind of op, by rows and columns.
class Products {
 public:
  Products(const dnnl::engine& engine, const LinearKind& kind, Order order) : order_(order) {
    const int64_t all = product_columns(kind);
    const auto type = data_type(kind.type);
    if (order == Order::floats) {
      weights_ = {{kind.depth, all}, type, memory::format_tag::BA16a64b};
      const int64_t block = padded_depth() * kPackedColumns;
      const int64_t blocks = kWidenedBytes / (block * static_cast<int64_t>(sizeof(float)));
      columns_ = std::min(std::max<int64_t>(blocks, 1) * kPackedColumns, all);
      for (const int64_t columns : {columns_, all % columns_}) {
        if (columns == 0) continue;
        add(engine, kind, memory::data_type::f32,
            {{kind.depth, columns}, memory::data_type::f32, memory::format_tag::BA16a64b});
      }
      return;
    }
    columns_ = all;
    weights_ =
        add(engine, kind, type,
            {{kind.depth, all},
             type,
             order == Order::pairs ? memory::format_tag::BA16a64b2a : memory::format_tag::any});
  }

  const memory::desc& weights() const { return weights_; }
  int64_t padded_depth() const { return weights_.get_padded_dims()[0]; }
  Order order() const { return order_; }
  int64_t columns() const { return columns_; }  // that a product computes
  Product& of(int rows, int64_t columns) { return by_size_.at(columns).lower_bound(rows)->second; }
  size_t scratch_bytes() const {
    size_t bytes = 0;
    for (const auto& [columns, by_rows] : by_size_) {
      for (const auto& [rows, product] : by_rows) {
        bytes = std::max(bytes, product.scratch_bytes());
      }
    }
    return bytes;
  }
  // The numbers of weights of that many columns, with those that fill blocks.
  int64_t numbers(int64_t columns) const {
    return (columns + kPackedColumns - 1) / kPackedColumns * kPackedColumns * padded_depth();
  }
  bool reference() const {
    return std::ranges::any_of(by_size_, [](const auto& size) {
      return std::ranges::any_of(size.second,
                                 [](const auto& entry) { return entry.second.reference(); });
    });
  }

 private:
  // Returns how the weights lie, which the product of most rows says.
  memory::desc add(const dnnl::engine& engine, const LinearKind& kind, memory::data_type in,
                   memory::desc weights) {
    std::map<int, Product>& by_rows = by_size_[weights.get_dims()[1]];
    const std::vector<int> sizes = onednn_block_sizes(kind.most_rows);
    for (auto rows = sizes.rbegin(); rows != sizes.rend(); ++rows) {
      const auto [it, added] = by_rows.try_emplace(*rows, engine, kind, *rows, in, weights);
      weights = it->second.weights();
    }
    return weights;
  }

  std::map<int64_t, std::map<int, Product>> by_size_;  // by columns and rows
  memory::desc weights_;
  int64_t columns_;
  Order order_;
};

// The memory before, after and within a product: the queue is in order.
struct Scratch {
  Buffer sums;  // [kOneDnnRows][product columns] floats, and what the last row's last vector reads
  Buffer inside;  // oneDNN's own
  // Where it multiplies floats: rows, and the weights of some columns.
  Buffer rows, weights;

  size_t bytes() const { return sums.size() + inside.size() + rows.size() + weights.size(); }
};

// What the ops of a program share.
struct Context {
  const LinearKernels& kernels;
  dnnl::stream queue;
  Scratch scratch;
  // On a CPU oneDNN is a host task of the runtime. It reads its arguments when it
  // runs, so there is one at a time; and to queue anything after one costs 0.2 ms,
  // but to wait before and after it 10 us each.
  bool host_task;
};

class Multiplication : public OneDnnLinear {
 public:
  struct Weights {
    Buffer numbers, bias;
  };

  Multiplication(Context& context, const LinearKind& kind, Products& products, Weights weights)
      : context_(context), kind_(kind), products_(products), weights_(std::move(weights)) {}

  void run(Stream& stream, int rows, const void* in, void* out) override {
    if (rows <= own_.most) return run_own(stream, shape(rows), in, out);
    const int64_t in_row = int64_t{kind_.depth} * 2;
    const int64_t out_row = int64_t{kind_.width} * (kind_.out_f32 ? 4 : 2);
    for (int first = 0; first < rows; first += kOneDnnRows) {
      run_block(stream, std::min(rows - first, kOneDnnRows),
                static_cast<const std::byte*>(in) + first * in_row,
                static_cast<std::byte*>(out) + first * out_row);
    }
  }

  uint64_t bytes() const override { return weights_.numbers.size() + weights_.bias.size(); }
  // A pair must not reach into the next row.
  bool packed() const override {
    return floats() || (products_.order() == Order::pairs && kind_.depth % 2 == 0);
  }
  WeightBlocks blocks() const override {
    if (kind_.gated || products_.order() == Order::theirs) return {};
    const int deep = floats() ? 1 : 2;
    return {weights_.numbers.data(), kPackedColumns, padded_depth() / deep, deep};
  }
  bool floats() const override { return products_.order() == Order::floats; }
  void set_own_rows(OwnRows own) override { own_ = own; }
  int sums_width() const override { return static_cast<int>(product_columns(kind_)); }
  void run_sums(Stream& stream, int rows, const void* in, void* sums) override {
    if (rows > own_.most) return multiply(stream, rows, in, sums);
    PackedShape plain = shape(rows);
    plain.width = plain.columns;
    plain.activation = {};
    plain.gated = 0;
    plain.accumulate = accumulates(kind_);
    plain.out_f32 = 1;
    run_own(stream, plain, in, sums);
  }

 private:
  int32_t padded_depth() const {
    return static_cast<int32_t>(products_.weights().get_padded_dims()[0]);
  }
  PackedShape shape(int rows) const {
    return {rows,
            kind_.depth,
            kind_.width,
            padded_depth(),
            own_.chunk,
            static_cast<int32_t>(product_columns(kind_)),
            kind_.activation,
            kind_.gated,
            kind_.accumulate,
            kind_.bias,
            kind_.out_f32};
  }

  void run_own(Stream& stream, const PackedShape& s, const void* in, void* out) {
    const auto blocks = size_t(product_columns(kind_) + kPackedColumns - 1) / kPackedColumns;
    const LinearKernels& kernels = context_.kernels;
    stream.launch(kernel_for(floats() ? kernels.floats : kernels.packed, s.rows, 0).kernel, blocks,
                  kernels.lanes, in, static_cast<const void*>(weights_.numbers.data()),
                  static_cast<const void*>(weights_.bias.data()), out, s);
  }

  void multiply(Stream& stream, int rows, const void* in, void* sums) {
    if (!floats()) return multiply(stream, rows, 0, in, weights_.numbers.data(), sums);
    const Scratch& scratch = context_.scratch;
    widen(stream, in, scratch.rows, int64_t{rows} * kind_.depth);
    for (int64_t first = 0; first < sums_width(); first += products_.columns()) {
      const auto* weights = static_cast<const uint16_t*>(weights_.numbers.data());
      widen(stream, weights + first * padded_depth(), scratch.weights,
            products_.numbers(columns_from(first)));
      multiply(stream, rows, first, scratch.rows.data(), scratch.weights.data(),
               static_cast<float*>(sums) + first);
    }
  }
  int64_t columns_from(int64_t first) const {
    return std::min(products_.columns(), product_columns(kind_) - first);
  }
  // Multiplies the columns from `first` on that one product computes.
  void multiply(Stream& stream, int rows, int64_t first, const void* in, const void* weights,
                void* sums) {
    const auto* bias = static_cast<const float*>(weights_.bias.data());
    if (context_.host_task) stream.wait();
    stream.submit_by([&] {
      return products_.of(rows, columns_from(first))
          .run(context_.queue, in, weights, kind_.bias ? bias + first : nullptr,
               context_.scratch.inside.data(), sums);
    });
    if (context_.host_task) stream.wait();
  }
  void widen(Stream& stream, const void* in, const Buffer& out, int64_t numbers) {
    stream.launch(*context_.kernels.widen, (numbers + kWidened - 1) / kWidened, kRowItems, in,
                  out.data(), numbers);
  }

  void run_block(Stream& stream, int rows, const void* in, void* out) {
    void* sums = plain(kind_) ? out : context_.scratch.sums.data();
    multiply(stream, rows, in, sums);
    if (plain(kind_)) return;
    stream.launch(*context_.kernels.finish, rows, kRowItems, static_cast<const void*>(sums), out,
                  shape(rows));
  }

  Context& context_;
  LinearKind kind_;
  Products& products_;
  Weights weights_;
  OwnRows own_;
};

class Opened : public OneDnn {
 public:
  Opened(Stream& stream, const LinearKernels& kernels)
      : stream_(stream),
        engine_(interop::make_engine(stream.device(), stream.queue().get_context())),
        context_{kernels,
                 interop::make_stream(engine_, const_cast<sycl::queue&>(stream.queue())),
                 {},
                 stream.device().is_cpu()} {}

  std::unique_ptr<OneDnnLinear> linear(const LinearKind& kind, const Program& program,
                                       const Op& op) override {
    const auto [it, added] = products_.try_emplace(kind);
    if (added) it->second = open(kind);
    if (it->second == nullptr) return nullptr;
    return std::make_unique<Multiplication>(context_, kind, *it->second,
                                            load(kind, *it->second, program, op));
  }

  uint64_t scratch_bytes() const override { return context_.scratch.bytes(); }

 private:
  // Null where oneDNN cannot compute the kind well, or not at all.
  std::unique_ptr<Products> open(const LinearKind& kind) {
    // On a CPU it takes our orders, which are its own for most sizes. One without products of the operands' type would
    // take an order of its own, too, and a tenth of the speed.
    for (const Order order : {Order::pairs, Order::floats, Order::theirs}) {
      if (order != Order::theirs && !stream_.device().is_cpu()) continue;
      try {
        auto products = std::make_unique<Products>(engine_, kind, order);
        if (products->reference()) continue;
        make_room(kind, *products);
        return products;
      } catch (const dnnl::error& e) {
        if (e.status != dnnl_unimplemented) throw;
      }
    }
    return nullptr;
  }

  void make_room(const LinearKind& kind, const Products& products) {
    Scratch& scratch = context_.scratch;
    const size_t rows = std::min(kind.most_rows, kOneDnnRows);
    grow(stream_, scratch.inside, products.scratch_bytes());
    if (!plain(kind)) {
      grow(stream_, scratch.sums, (rows * product_columns(kind) + kPackedColumns) * sizeof(float));
    }
    if (products.order() != Order::floats) return;
    grow(stream_, scratch.rows, rows * kind.depth * sizeof(float));
    grow(stream_, scratch.weights, products.numbers(products.columns()) * sizeof(float));
  }

  // W in the products' order.
  Multiplication::Weights load(const LinearKind& kind, const Products& products,
                               const Program& program, const Op& op) {
    const int64_t columns = product_columns(kind);
    std::vector<uint16_t> numbers(columns * kind.depth);
    // Our kernels read whole blocks of the bias.
    const int64_t blocks = (columns + kPackedColumns - 1) / kPackedColumns;
    std::vector<float> bias(kind.bias ? blocks * kPackedColumns : 0);
    parallel(columns, [&](int64_t column) {
      const int64_t row = row_of_column(kind, column, kPackedColumns / 2);
      if (row < 0) return;
      const SourceRow source = source_row(program, op, 0, row);
      read_row(source, kind.depth, kind.type, numbers.data() + column * kind.depth);
      if (source.bias != nullptr) bias[column] = element(*source.bias, source.row);
    });
    const Buffer flat = stream_.upload(numbers);
    Multiplication::Weights loaded{stream_.allocate(products.weights().get_size()),
                                   stream_.upload(bias)};
    const auto usm = [&](const memory::desc& d, const Buffer& data) {
      return interop::make_memory(d, engine_, interop::memory_kind::usm, data.data());
    };
    const memory from =
        usm({{kind.depth, columns}, data_type(kind.type), memory::dims{1, kind.depth}}, flat);
    const memory to = usm(products.weights(), loaded.numbers);
    dnnl::reorder(from, to).execute(context_.queue, const_cast<memory&>(from),
                                    const_cast<memory&>(to));
    stream_.wait();
    return loaded;
  }

  Stream& stream_;
  dnnl::engine engine_;
  Context context_;
  std::map<LinearKind, std::unique_ptr<Products>> products_;
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
  for (const int rows : {4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, kOneDnnRows}) {
    if (rows <= most_rows) sizes.push_back(rows);
  }
  // The last block of a full step, after which there may be no memory.
  const int last = most_rows % kOneDnnRows;
  if (last > 0) sizes.push_back(last);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

std::unique_ptr<OneDnn> open_onednn(Stream& stream, const LinearKernels& kernels) {
  return std::make_unique<Opened>(stream, kernels);
}

}  // namespace millrace::gpu
