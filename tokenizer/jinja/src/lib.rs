//! Chat templates for millrace: minijinja made to render what `transformers` renders
//! (`utils/chat_template_utils.py`: a jinja2 ImmutableSandboxedEnvironment), with the C ABI of
//! millrace_jinja.h. The archive also has the C ABI that the Go package of
//! github.com/daulet/tokenizers links (tokens.rs), and that of grammars (grammar.rs).

#![feature(alloc_error_hook)] // see budget.rs

mod arguments;
mod budget;
mod environment;
mod filters;
mod finite;
mod grammar;
mod json;
mod methods;
mod numbers;
mod source;
mod stack;
mod text;
mod tokens;
mod variadic;
mod wrap;

use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;

use minijinja::{Environment, ErrorKind};

const OK: i32 = 0;
const ERROR: i32 = 1;
const RAISED: i32 = 2;
const LIMIT: i32 = 3;

/// Bounds of a template's compilation, which computes constant expressions such as 'x' * 1000000.
const COMPILE: budget::Limits = budget::Limits { held: 64 << 20, allocated: 1 << 28, time: None };

/// Bytes handed to the caller, who gives them back to `millrace_jinja_bytes_free`.
#[repr(C)]
pub struct Bytes {
    data: *mut u8,
    len: usize,
}

impl Bytes {
    fn new(bytes: Vec<u8>) -> Bytes {
        let boxed = bytes.into_boxed_slice();
        let len = boxed.len();
        Bytes { data: Box::into_raw(boxed) as *mut u8, len }
    }
}

type Template = Environment<'static>;
type Failure = (i32, String);

/// # Safety
/// `source` points to `len` readable bytes; the other pointers are valid for writing.
#[no_mangle]
pub unsafe extern "C" fn millrace_jinja_compile(
    source: *const u8,
    len: usize,
    out_template: *mut *mut Template,
    out: *mut Bytes,
) -> i32 {
    let source = bytes(source, len);
    match guarded(|| {
        let source = utf8(source)?;
        budget::run(COMPILE, || environment::compile(source).map_err(|e| (ERROR, e.to_string())))
            .unwrap_or_else(|exceeded| Err((LIMIT, exceeded.to_string())))
    }) {
        Ok(env) => {
            *out_template = Box::into_raw(Box::new(env));
            OK
        }
        Err((code, message)) => {
            *out = Bytes::new(message.into_bytes());
            code
        }
    }
}

/// `millrace_jinja_limits` of millrace_jinja.h.
#[repr(C)]
pub struct RenderLimits {
    steps: u64,
    output: usize,
    memory: usize,
    allocated: usize,
}

/// # Safety
/// `template` came from `millrace_jinja_compile` and is not freed; `context` points to `len`
/// readable bytes; `out` is valid for writing.
#[no_mangle]
pub unsafe extern "C" fn millrace_jinja_render(
    template: *const Template,
    context: *const u8,
    len: usize,
    now_seconds: i64,
    limits: &RenderLimits,
    out: *mut Bytes,
) -> i32 {
    let context = bytes(context, len);
    let result = guarded(|| {
        let values = json::parse(context).map_err(|e| (ERROR, format!("variables: {e}")))?;
        let mut env = (*template).clone(); // a few reference counts; the compiled code is shared
        env.set_fuel(Some(limits.steps));
        let mut written = Limited { bytes: Vec::new(), limit: limits.output };
        let bounds =
            budget::Limits { held: limits.memory, allocated: limits.allocated, time: None };
        budget::run(bounds, || {
            environment::render(&env, values, now_seconds, &mut written)
                .map_err(|e| failure(&e, limits))
        })
        .unwrap_or_else(|exceeded| Err((LIMIT, exceeded.to_string())))?;
        Ok(written.bytes)
    });
    let (code, bytes) = match result {
        Ok(rendered) => (OK, rendered),
        Err((code, message)) => (code, message.into_bytes()),
    };
    *out = Bytes::new(bytes);
    code
}

/// # Safety
/// `template` came from `millrace_jinja_compile` and is not used again.
#[no_mangle]
pub unsafe extern "C" fn millrace_jinja_template_free(template: *mut Template) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

/// # Safety
/// `bytes` came from this library and is not used again.
#[no_mangle]
pub unsafe extern "C" fn millrace_jinja_bytes_free(bytes: Bytes) {
    if !bytes.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(bytes.data, bytes.len)));
    }
}

unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        &[]
    } else {
        slice::from_raw_parts(data, len)
    }
}

fn utf8(source: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(source).map_err(|e| (ERROR, format!("template is not UTF-8: {e}")))
}

/// Unwinding into C is undefined behavior, so a panic becomes an error.
fn guarded<T>(f: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = tokens::panic_text(&*panic);
        Err((ERROR, format!("internal error in the template engine: {text}")))
    })
}

fn failure(err: &minijinja::Error, limits: &RenderLimits) -> Failure {
    if let Some(message) = environment::raised(err) {
        return (RAISED, message);
    }
    match err.kind() {
        ErrorKind::OutOfFuel => (LIMIT, format!("it runs more than {} steps", limits.steps)),
        ErrorKind::WriteFailure => (LIMIT, format!("it writes more than {} bytes", limits.output)),
        _ => (ERROR, err.to_string()),
    }
}

/// Collects output up to a limit.
struct Limited {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for Limited {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if buf.len() > self.limit - self.bytes.len() {
            return Err(io::Error::other("output too long"));
        }
        self.bytes.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
