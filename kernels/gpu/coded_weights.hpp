// A linear op's weights as codes, on the device: int8, int4, FP8 or NF4.
#ifndef MILLRACE_GPU_CODED_WEIGHTS_HPP
#define MILLRACE_GPU_CODED_WEIGHTS_HPP

#include <string>
#include <utility>
#include <vector>

#include "gpu/linear_kernel.hpp"
#include "platform/bundle.hpp"

namespace millrace::gpu {

// Where codes lie.
struct CodedLayout {
  int lanes;    // of a sub-group
  int vectors;  // of columns that a sub-group computes
  bool mma;     // as cuda/device/mma.hpp has them, else as device/blocks.hpp

  int block_columns() const { return mma ? kColumnBlocks * kMmaColumns : kPackedColumns; }
  // Sub-groups that share a block of columns.
  int shares() const { return mma ? 1 : block_columns() / lanes / vectors; }
  // The place of word i of a column in a block, by words of a column.
  int64_t place(int64_t i, int64_t words, int column) const;
};

// How the kernels of a target take codes. mma: those of cuda/device/quantized_mma.cpp, else those of device/blocks.hpp.
inline CodedLayout coded_layout(Target target, bool mma) {
  const bool by_engine = target.xmx() || mma;
  return {target.lanes, by_engine ? kColumnBlocks : kPackedColumns / target.lanes, mma};
}

class CodedWeights {
 public:
  CodedWeights(Stream& stream, CodedLayout layout, const LinearKind& kind, const Program& program,
               const Op& op);

  const CodedShape& shape() const { return shape_; }
  int columns() const { return shape_.blocks * layout_.block_columns(); }
  int shares() const { return layout_.shares(); }
  int groups() const { return shape_.blocks * shares(); }  // of columns, one to a sub-group
  void* words() const { return words_.data(); }
  // Puts what change(words) returns in their place, which begins with them.
  template <class Change>
  void change_words(Change&& change) {
    words_ = change(std::move(words_));
  }
  const void* scales() const { return scales_.data(); }
  const void* bias() const { return bias_.data(); }
  uint64_t bytes() const { return words_.size() + scales_.size() + bias_.size(); }

  // Runs a kernel of device/blocks.hpp over `rows` rows; `in` are its first arguments.
  template <class... Pointers>
  void multiply(Stream& stream, const LinearKernel& k, int rows, void* out, Pointers... in) const {
    CodedShape shape = shape_;
    shape.rows = rows;
    launch(stream, k, k.work_groups(rows, groups()), shape, in..., words(), scales(), bias(), out);
  }
  // The same over rows sorted by expert.
  template <class... Pointers>
  void multiply_tiles(Stream& stream, const LinearKernel& k, const TiledRows& rows, void* out,
                      Pointers... in) const {
    CodedShape shape = shape_;
    shape.tiles = rows.count;
    launch(stream, k, size_t(rows.count) * groups(), shape, in..., words(), scales(), bias(), out,
           rows.tiles);
  }

 private:
  template <class... Pointers>
  void launch(Stream& stream, const LinearKernel& k, size_t work_groups, const CodedShape& shape,
              Pointers... pointers) const {
    const size_t floats = k.local_bytes > 0
                              ? k.local_bytes / sizeof(float)
                              : size_t(shape.slices) * k.rows * layout_.block_columns() / shares();
    const int sub_groups = k.sub_groups > 0 ? k.sub_groups : shape.slices;
    stream.launch_local(k.kernel, work_groups, size_t(sub_groups) * layout_.lanes, floats, shape,
                        pointers...);
  }

  void load(Stream& stream, const LinearKind& kind, const Program& program, const Op& op);

  CodedLayout layout_;
  CodedShape shape_{};
  Buffer words_, scales_, bias_;
};

// The kernels of these numbers of rows, ascending: named after them.
std::vector<LinearKernel> kernels_by_rows(const Bundle& bundle, const std::string& prefix,
                                          const std::vector<int>& rows);

}  // namespace millrace::gpu

#endif
