// Errors inside the library: thrown as Error, turned into mr_error at the ABI's edge.
#ifndef MILLRACE_EXEC_ERROR_HPP
#define MILLRACE_EXEC_ERROR_HPP

#include <exception>
#include <string>

#include "millrace_kernels.h"

namespace millrace {

class Error : public std::exception {
 public:
  Error(mr_status status, std::string message) : status_(status), message_(std::move(message)) {}
  mr_status status() const { return status_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  mr_status status_;
  std::string message_;
};

// Throws an Error with a printf-formatted message.
[[noreturn, gnu::format(printf, 2, 3)]] void fail(mr_status status, const char* format, ...);

}  // namespace millrace

#endif
