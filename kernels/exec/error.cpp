#include "exec/error.hpp"

#include <cstdarg>
#include <cstdio>

namespace millrace {

void fail(mr_status status, const char* format, ...) {
  char text[sizeof(mr_error::message)];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  throw Error(status, text);
}

}  // namespace millrace
