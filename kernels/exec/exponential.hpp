// The exponential function and what is made of it, with the same bits everywhere: those of the C library depend on its
// version and on the processor.
#ifndef MILLRACE_EXEC_EXPONENTIAL_HPP
#define MILLRACE_EXEC_EXPONENTIAL_HPP

namespace millrace {

// e^x; 0 below -104, infinite above 89.
float exponential(float x);

// 1 / (1 + e^-x).
float sigmoid(float x);

// log(1 + e^x).
float softplus(float x);

}  // namespace millrace

#endif
