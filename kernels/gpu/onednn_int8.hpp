// Products of int8 codes by oneDNN, on the stream's queue.
#ifndef MILLRACE_GPU_ONEDNN_INT8_HPP
#define MILLRACE_GPU_ONEDNN_INT8_HPP

#include <memory>

#include "platform/stream.hpp"

namespace millrace::gpu {

class Int8Products {
 public:
  virtual ~Int8Products() = default;

  // Whether it has these products, and not by its reference code alone.
  virtual bool can(int most_rows, int depth, int columns) = 0;
  // W of an op with these products, as device/quantized.cpp has it, with what `run` wants after it.
  virtual Buffer adopt(Buffer words, int depth, int columns) = 0;
  // sums[rows][columns] of int32 = codes[rows][depth] . W, which has been adopted. Depth and
  // columns are multiples of 64; memory after the rows, up to most_rows, may be read and overwritten.
  // At most kOneDnnRows rows.
  virtual void run(int most_rows, int rows, int depth, int columns, const void* codes,
                   void* weights, void* sums) = 0;
};

// Null where oneDNN is missing, or has another order of weights than ours: on GPUs. The stream
// outlives it.
std::unique_ptr<Int8Products> open_int8_products(Stream& stream);

}  // namespace millrace::gpu

#endif
