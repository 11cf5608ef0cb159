// The instruction sets that the CPU backend has kernels for.
#ifndef MILLRACE_CPU_MACHINE_ISA_HPP
#define MILLRACE_CPU_MACHINE_ISA_HPP

#include <optional>
#include <string_view>
#include <vector>

namespace millrace::cpu {

// Ascending: a machine that runs one of them runs those before it too.
enum class Isa { portable, avx2, avx512, avx512_bf16, amx };

// "portable", "avx2", "avx512", "avx512-bf16" or "amx".
const char* isa_name(Isa isa);
std::optional<Isa> isa_from_name(std::string_view name);

// What this processor and its operating system can run, the fastest for products
// of bf16 first; never empty.
std::vector<Isa> available_isas();

// Whether a machine of avx512 or better has AVX-512 VNNI, products of bytes.
bool has_vnni();
// And that look bytes up (AVX-512 VBMI).
bool has_vbmi();
// Whether one of avx2 has AVX-VNNI, the same of 256 bits.
bool has_avx_vnni();

}  // namespace millrace::cpu

#endif
