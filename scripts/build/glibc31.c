// What g++'s static libstdc++ and Go take from C libraries newer than 2.31. A release is linked with 2.31 (scripts/build/sysroot.sh).
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

// __libc_single_threaded of 2.32: no, so that reference counts are always atomic.
char __libc_single_threaded = 0;

// arc4random of 2.36, of which std::random_device is made. The kernel's generator never gives less than four bytes.
uint32_t arc4random(void) {
  uint32_t bits;
  if (getrandom(&bits, sizeof bits, 0) != sizeof bits) abort();
  return bits;
}

// res_search of 2.34, until then a macro. Go's net package calls it.
int __res_search(const char *name, int class, int type, unsigned char *answer, int length);

int res_search(const char *name, int class, int type, unsigned char *answer, int length) {
  return __res_search(name, class, type, answer, length);
}
