//! The environment that `transformers` gives a chat template.

use std::fmt::{self, Write};
use std::io;

use chrono::DateTime;
use indexmap::IndexMap;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{context, AutoEscape, Environment, Error, ErrorKind, State};

use crate::{filters, json, methods, numbers, source, text, variadic};

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
    env.set_formatter(|out, state, value| match state.auto_escape() {
        AutoEscape::None => text::write_str(out, value).map_err(Error::from),
        _ => out.write_str(&text::escaped(value)).map_err(Error::from),
    });
    env.set_unknown_method_callback(methods::call);

    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);

    env.add_function("dict", dict);
    env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    env.add_function("joiner", minijinja_contrib::globals::joiner);

    env.add_function(variadic::FUNCTION, variadic::new);
    filters::add(&mut env);
    numbers::add(&mut env);

    // jinja2 tests for a length and an index, which a Python string and a dict have.
    env.add_test("sequence", |v: &Value| {
        use ValueKind::*; // jinja2's Undefined has a length too
        matches!(v.kind(), Undefined | String | Seq | Iterable | Map)
    });
    env.add_test("iterable", |v: &Value| {
        v.is_undefined()
            || (!v.is_none() && (v.kind() == ValueKind::String || v.try_iter().is_ok()))
    });

    env.add_test("number", |v: &Value| {
        matches!(v.kind(), ValueKind::Number | ValueKind::Bool) || json::is_integer(v)
    });
    env.add_test("integer", |v: &Value| v.is_integer() || json::is_integer(v));
    env.add_test("callable", |v: &Value| {
        v.kind() == ValueKind::Plain && !json::is_integer(v) // functions and macros
    });

    // jinja2 reads every line ending as this one.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    env.add_template_owned(NAME, source::rewrite(&source))?;
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

/// Python's dict: (mapping or pairs, **more).
fn dict(from: Option<Value>, more: Kwargs) -> Result<Value, Error> {
    let mut items = IndexMap::new();
    if let Some(from) = from.filter(|v| !v.is_undefined()) {
        for item in from.try_iter()? {
            let (key, value) = match from.kind() {
                ValueKind::Map => (item.clone(), from.get_item(&item)?),
                _ => (item.get_item_by_index(0)?, item.get_item_by_index(1)?),
            };
            items.insert(key, value);
        }
    }
    for key in more.args() {
        items.insert(Value::from(key), more.get::<Value>(key)?);
    }
    Ok(items.into_iter().collect())
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
