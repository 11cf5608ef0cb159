// What a thread's float instructions do with numbers below the least normal one.
#ifndef MILLRACE_CPU_MACHINE_FLOAT_MODE_HPP
#define MILLRACE_CPU_MACHINE_FLOAT_MODE_HPP

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace millrace::cpu {

class FloatMode {
 public:
#if defined(__x86_64__)
  static FloatMode of_thread() { return FloatMode(_mm_getcsr() & ~kFlags); }
  // Every exception masked, to nearest even. vdpbf16ps and the tiles of AMX make zeros of results
  // below the least normal number, whatever the mode; with `flush` so do other instructions
  // (MXCSR.FTZ, Intel SDM vol. 1, 10.2.3.3). Such numbers are operands still.
  static FloatMode plain(bool flush) { return FloatMode(kPlain | (flush ? kFlush : 0)); }
  // Makes it the calling thread's.
  void set() const {
    if (of_thread().bits_ != bits_) _mm_setcsr(bits_);
  }
#else
  static FloatMode of_thread() { return FloatMode(0); }
  static FloatMode plain(bool) { return FloatMode(0); }
  void set() const {}
#endif

 private:
  static constexpr uint32_t kFlags = 0x3f;  // what has happened: no mode
  static constexpr uint32_t kPlain = 0x1f80, kFlush = 0x8000;

  explicit FloatMode(uint32_t bits) : bits_(bits) {}

  uint32_t bits_;
};

// While it lives, the calling thread and the workers of a pool that it drives compute by a mode
// that is not the host's.
class FloatScope {
 public:
  explicit FloatScope(FloatMode mode) : before_(FloatMode::of_thread()) { mode.set(); }
  ~FloatScope() { before_.set(); }
  FloatScope(const FloatScope&) = delete;
  FloatScope& operator=(const FloatScope&) = delete;

 private:
  const FloatMode before_;
};

}  // namespace millrace::cpu

#endif
