//! The environment that `transformers` gives a chat template.

use std::fmt::{self, Write};
use std::io;

use chrono::DateTime;
use minijinja::value::{Value, ValueKind};
use minijinja::{context, Environment, Error, ErrorKind, State};

use crate::{filters, methods, text};

const NAME: &str = "chat_template";
const CLOCK: &str = "__millrace_now"; // the render's time, in the context: seconds since 1970 UTC

/// What `raise_exception` was called with, carried as the source of an error.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

pub fn compile(source: &str) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_formatter(|out, _, value| text::write_str(out, value).map_err(Error::from));
    env.set_unknown_method_callback(methods::call);

    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);

    filters::add(&mut env);

    // jinja2 tests for a length and an index, which a Python string and a dict have.
    env.add_test("sequence", |v: &Value| {
        use ValueKind::*; // jinja2's Undefined has a length too
        matches!(v.kind(), Undefined | String | Seq | Iterable | Map)
    });
    env.add_test("iterable", |v: &Value| {
        v.is_undefined()
            || (!v.is_none() && (v.kind() == ValueKind::String || v.try_iter().is_ok()))
    });

    env.add_test("number", |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool));
    env.add_test("callable", |v: &Value| v.kind() == ValueKind::Plain); // functions and macros

    // jinja2 reads every line ending as this one.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    env.add_template_owned(NAME, without_generation_tags(&source))?;
    Ok(env)
}

pub fn render(
    env: &Environment,
    values: Value,
    now_seconds: i64,
    out: impl io::Write,
) -> Result<(), Error> {
    let variables = context! { __millrace_now => now_seconds, ..values };
    env.get_template(NAME)?.render_captured_to(variables, out).map(|_| ())
}

/// The message of `raise_exception`, if that is what ended the render.
pub fn raised(err: &Error) -> Option<String> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(err);
    while let Some(e) = source {
        if let Some(raised) = e.downcast_ref::<Raised>() {
            return Some(raised.0.clone());
        }
        source = e.source();
    }
    None
}

/// `{% generation %}` marks what the model wrote, for training masks; when rendering it is only a
/// scope. Whitespace control of the tag is kept.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let end = tag.find("%}").unwrap_or(tag.len());
        let name = tag[2..end].trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match name {
            "generation" => out.push_str(&tag[..end].replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag[..end].replacen("endgeneration", "endwith", 1)),
            _ => out.push_str(&tag[..end]),
        }
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = text::to_str(message);
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn strftime_now(state: &State, format: &str) -> Result<String, Error> {
    let bad = |what: &str| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {what}"));
    let seconds = i64::try_from(state.lookup(CLOCK).ok_or_else(|| bad("no clock"))?)?;
    let now = DateTime::from_timestamp(seconds, 0).ok_or_else(|| bad("time out of range"))?;
    // chrono differs from C on these: %f is nanoseconds there, and Python's time here has no zone.
    let format = format.replace("%f", "000000").replace("%Z", "").replace("%z", "");
    let mut out = String::new();
    write!(out, "{}", now.format(&format))
        .map_err(|_| bad(&format!("unknown format {format:?}")))?;
    Ok(out)
}
