#include "cpu/machine/isa.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace millrace::cpu {
namespace {

struct Named {
  Isa isa;
  const char* name;
};

constexpr std::array kNames{
    Named{Isa::portable, "portable"},       Named{Isa::avx2, "avx2"}, Named{Isa::avx512, "avx512"},
    Named{Isa::avx512_bf16, "avx512-bf16"}, Named{Isa::amx, "amx"},
};

#if defined(__x86_64__)

struct Cpuid {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Cpuid cpuid(uint32_t leaf, uint32_t subleaf) {
  Cpuid r;  // all zero where the leaf does not exist
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

bool bit(uint32_t word, int n) { return (word >> n) & 1u; }

// The register states that the operating system saves (XCR0).
uint32_t saved_states() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// On Linux a process must request tile registers, once for all its threads, since signal frames
// and switches grow by 8 KiB (Documentation/arch/x86/xstate.rst).
bool may_use_tiles() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// Intel SDM vol. 1, 14.3, 15.2 and 15.4: the processor has the instructions and
// the system saves the registers (XCR0: SSE 1, AVX 2, opmask and ZMM 5..7).
Isa widest_isa() {
  const Cpuid one = cpuid(1, 0), seven = cpuid(7, 0), seven_one = cpuid(7, 1);
  constexpr int kOsxsave = 27, kAvx = 28, kFma = 12;
  if (!bit(one.ecx, kOsxsave) || !bit(one.ecx, kAvx)) return Isa::portable;
  const uint32_t saved = saved_states();
  constexpr uint32_t kYmm = 0x06, kZmm = 0xe6;
  constexpr int kAvx2 = 5;
  if ((saved & kYmm) != kYmm || !bit(one.ecx, kFma) || !bit(seven.ebx, kAvx2)) {
    return Isa::portable;
  }
  constexpr int kF = 16, kDq = 17, kBw = 30, kVl = 31;
  const bool avx512 =
      bit(seven.ebx, kF) && bit(seven.ebx, kDq) && bit(seven.ebx, kBw) && bit(seven.ebx, kVl);
  if ((saved & kZmm) != kZmm || !avx512) return Isa::avx2;
  constexpr int kBf16 = 5;
  if (!bit(seven_one.eax, kBf16)) return Isa::avx512;
  constexpr int kAmxBf16 = 22, kAmxTile = 24, kAmxInt8 = 25, kVnni = 11;
  constexpr uint32_t kTiles = 0x60000;  // XCR0: tile configuration 17, tiles 18
  const bool amx = bit(seven.edx, kAmxBf16) && bit(seven.edx, kAmxTile) &&
                   bit(seven.edx, kAmxInt8) && bit(seven.ecx, kVnni);
  return amx && (saved & kTiles) == kTiles && may_use_tiles() ? Isa::amx : Isa::avx512_bf16;
}

// Intel's cores begin one vdpbf16ps in two cycles and two float FMAs in each (its
// bf16 speed is in AMX), so that floats give twice the products; AMD's begin one
// of either. The measurements are in benchmarks/measurements/linear-ops.md.
bool slow_bf16() {
  const Cpuid zero = cpuid(0, 0);
  constexpr uint32_t kGenu = 0x756e6547, kIneI = 0x49656e69, kNtel = 0x6c65746e;
  return zero.ebx == kGenu && zero.edx == kIneI && zero.ecx == kNtel;
}

#else

Isa widest_isa() { return Isa::portable; }
bool slow_bf16() { return false; }

#endif

}  // namespace

const char* isa_name(Isa isa) {
  for (const Named& n : kNames) {
    if (n.isa == isa) return n.name;
  }
  return "unknown";
}

std::optional<Isa> isa_from_name(std::string_view name) {
  for (const Named& n : kNames) {
    if (n.name == name) return n.isa;
  }
  return std::nullopt;
}

bool has_vbmi() {
#if defined(__x86_64__)
  constexpr int kVbmi = 1;
  return bit(cpuid(7, 0).ecx, kVbmi);
#else
  return false;
#endif
}

bool has_vnni() {
#if defined(__x86_64__)
  constexpr int kVnni = 11;
  return bit(cpuid(7, 0).ecx, kVnni);
#else
  return false;
#endif
}

bool has_avx_vnni() {
#if defined(__x86_64__)
  constexpr int kAvxVnni = 4;
  return bit(cpuid(7, 1).eax, kAvxVnni);
#else
  return false;
#endif
}

std::vector<Isa> available_isas() {
  const Isa widest = widest_isa();
  std::vector<Isa> isas;
  for (const Named& n : kNames) {
    if (n.isa <= widest) isas.insert(isas.begin(), n.isa);
  }
  if (slow_bf16()) {
    const auto bf16 = std::find(isas.begin(), isas.end(), Isa::avx512_bf16);
    if (bf16 != isas.end()) std::iter_swap(bf16, bf16 + 1);
  }
  return isas;
}

}  // namespace millrace::cpu
