// GCC 12 takes _tile_loadconfig for a reader of 8 of its 64 bytes, and leaves out the stores of the others: llama.cpp's kernels of AMX
// then die of an illegal instruction. Included before each of its files.
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define _tile_loadconfig(config) \
  __asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])(config)))
#endif
