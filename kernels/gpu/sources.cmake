# gpu_sources: what the library of every GPU backend has beside its own parts (platform/), gpu/recipes.cpp and exec/error.cpp,
# which CUDA shares with its compiler of PTX. kernels: the folder kernels/.
set(gpu_sources
  ${kernels}/gpu/backend.cpp
  ${kernels}/gpu/coded_weights.cpp
  ${kernels}/gpu/dequantized_linear.cpp
  ${kernels}/gpu/fault.cpp
  ${kernels}/gpu/kernels.cpp
  ${kernels}/gpu/kv_memory.cpp
  ${kernels}/gpu/linear.cpp
  ${kernels}/gpu/linear_choice.cpp
  ${kernels}/gpu/linear_kernel.cpp
  ${kernels}/gpu/measure.cpp
  ${kernels}/gpu/pool.cpp
  ${kernels}/gpu/quantized_linear.cpp
  ${kernels}/gpu/recordings.cpp
  ${kernels}/gpu/step_tables.cpp
  ${kernels}/gpu/weights.cpp
  ${kernels}/exec/abi.cpp
  ${kernels}/exec/blocks.cpp
  ${kernels}/exec/executor.cpp
  ${kernels}/exec/kv.cpp
  ${kernels}/exec/limits.cpp
  ${kernels}/exec/mapped_pool.cpp
  ${kernels}/exec/names.cpp
  ${kernels}/exec/program.cpp
  ${kernels}/exec/quantize.cpp
  ${kernels}/exec/step.cpp)
