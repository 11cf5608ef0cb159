// The device code, as text inside the library.
#ifndef MILLRACE_GPU_SOURCES_HPP
#define MILLRACE_GPU_SOURCES_HPP

#include <span>

namespace millrace::gpu {

struct Source {
  const char* name;  // as the others include it
  const char* text;
};

std::span<const Source> sources();

}  // namespace millrace::gpu

#endif
