//! A bound on the memory and the stack of one piece of work, whatever code runs in it.
//!
//! The global allocator counts for the thread that has a budget. When the budget is used up, or the
//! stack is nearly, it returns null; the failure hook then unwinds, and `run` reports the limit that
//! was exceeded. minijinja has no limit of bytes, and a check in each of its operations could miss one;
//! nothing grows without the allocator. Every traversal of a nested value boxes an iterator per
//! level, so a walk of a value that holds itself, or of lists doubled forty times, ends here too.
//!
//! An allocator must not unwind, but the hook may (`std::alloc::set_alloc_error_hook`, whose
//! documentation shows a hook that panics). The hook is not stable yet: the build allows it for this
//! crate alone (RUSTC_BOOTSTRAP in scripts/build/tokenizers.sh). A compiler without it fails to build.

use std::alloc::{set_alloc_error_hook, GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::stack::{self, Stack};

/// What an allocation counts beyond its bytes. It covers the heap's own overhead, and bounds how
/// deeply values of a given memory can nest, and so the stack that dropping them takes.
const PER_ALLOCATION: usize = 64;

/// The work that an allocation counts beyond its bytes. Copying this number of bytes takes about as long.
const WORK_PER_ALLOCATION: usize = 256;

/// Stack that is left to unwinding, to drops and to calls that do not allocate.
const RED_ZONE: usize = stack::SIZE / 4;

/// Allocations between two checks of the clock.
const CLOCK_EVERY: u32 = 256;

/// The bounds, of memory in bytes.
#[derive(Clone, Copy)]
pub struct Limits {
    pub held: usize,            // held at once
    pub allocated: usize,       // in all, freed ones counted: a bound of the work
    pub time: Option<Duration>, // None: no bound. Work that does not allocate is not interrupted
}

#[derive(Clone, Copy, Debug)]
pub enum Exceeded {
    Held(usize),
    Allocated(usize),
    Time(Duration),
    Stack,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exceeded::Held(limit) => {
                write!(f, "it needs more than {limit} bytes of memory at once")
            }
            Exceeded::Allocated(limit) => write!(f, "it allocates more than {limit} bytes in all"),
            Exceeded::Time(limit) => write!(f, "it takes longer than {limit:?}"),
            Exceeded::Stack => write!(f, "values nested too deeply"),
        }
    }
}

#[derive(Clone, Copy)]
struct Budget {
    limits: Limits,
    held: usize,
    kept: isize, // as held, with the frees of memory from before
    allocated: usize,
    end: Option<Instant>,
    calls: u32,    // allocations since the last check of the clock
    bottom: usize, // address that the stack must not grow below
    lowest: usize, // address that it grew down to, as far as allocations and frees say
}

#[derive(Clone, Copy)]
enum Thread {
    Free, // no budget: nothing is counted
    Counting(Budget),
    Ended(Exceeded), // unwinding: allocations succeed again
}

thread_local! {
    // Without a destructor and a lazy initializer, so that the allocator may use it at any time.
    static THREAD: Cell<Thread> = const { Cell::new(Thread::Free) };
}

impl Budget {
    fn take(&mut self, bytes: usize) -> Result<(), Exceeded> {
        self.held = self.held.saturating_add(bytes);
        self.kept = self.kept.wrapping_add_unsigned(bytes);
        self.allocated = self.allocated.saturating_add(bytes).saturating_add(WORK_PER_ALLOCATION);
        self.reach(ptr::from_ref(&bytes) as usize);
        if self.held > self.limits.held {
            return Err(Exceeded::Held(self.limits.held));
        }
        if self.allocated > self.limits.allocated {
            return Err(Exceeded::Allocated(self.limits.allocated));
        }
        if self.lowest < self.bottom {
            return Err(Exceeded::Stack);
        }
        self.check_time()
    }

    fn check_time(&mut self) -> Result<(), Exceeded> {
        let (Some(end), Some(limit)) = (self.end, self.limits.time) else {
            return Ok(());
        };
        self.calls += 1;
        if self.calls < CLOCK_EVERY {
            return Ok(());
        }
        self.calls = 0;
        if Instant::now() > end {
            return Err(Exceeded::Time(limit));
        }
        Ok(())
    }

    fn give(&mut self, bytes: usize) {
        self.held = self.held.saturating_sub(bytes); // bytes allocated before the render are freed, too
        self.kept = self.kept.wrapping_sub_unsigned(bytes);
        self.reach(ptr::from_ref(&bytes) as usize);
    }

    fn reach(&mut self, here: usize) {
        self.lowest = self.lowest.min(here);
    }
}

/// Says whether the thread may have that many bytes more. Nearly all threads have no budget: the check
/// for one is all that their allocations pay.
fn take(bytes: usize) -> bool {
    !is_counting() || count(bytes)
}

fn give(bytes: usize) {
    if is_counting() {
        count_freed(bytes);
    }
}

fn is_counting() -> bool {
    matches!(THREAD.get(), Thread::Counting(_))
}

#[inline(never)]
fn count(bytes: usize) -> bool {
    let Thread::Counting(mut budget) = THREAD.get() else {
        return true;
    };
    let taken = budget.take(bytes);
    THREAD.set(match taken {
        Ok(()) => Thread::Counting(budget),
        Err(exceeded) => Thread::Ended(exceeded),
    });
    taken.is_ok()
}

#[inline(never)]
fn count_freed(bytes: usize) {
    if let Thread::Counting(mut budget) = THREAD.get() {
        budget.give(bytes);
        THREAD.set(Thread::Counting(budget));
    }
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all memory is the system allocator's; a null pointer is an allocation that failed.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size().saturating_add(PER_ALLOCATION)) {
            return ptr::null_mut();
        }
        System.alloc(layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size().saturating_add(PER_ALLOCATION)) {
            return ptr::null_mut();
        }
        System.alloc_zeroed(layout)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        give(layout.size().saturating_add(PER_ALLOCATION));
        System.dealloc(memory, layout);
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > layout.size() && !take(size - layout.size()) {
            return ptr::null_mut();
        }
        let moved = System.realloc(memory, layout, size);
        if size < layout.size() {
            give(layout.size() - size);
        }
        moved
    }
}

/// Runs `work` on a stack of its own, within the limits. Nested runs are not supported. A panic of
/// `work` continues in the caller. The stack is kept for the next run unless the run ended early.
pub fn run<T>(limits: Limits, work: impl FnOnce() -> T) -> Result<T, Exceeded> {
    run_counted(limits, work).map(|(value, _)| value)
}

/// Runs `work` as `run` does, and counts the bytes that it allocated and keeps, less those of before that it freed.
pub fn run_counted<T>(limits: Limits, work: impl FnOnce() -> T) -> Result<(T, isize), Exceeded> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| set_alloc_error_hook(unwind));
    let mut stack = Stack::take();
    let bottom = stack.base() as usize + RED_ZONE;
    let end = limits.time.map(|time| Instant::now() + time);
    let budget = Budget {
        limits,
        held: 0,
        kept: 0,
        allocated: 0,
        end,
        calls: 0,
        bottom,
        lowest: usize::MAX,
    };
    let (result, ended) = stack.run(|| {
        THREAD.set(Thread::Counting(budget));
        let result = catch_unwind(AssertUnwindSafe(work));
        (result, THREAD.replace(Thread::Free))
    });
    match (result, ended) {
        (_, Thread::Ended(exceeded)) => Err(exceeded),
        (Ok(value), Thread::Counting(budget)) => {
            stack.keep(budget.lowest);
            Ok((value, budget.kept))
        }
        (Ok(value), Thread::Free) => Ok((value, 0)),
        (Err(panic), _) => resume_unwind(panic),
    }
}

/// Runs when an allocation failed. Without an ended budget the machine is out of memory, and Rust
/// aborts when this returns.
fn unwind(_: Layout) {
    if let Thread::Ended(_) = THREAD.get() {
        resume_unwind(Box::new(())); // no message: the caller reports the limit
    }
}
