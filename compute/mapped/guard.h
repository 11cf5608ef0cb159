#ifndef MILLRACE_MAPPED_GUARD_H
#define MILLRACE_MAPPED_GUARD_H

#include <stddef.h>
#include <stdint.h>

// millrace_guard_add names the file of the mapping [begin, begin + bytes). 0, or an errno.
// Calls of this and of millrace_guard_remove never overlap.
int millrace_guard_add(uintptr_t begin, size_t bytes, const char* path);

// millrace_guard_remove forgets the mapping at begin, before it is unmapped.
void millrace_guard_remove(uintptr_t begin);

#endif
