#include "guard.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// A mapping of a file. The handler reads the list while others change it: an entry is never
// freed, and its begin, 0 in one that is free, is set last and cleared first.
typedef struct mapping {
  _Atomic uintptr_t begin;
  size_t bytes;
  char* message;  // what the handler writes
  size_t length;  // of message
  struct mapping* next;
} mapping;

static mapping* _Atomic mappings;
static struct sigaction previous;
static int installed;

static const char before[] = "millrace: ";
static const char after[] =
    ": found a page that is gone or cannot be read, expected the file as it was when it was "
    "opened: it was cut short, or its disk failed; put the file back and start again\n";

// on_bus_error may call nothing but what is safe in a signal handler.
static void on_bus_error(int signal_number, siginfo_t* info, void* context) {
  const uintptr_t at = (uintptr_t)info->si_addr;
  for (mapping* m = atomic_load(&mappings); m; m = m->next) {
    const uintptr_t begin = atomic_load(&m->begin);
    if (begin && at >= begin && at - begin < m->bytes) {
      ssize_t ignored = write(STDERR_FILENO, m->message, m->length);
      (void)ignored;
      _exit(1);
    }
  }
  // Not of a file of ours: the handler that was there, Go's, reports it.
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(signal_number, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal_number);
  } else {
    signal(signal_number, SIG_DFL);  // the access that failed is tried again and ends the process
  }
}

static int install(void) {
  if (installed) return 0;
  // Go requires SA_ONSTACK: the stacks of its threads are small.
  struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
  action.sa_sigaction = on_bus_error;
  sigfillset(&action.sa_mask);
  if (sigaction(SIGBUS, NULL, &previous) != 0 || sigaction(SIGBUS, &action, NULL) != 0)
    return errno;
  installed = 1;
  return 0;
}

static mapping* free_entry(void) {
  for (mapping* m = atomic_load(&mappings); m; m = m->next) {
    if (!atomic_load(&m->begin)) return m;
  }
  mapping* m = calloc(1, sizeof *m);
  if (!m) return NULL;
  m->next = atomic_load(&mappings);
  atomic_store(&mappings, m);
  return m;
}

int millrace_guard_add(uintptr_t begin, size_t bytes, const char* path) {
  const int error = install();
  if (error) return error;
  const size_t length = strlen(before) + strlen(path) + strlen(after);
  char* message = malloc(length + 1);
  mapping* m = message ? free_entry() : NULL;
  if (!m) {
    free(message);
    return ENOMEM;
  }
  strcpy(message, before);
  strcat(message, path);
  strcat(message, after);
  free(m->message);  // of a mapping that is gone: nothing reads it any more
  m->message = message;
  m->length = length;
  m->bytes = bytes;
  atomic_store(&m->begin, begin);
  return 0;
}

void millrace_guard_remove(uintptr_t begin) {
  for (mapping* m = atomic_load(&mappings); m; m = m->next) {
    if (atomic_load(&m->begin) == begin) {
      atomic_store(&m->begin, 0);
      return;
    }
  }
}
