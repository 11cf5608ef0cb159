//! Stacks for pieces of work that may nest deeply. A stack is mapped once and kept for the next piece
//! of work: mapping one, and the first writes to its pages, take longer than a short render.

use std::io;
use std::ptr;
use std::sync::Mutex;

/// The size of a stack in bytes; pages that are not touched take no memory. A nested value has at
/// least one allocation per level; dropping a level takes less than 200 bytes of stack.
pub const SIZE: usize = 256 << 20;

/// The bytes that work may touch of a stack that is kept: the most memory that a kept one takes.
const KEPT: usize = 256 << 10;

/// Bytes without access below a stack, and above it: a multiple of the page size of any machine. With the
/// one above, the system never joins a stack with another mapping, so that its memory can be measured.
const GUARD: usize = 64 << 10;

/// The bytes of a stack and its guards.
const MAPPED: usize = GUARD + SIZE + GUARD;

/// The stacks without work: in all there are at most as many as pieces of work ran at once.
static FREE: Mutex<Vec<Stack>> = Mutex::new(Vec::new());

/// A mapping of SIZE bytes between two guards. Dropping it unmaps it.
pub struct Stack {
    mapping: usize,
}

impl Stack {
    /// Returns a kept stack, or a new one. It panics when the machine has no address space left.
    pub fn take() -> Stack {
        FREE.lock().unwrap().pop().unwrap_or_else(Stack::map)
    }

    fn map() -> Stack {
        // SAFETY: a new mapping at an address of the system's choice.
        let mapping = unsafe {
            libc::mmap(
                ptr::null_mut(),
                MAPPED,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            )
        };
        assert_ne!(mapping, libc::MAP_FAILED, "no stack: {}", io::Error::last_os_error());
        let stack = Stack { mapping: mapping as usize };
        // SAFETY: the range lies in the mapping.
        let opened = unsafe {
            libc::mprotect(stack.base().cast(), SIZE, libc::PROT_READ | libc::PROT_WRITE)
        };
        assert_eq!(opened, 0, "no stack: {}", io::Error::last_os_error());
        stack
    }

    /// The lowest address that work may use.
    pub fn base(&self) -> *mut u8 {
        (self.mapping + GUARD) as *mut u8
    }

    /// Runs `work`, which must not unwind, on the stack.
    pub fn run<T>(&mut self, work: impl FnOnce() -> T) -> T {
        // SAFETY: the stack is mapped with a guard below it, and no other work runs on it.
        unsafe { psm::on_stack(self.base(), SIZE, work) }
    }

    /// Keeps the stack for the next work. A stack whose work reached below `lowest` more than KEPT bytes
    /// deep is unmapped instead, so that its memory is free again.
    pub fn keep(self, lowest: usize) {
        if lowest >= self.mapping + GUARD + SIZE - KEPT {
            FREE.lock().unwrap().push(self);
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: no work runs on the stack.
        unsafe { libc::munmap(self.mapping as *mut libc::c_void, MAPPED) };
    }
}
