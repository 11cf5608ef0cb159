// The device code, as text inside the library.
#ifndef MILLRACE_SYCL_SOURCES_HPP
#define MILLRACE_SYCL_SOURCES_HPP

#include <span>

namespace millrace::sycl_backend {

struct Source {
  const char* name;  // as the others include it
  const char* text;
};

std::span<const Source> sources();

}  // namespace millrace::sycl_backend

#endif
