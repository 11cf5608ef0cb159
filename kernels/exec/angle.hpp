// Sine and cosine with the same bits everywhere: those of the C library depend on its version and
// on the processor.
#ifndef MILLRACE_EXEC_ANGLE_HPP
#define MILLRACE_EXEC_ANGLE_HPP

namespace millrace {

struct SineCosine {
  float sine, cosine;
};

// The sine and cosine of an angle in radians: the nearest floats, but for what is within a ten-thousandth of a step of
// a tie. Beyond 2^28, where no position is, 0 and 1; NaN of what is not finite.
SineCosine sine_cosine(float angle);

}  // namespace millrace

#endif
