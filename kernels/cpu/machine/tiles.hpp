// Tile registers as AMX has them (Intel SDM vol. 1, 18). Code over them is written over a Policy, the few operations on them: the
// instructions (cpu/machine/tiles_amx.hpp), or the same in plain C++ for the tests, so that packing, edges and order are
// tested on every machine.
//
// Policy, of eight registers of up to 16 rows of 64 bytes:
//   void configure(const TileShape&)   rows of each register, and the bytes of their rows
//   void release()
//   void zero<kTile>()
//   void load<kTile>(const void*, stride), store<kTile>(void*, stride)   rows stride bytes apart
//   void add_bf16<kSums, kRows, kWeights>()   the products of tiles, pairs of bf16 in floats
//   void add_int8<kSums, kRows, kWeights>()   fours of signed rows and unsigned weights in int32
//   void add_signed<kSums, kRows, kWeights>() the same with signed weights
//
// What add_bf16 adds to a sum is that of the even products plus that of the odd ones, each in ascending order from zero, rounded
// at each step (Intel SDM vol. 2, TDPBF16PS). Rows of a tile do not meet.
#ifndef MILLRACE_CPU_MACHINE_TILES_HPP
#define MILLRACE_CPU_MACHINE_TILES_HPP

#include <cstdint>

namespace millrace::cpu {

inline constexpr int kAmxTiles = 8, kAmxRows = 16, kAmxRowBytes = 64;
// Words of a row: pairs of bf16, fours of int8, or sums.
inline constexpr int kAmxWords = kAmxRowBytes / 4;

// How LDTILECFG reads it.
struct alignas(64) TileShape {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // of: the rows of each register; 0: it is not used.
  constexpr explicit TileShape(const int (&of)[kAmxTiles]) {
    for (int i = 0; i < kAmxTiles; ++i) {
      rows[i] = static_cast<uint8_t>(of[i]);
      row_bytes[i] = of[i] > 0 ? kAmxRowBytes : 0;
    }
  }

  // For a register whose rows have fewer bytes.
  constexpr void set_row_bytes(int i, int bytes) {
    if (rows[i] > 0) row_bytes[i] = static_cast<uint16_t>(bytes);
  }
};

static_assert(sizeof(TileShape) == 64);

}  // namespace millrace::cpu

#endif
