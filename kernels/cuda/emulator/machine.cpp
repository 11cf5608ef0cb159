#include "machine.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "products.hpp"

namespace mr_emulator {

// The copies that a thread has begun.
struct Copies {
  struct Copy {
    void* to;
    const void* from;
    bool there;
  };
  std::vector<Copy> copies;
  std::vector<u32> sets;  // copies of each closed set
  u32 open = 0;           // copies of the open set

  void clear() {
    copies.clear();
    sets.clear();
    open = 0;
  }
};

namespace {

constexpr u32 kWarps = kMostThreads / kLanes;
constexpr u64 kSharedMost = 228 << 10;
constexpr u64 kPage = 4096;

long environment(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtol(text, nullptr, 0) : otherwise;
}

// The fibers of one grid at a time.
struct Machine : Block {
  u64 slots;
  u8* shared_end;
  void* scheduler;
  u32 alive, arrived;  // threads
  u32 ready_warps;     // warps with lanes that can run
  bool reversed;
  bool waited;  // for the kernels before
  int shared_poison;
  Launch launch;
  u32 threads;
  u32 prepared = 0;  // slots that have been used before
  Fault fault;
  Warp warps[kWarps];
  Copies copies[kMostThreads];

  Fiber* fiber(u32 thread) { return fiber_of_slot(slots + thread * kSlot); }
};

Machine& machine_of(Fiber* fiber) { return static_cast<Machine&>(*fiber->block); }

// ---- Switches

// Saves the caller's registers at *save and resumes those saved at load. The jump instead of a
// return keeps the processor's prediction of returns out of it.
extern "C" void mr_emulator_switch(void** save, void* load);
extern "C" void mr_emulator_resume();
asm(R"(
    .text
    .p2align 4
    .globl mr_emulator_switch
    .hidden mr_emulator_switch
    .globl mr_emulator_resume
    .hidden mr_emulator_resume
    .type mr_emulator_switch, @function
mr_emulator_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
mr_emulator_resume:
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    pop %rcx
    jmp *%rcx
    .size mr_emulator_switch, . - mr_emulator_switch
)");

u32 first_lane(u32 lanes, u32 after, bool reversed) {
  if (reversed) {
    const u32 below = lanes & ((u32{1} << after) - 1);
    return 31 - static_cast<u32>(std::countl_zero(below ? below : lanes));
  }
  const u32 above = lanes & ~((u32{2} << after) - 1);
  return static_cast<u32>(std::countr_zero(above ? above : lanes));
}

// What runs when lane `lane` of the warp cannot.
void* next(Machine& m, Warp& warp, u32 lane) {
  if (warp.ready) return warp.sp[first_lane(warp.ready, lane, m.reversed)];
  m.ready_warps &= ~(u32{1} << warp.index);
  if (!m.ready_warps) return m.scheduler;
  Warp& other = m.warps[first_lane(m.ready_warps, warp.index, m.reversed)];
  return other.sp[first_lane(other.ready, m.reversed ? 0 : 31, m.reversed)];
}

// ---- Reports

const char* name_of(u32 op) {
  switch (op) {
    case kSyncWarp:
      return "__syncwarp";
    case kShuffle:
      return "__shfl_sync";
    case kShuffleXor:
      return "__shfl_xor_sync";
    case kShuffleUp:
      return "__shfl_up_sync";
    case kShuffleDown:
      return "__shfl_down_sync";
    case kBallot:
      return "a vote";
    case kMultiplyBf16:
      return "mma bf16";
    case kMultiplyF16:
      return "mma f16";
    case kMultiplyS8:
      return "mma s8";
    case kLoadMatrices:
      return "ldmatrix";
    case kLoadTransposed:
      return "ldmatrix.trans";
    case kTranspose:
      return "movmatrix";
  }
  return "?";
}

void print_place(const Machine& m) {
  std::fprintf(stderr,
               "millrace CUDA emulator: kernel %s, block (%u, %u, %u): ", m.launch.kernel->name,
               m.index.x, m.index.y, m.index.z);
}
void print_thread(Fiber* f) {
  print_place(machine_of(f));
  std::fprintf(stderr, "thread (%u, %u, %u), lane %u of warp %u: ", f->thread.x, f->thread.y,
               f->thread.z, f->lane, f->warp->index);
}

[[noreturn]] void misuse(Fiber* f, const char* what, u64 value) {
  print_thread(f);
  std::fprintf(stderr, "%s 0x%lx\n", what, value);
  std::abort();
}

void print_lane(const Warp& w, u32 lane) {
  const u32 bit = u32{1} << lane;
  if (!(w.alive & bit)) {
    std::fputs("exited", stderr);
  } else if (w.at_barrier & bit) {
    std::fputs("waits in __syncthreads", stderr);
  } else if (w.waiting & bit) {
    std::fprintf(stderr, "waits in %s, mask 0x%08x", name_of(static_cast<u32>(w.key[lane] >> 32)),
                 static_cast<u32>(w.key[lane]));
  } else {
    std::fputs("can run", stderr);
  }
}

[[noreturn]] void report_deadlock(Machine& m) {
  print_place(m);
  std::fprintf(stderr, "deadlock, %u of %u threads wait in __syncthreads, %u have exited\n",
               m.arrived, m.threads, m.threads - m.alive);
  const u32 warps = (m.threads + kLanes - 1) / kLanes;
  u32 printed = 0;
  for (u32 i = 0; i < warps && printed < 8; ++i) {
    const Warp& w = m.warps[i];
    if (!w.waiting && w.alive == w.at_barrier && m.arrived < m.alive && warps > 8) continue;
    ++printed;
    const auto same = [&](u32 a, u32 b) {
      const u32 x = u32{1} << a, y = u32{1} << b;
      return !(w.alive & x) == !(w.alive & y) && !(w.at_barrier & x) == !(w.at_barrier & y) &&
             !(w.waiting & x) == !(w.waiting & y) && (!(w.waiting & x) || w.key[a] == w.key[b]);
    };
    for (u32 first = 0, last; first < kLanes; first = last + 1) {
      last = first;
      while (last + 1 < kLanes && same(first, last + 1)) ++last;
      std::fprintf(stderr, "  warp %u, lanes %u to %u: ", i, first, last);
      print_lane(w, first);
      std::fputc('\n', stderr);
    }
  }
  std::abort();
}

// ---- What threads call

void complete(Warp& w, u32 op, u32 mask) {
  switch (op) {
    case kSyncWarp:
      return;
    case kShuffle:
    case kShuffleXor:
    case kShuffleUp:
    case kShuffleDown:
      if (mask == 0xffffffffu) {
        for (u32 i = 0; i < kLanes; ++i) w.result[i] = w.value[w.source[i]];
      } else {
        for (u32 left = mask; left; left &= left - 1) {
          const u32 i = static_cast<u32>(std::countr_zero(left));
          w.result[i] = w.value[w.source[i]];
        }
      }
      return;
    case kBallot: {
      u64 votes = 0;
      for (u32 left = mask; left; left &= left - 1) {
        const u32 i = static_cast<u32>(std::countr_zero(left));
        votes |= w.value[i] << i;
      }
      for (u32 left = mask; left; left &= left - 1) w.result[std::countr_zero(left)] = votes;
      return;
    }
    case kMultiplyBf16:
      return multiply_bf16(w);
    case kMultiplyF16:
      return multiply_f16(w);
    case kMultiplyS8:
      return multiply_s8(w);
    case kLoadMatrices:
    case kLoadTransposed:
      for (u32 m = 0; m < 4; ++m) {
        u16 rows[8][8];
        for (u32 r = 0; r < 8; ++r) std::memcpy(rows[r], w.row[8 * m + r], 16);
        if (op == kLoadMatrices) {
          std::memcpy(w.a[m], rows, sizeof rows);
        } else {
          u16 columns[8][8];
          for (u32 r = 0; r < 8; ++r) {
            for (u32 c = 0; c < 8; ++c) columns[c][r] = rows[r][c];
          }
          std::memcpy(w.a[m], columns, sizeof columns);
        }
      }
      return;
    case kTranspose: {
      u16 rows[8][8], columns[8][8];
      std::memcpy(rows, w.a[0], sizeof rows);
      for (u32 r = 0; r < 8; ++r) {
        for (u32 c = 0; c < 8; ++c) columns[c][r] = rows[r][c];
      }
      u32 words[kLanes];
      std::memcpy(words, columns, sizeof words);
      for (u32 i = 0; i < kLanes; ++i) w.result[i] = words[i];
      return;
    }
  }
}

bool all_in(const Warp& w, u32 mask, u64 key) {
  if ((w.waiting & mask) != mask) return false;
  if (mask == 0xffffffffu) {
    u64 other = 0;
    for (u32 i = 0; i < kLanes; ++i) other |= w.key[i] ^ key;
    return other == 0;
  }
  for (u32 left = mask; left; left &= left - 1) {
    if (w.key[std::countr_zero(left)] != key) return false;
  }
  return true;
}

void join(Fiber* f, u64 key) {
  Warp& w = *f->warp;
  const u32 lane = f->lane, bit = u32{1} << lane, mask = static_cast<u32>(key);
  if (!(mask & bit)) misuse(f, "a lane that is not in its own mask,", mask);
  w.key[lane] = key;
  w.waiting |= bit;
  if (all_in(w, mask, key)) {
    complete(w, static_cast<u32>(key >> 32), mask);
    w.waiting &= ~mask;
    w.ready |= mask;
    return;
  }
  w.ready &= ~bit;
  mr_emulator_switch(&w.sp[lane], next(machine_of(f), w, lane));
}

void release_barrier(Machine& m) {
  m.arrived = 0;
  const u32 warps = (m.threads + kLanes - 1) / kLanes;
  for (u32 i = 0; i < warps; ++i) {
    Warp& w = m.warps[i];
    w.ready |= w.at_barrier;
    w.at_barrier = 0;
    if (w.ready) m.ready_warps |= u32{1} << i;
  }
}

// Counts threads that have not exited.
void barrier(Fiber* f) {
  Machine& m = machine_of(f);
  Warp& w = *f->warp;
  if (++m.arrived == m.alive) return release_barrier(m);
  const u32 bit = u32{1} << f->lane;
  w.at_barrier |= bit;
  w.ready &= ~bit;
  mr_emulator_switch(&w.sp[f->lane], next(m, w, f->lane));
}

bool in_shared(const Block& b, u64 at, u64 bytes) {
  const u64 dynamic = reinterpret_cast<u64>(b.shared);
  return (at >= dynamic && at + bytes <= dynamic + b.shared_bytes) ||
         (at >= b.static_begin && at + bytes <= b.static_end);
}

void copy16(Fiber* f, void* shared, const void* global, bool there) {
  const u64 to = reinterpret_cast<u64>(shared), from = reinterpret_cast<u64>(global);
  const Block& b = *f->block;
  if (to % 16) misuse(f, "cp.async to an address that is not a multiple of 16:", to);
  if (from % 16) misuse(f, "cp.async from an address that is not a multiple of 16:", from);
  if (!in_shared(b, to, 16)) misuse(f, "cp.async to what is not shared memory:", to);
  if (there && (from < b.global_begin || from >= b.global_end)) {
    misuse(f, "cp.async from what is not global memory:", from);
  }
  f->copies->copies.push_back({shared, global, there});
  ++f->copies->open;
}

void commit(Fiber* f) {
  f->copies->sets.push_back(f->copies->open);
  f->copies->open = 0;
}

void wait(Fiber* f, u32 left) {
  Copies& c = *f->copies;
  if (c.sets.size() <= left) return;
  const u32 sets = static_cast<u32>(c.sets.size()) - left;
  u32 count = 0;
  for (u32 i = 0; i < sets; ++i) count += c.sets[i];
  for (u32 i = 0; i < count; ++i) {
    const Copies::Copy& copy = c.copies[i];
    if (copy.there) {
      std::memcpy(copy.to, copy.from, 16);
    } else {
      std::memset(copy.to, 0, 16);
    }
  }
  c.copies.erase(c.copies.begin(), c.copies.begin() + count);
  c.sets.erase(c.sets.begin(), c.sets.begin() + sets);
}

void wait_for_previous(Fiber* f) { machine_of(f).waited = true; }

constexpr Runtime kRuntime = {join, barrier, copy16, commit, wait, wait_for_previous, misuse};

// ---- Fibers

__attribute__((noinline)) Fiber* current() {
  return fiber_of_slot(reinterpret_cast<u64>(__builtin_frame_address(0)) & ~(kSlot - 1));
}

void fiber_main() {
  Fiber* const f = current();
  Machine& m = machine_of(f);
  m.launch.kernel->invoke(m.launch.arguments);
  Warp& w = *f->warp;
  const u32 bit = u32{1} << f->lane;
  w.alive &= ~bit;
  w.ready &= ~bit;
  --m.alive;
  if (m.alive && m.arrived == m.alive) release_barrier(m);
  void* dropped;
  mr_emulator_switch(&dropped, next(m, w, f->lane));
  __builtin_unreachable();
}

void prepare(Machine& m, u32 thread) {
  Fiber* const f = m.fiber(thread);
  if (thread >= m.prepared) {
    // An overflow of the stack faults.
    mprotect(reinterpret_cast<void*>(m.slots + thread * kSlot), kPage, PROT_NONE);
    m.prepared = thread + 1;
  }
  const Dim& size = m.size;
  *f = Fiber{&kRuntime,
             &m.warps[thread / kLanes],
             &m,
             &m.copies[thread],
             thread % kLanes,
             {thread % size.x, thread / size.x % size.y, thread / size.x / size.y}};
}

// A first resumption pops six registers and jumps to fiber_main, as if it had been called.
void* start_of(Fiber* f) {
  void** top = reinterpret_cast<void**>(f) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(fiber_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  return top;
}

void run_block(Machine& m) {
  if (m.shared_bytes) std::memset(m.shared, m.shared_poison, m.shared_bytes);
  if (m.static_end > m.static_begin) {
    std::memset(reinterpret_cast<void*>(m.static_begin), m.shared_poison,
                m.static_end - m.static_begin);
  }
  m.alive = m.threads;
  m.arrived = 0;
  m.ready_warps = 0;
  for (u32 first = 0; first < m.threads; first += kLanes) {
    const u32 count = m.threads - first < kLanes ? m.threads - first : kLanes;
    Warp& w = m.warps[first / kLanes];
    w.alive = w.ready = count == kLanes ? 0xffffffffu : (u32{1} << count) - 1;
    w.waiting = w.at_barrier = 0;
    m.ready_warps |= u32{1} << w.index;
    for (u32 i = 0; i < count; ++i) {
      w.sp[i] = start_of(m.fiber(first + i));
      if (!m.copies[first + i].copies.empty() || !m.copies[first + i].sets.empty()) {
        m.copies[first + i].clear();
      }
    }
  }
  const Warp& w = m.warps[m.reversed ? 31 - std::countl_zero(m.ready_warps) : 0];
  mr_emulator_switch(&m.scheduler, w.sp[m.reversed ? 31 - std::countl_zero(w.ready) : 0]);
  if (m.fault == Fault::none && m.alive) report_deadlock(m);
}

// ---- Faults

std::atomic<Machine*> machines[256];
std::atomic<u32> machine_count{0};
struct sigaction before_segv, before_bus, before_ill, before_fpe;

Machine* machine_at(u64 sp) {
  const u32 count = machine_count.load();
  for (u32 i = 0; i < count && i < std::size(machines); ++i) {
    Machine* const m = machines[i].load();
    if (m && sp >= m->slots && sp < m->slots + kMostThreads * kSlot) return m;
  }
  return nullptr;
}

void on_fault(int number, siginfo_t* info, void* context) {
  auto* const c = static_cast<ucontext_t*>(context);
  auto& registers = c->uc_mcontext.gregs;
  const u64 sp = static_cast<u64>(registers[REG_RSP]);
  Machine* const m = machine_at(sp);
  if (!m) {
    const struct sigaction& before = number == SIGSEGV  ? before_segv
                                     : number == SIGBUS ? before_bus
                                     : number == SIGILL ? before_ill
                                                        : before_fpe;
    if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(number, info, context);
    if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
      return before.sa_handler(number);
    }
    sigaction(number, &before, nullptr);  // the instruction faults again
    return;
  }
  Fiber* const f = fiber_of_slot(sp & ~(kSlot - 1));
  print_thread(f);
  const u64 at = reinterpret_cast<u64>(info->si_addr);
  if (number == SIGILL) {
    std::fputs("trap\n", stderr);
    m->fault = Fault::illegal_instruction;
  } else if (number == SIGFPE) {
    std::fputs("integer division by zero\n", stderr);
    m->fault = Fault::arithmetic;
  } else {
    const char* where = "";
    if (at >= m->global_begin && at < m->global_end) {
      where = ", in device memory that is not allocated or not mapped";
    } else if (at >= m->slots && at < m->slots + kMostThreads * kSlot) {
      where = ", the stack of a thread overflows";
    } else if (at - reinterpret_cast<u64>(m->shared_end) < kPage) {
      where = ", after the block's dynamic shared memory";
    } else if (!at) {
      where = " (or one that is not canonical)";
    }
    std::fprintf(stderr, "illegal address 0x%lx%s\n", at, where);
    m->fault = Fault::illegal_address;
  }
  registers[REG_RSP] = static_cast<greg_t>(reinterpret_cast<u64>(m->scheduler));
  registers[REG_RIP] = static_cast<greg_t>(reinterpret_cast<u64>(&mr_emulator_resume));
}

void install_handlers() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &before_segv);
  sigaction(SIGBUS, &action, &before_bus);
  sigaction(SIGILL, &action, &before_ill);
  sigaction(SIGFPE, &action, &before_fpe);
}

// The handler cannot run on a stack that has overflowed.
void need_signal_stack() {
  thread_local bool done = false;
  if (done) return;
  done = true;
  stack_t now;
  if (sigaltstack(nullptr, &now) != 0 || !(now.ss_flags & SS_DISABLE)) return;
  constexpr size_t kBytes = 128 << 10;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  const stack_t stack = {memory, 0, kBytes};
  sigaltstack(&stack, nullptr);
}

// ---- Machines are kept

void* map_or_end(u64 bytes, int protection) {
  void* const p =
      mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    std::perror("millrace CUDA emulator: mmap");
    std::abort();
  }
  return p;
}

Machine* make_machine() {
  static std::once_flag once;
  std::call_once(once, install_handlers);
  auto* const m = new Machine{};
  const u64 memory =
      reinterpret_cast<u64>(map_or_end((kMostThreads + 1) * kSlot, PROT_READ | PROT_WRITE));
  m->slots = (memory + kSlot - 1) & ~(kSlot - 1);
  auto* const shared = static_cast<u8*>(map_or_end(kSharedMost + 2 * kPage, PROT_NONE));
  mprotect(shared + kPage, kSharedMost, PROT_READ | PROT_WRITE);
  m->shared_end = shared + kPage + kSharedMost;
  m->reversed = environment("MILLRACE_CUDA_EMULATOR_REVERSE", 0) != 0;
  m->shared_poison = static_cast<int>(environment("MILLRACE_CUDA_EMULATOR_SHARED_POISON", 0xff));
  for (u32 i = 0; i < kWarps; ++i) m->warps[i].index = i;
  const u32 place = machine_count.fetch_add(1);
  if (place < std::size(machines)) machines[place].store(m);
  return m;
}

std::mutex idle_mutex;
std::vector<Machine*>& idle() {
  static auto& all = *new std::vector<Machine*>;  // never freed: threads may outlive main
  return all;
}

}  // namespace

int device_poison() {
  static const int poison =
      static_cast<int>(environment("MILLRACE_CUDA_EMULATOR_DEVICE_POISON", 0xcd));
  return poison;
}

Fault run(const Launch& launch) {
  Machine* m = nullptr;
  {
    const std::lock_guard lock(idle_mutex);
    if (!idle().empty()) {
      m = idle().back();
      idle().pop_back();
    }
  }
  if (!m) m = make_machine();
  need_signal_stack();

  const Range global = global_memory();
  m->launch = launch;
  m->grid = launch.grid;
  m->size = launch.block;
  // The end is where the guard page begins, as far as 16 bytes of alignment allow.
  m->shared = m->shared_end - (launch.shared_bytes + 15) / 16 * 16;
  m->shared_bytes = launch.shared_bytes;
  m->static_begin = launch.static_begin;
  m->static_end = launch.static_end;
  m->global_begin = global.begin;
  m->global_end = global.end;
  m->threads = launch.block.x * launch.block.y * launch.block.z;
  m->fault = Fault::none;
  m->waited = false;
  for (u32 i = 0; i < m->threads; ++i) prepare(*m, i);

  const u64 blocks = u64{launch.grid.x} * launch.grid.y * launch.grid.z;
  for (u64 i = 0; i < blocks && m->fault == Fault::none; ++i) {
    const u64 at = m->reversed ? blocks - 1 - i : i;
    m->index = {static_cast<u32>(at % launch.grid.x),
                static_cast<u32>(at / launch.grid.x % launch.grid.y),
                static_cast<u32>(at / launch.grid.x / launch.grid.y)};
    run_block(*m);
  }
  if (launch.early && !m->waited && m->fault == Fault::none) {
    std::fprintf(stderr,
                 "millrace CUDA emulator: kernel %s: launched with programmatic stream "
                 "serialization, but does not wait for the kernels before it\n",
                 launch.kernel->name);
    std::abort();
  }
  const Fault fault = m->fault;
  const std::lock_guard lock(idle_mutex);
  idle().push_back(m);
  return fault;
}

}  // namespace mr_emulator
