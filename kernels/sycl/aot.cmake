# Device code compiled ahead of time by Intel's icpx, one shared object for each GPU, type and
# bundle of kernels: the same sources and macros that the library compiles at run time.
#
#   cmake -S kernels/sycl -B DIR -DMILLRACE_SYCL_ROOT=... -DMILLRACE_SYCL_AOT="pvc;dg2"
#   cmake --build DIR --target millrace_sycl_aot

# GPU -> what icpx calls it, lanes of a sub-group (shapes.hpp, sycl-isa).
set(aot_pvc intel_gpu_pvc 16)
set(aot_dg2 intel_gpu_dg2_g10 8)

find_program(MILLRACE_ICPX icpx HINTS ${MILLRACE_SYCL_ROOT}/bin
  DOC "Intel's SYCL compiler, for MILLRACE_SYCL_AOT")
if(NOT MILLRACE_ICPX)
  message(FATAL_ERROR "MILLRACE_SYCL_AOT=${MILLRACE_SYCL_AOT} needs Intel's compiler icpx, which is neither in the "
    "PATH nor in ${MILLRACE_SYCL_ROOT}/bin: install oneAPI's DPC++ compiler (intel-oneapi-compiler-dpcpp-cpp), or "
    "leave the option OFF: device code is compiled when it is first wanted")
endif()

# Queries of a task: most_queries of shapes.hpp.
function(most_queries head_dim lanes kv_bits out)
  set(bounds 96 8 128 4 256 2)
  if(kv_bits LESS 16)
    set(bounds 64 8 128 4 256 2)
  endif()
  if(lanes EQUAL 8)
    set(bounds 64 4 128 2 256 1)
  endif()
  while(bounds)
    list(POP_FRONT bounds bound queries)
    if(lanes EQUAL 8 AND kv_bits EQUAL 4 AND queries GREATER 1)
      math(EXPR queries "${queries} / 2")
    endif()
    if(head_dim LESS_EQUAL bound)
      set(${out} ${queries} PARENT_SCOPE)
      return()
    endif()
  endwhile()
endfunction()

# The kernels that do not depend on the size of a head are one bundle.
set(common ${CMAKE_CURRENT_BINARY_DIR}/aot/common.cpp)
list(TRANSFORM common_device_files REPLACE "(.+)" "#include \"device/\\1\"" OUTPUT_VARIABLE includes)
list(JOIN includes "\n" includes)
file(CONFIGURE OUTPUT ${common} CONTENT "${includes}\n" @ONLY)

set(experts ${CMAKE_CURRENT_BINARY_DIR}/aot/experts.cpp)
file(CONFIGURE OUTPUT ${experts} CONTENT "#include \"device/experts.cpp\"\n#include \"device/linear.cpp\"\n" @ONLY)

set(aot_objects)
# aot(GPU TYPE NAME SOURCE OPTION...): a shared object of the source's kernels.
function(aot gpu type name source)
  list(GET aot_${gpu} 0 target)
  list(GET aot_${gpu} 1 lanes)
  set(bf16 0)
  if("${type}" STREQUAL "bf16")
    set(bf16 1)
  endif()
  set(object ${CMAKE_CURRENT_BINARY_DIR}/aot/millrace_${gpu}_${type}_${name}.so)
  add_custom_command(OUTPUT ${object}
    COMMAND ${MILLRACE_ICPX} -fsycl -fsycl-targets=${target} -std=c++20 -O2 -fPIC -shared -ffp-contract=off
      -iquote ${kernels}/gpu -DMR_BF16=${bf16} -DMR_LANES=${lanes} -DMR_XMX=1 ${ARGN}
      ${source} -o ${object}
    DEPENDS ${source} ${device_files} VERBATIM)
  set(aot_objects ${aot_objects} ${object} PARENT_SCOPE)
endfunction()

foreach(gpu IN LISTS MILLRACE_SYCL_AOT)
  if(NOT DEFINED aot_${gpu})
    message(FATAL_ERROR "MILLRACE_SYCL_AOT names \"${gpu}\", expected pvc, dg2 or both (\"pvc;dg2\")")
  endif()
  list(GET aot_${gpu} 1 lanes)
  foreach(type bf16 f16)
    aot(${gpu} ${type} common ${common})
    aot(${gpu} ${type} quantized ${kernels}/gpu/device/quantized.cpp)
    aot(${gpu} ${type} dequantize ${kernels}/gpu/device/dequantize.cpp)
    aot(${gpu} ${type} states ${kernels}/gpu/device/states.cpp)
    aot(${gpu} ${type} experts ${experts} -DMR_EXPERTS=1)
    aot(${gpu} ${type} quantized_experts ${kernels}/gpu/device/quantized.cpp -DMR_EXPERTS=1)
    aot(${gpu} ${type} dequantize_experts ${kernels}/gpu/device/dequantize.cpp -DMR_EXPERTS=1)
    foreach(head_dim 64 80 96 128 256)
      foreach(kv_bits 16 8 4)
        if(lanes EQUAL 8 AND kv_bits EQUAL 4 AND head_dim GREATER 96) # takes_kv_bits of shapes.hpp
          continue()
        endif()
        most_queries(${head_dim} ${lanes} ${kv_bits} queries)
        aot(${gpu} ${type} attention_${head_dim}_kv${kv_bits} ${kernels}/gpu/device/attention.cpp
          -DMR_HEAD_DIM=${head_dim} -DMR_KV_BITS=${kv_bits} -DMR_QUERIES=${queries})
      endforeach()
    endforeach()
  endforeach()
endforeach()
add_custom_target(millrace_sycl_aot DEPENDS ${aot_objects})
