//! The environment that `transformers` gives a chat template.

use std::fmt::{self, Write};
use std::io;

use chrono::{DateTime, FixedOffset};
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{context, Environment, Error, ErrorKind, State};

use crate::{json, methods, text};

const NAME: &str = "chat_template";
const CLOCK: &str = "__millrace_now"; // the render's time, in the context: [seconds, offset]

pub struct Clock {
    pub now_seconds: i64,
    pub utc_offset_seconds: i32,
}

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

    env.add_filter("tojson", tojson);
    env.add_filter("string", |v: &Value| text::to_str(v));
    env.add_filter("trim", trim);
    env.add_filter("title", |v: &Value| text::jinja_title(&text::to_str(v)));
    env.add_filter("int", to_int);
    env.add_filter("float", to_float);
    env.add_filter("indent", indent);
    env.add_filter("wordcount", |v: &Value| text::to_str(v).split_whitespace().count());

    // A Python string and a dict have a length and an index, which is what jinja2 asks.
    env.add_test("sequence", |v: &Value| {
        matches!(v.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map)
    });
    env.add_test("iterable", |v: &Value| {
        v.is_undefined() || (!v.is_none() && (v.kind() == ValueKind::String || v.try_iter().is_ok()))
    });

    env.add_template_owned(NAME, without_generation_tags(source))?;
    Ok(env)
}

pub fn render(
    env: &Environment,
    values: Value,
    clock: Clock,
    out: impl io::Write,
) -> Result<(), Error> {
    let now = Value::from(vec![clock.now_seconds, i64::from(clock.utc_offset_seconds)]);
    let variables = context! { __millrace_now => now, ..values };
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
    let clock = state.lookup(CLOCK).ok_or_else(|| bad("no clock"))?;
    let seconds = i64::try_from(clock.get_item_by_index(0)?)?;
    let offset = i32::try_from(clock.get_item_by_index(1)?)?;
    let zone = FixedOffset::east_opt(offset).ok_or_else(|| bad("utc offset out of range"))?;
    let now = DateTime::from_timestamp(seconds, 0).ok_or_else(|| bad("time out of range"))?;
    // chrono differs from C on these: %f is nanoseconds there, and Python's time here has no zone.
    let format = format.replace("%f", "000000").replace("%Z", "").replace("%z", "");
    let mut out = String::new();
    write!(out, "{}", now.with_timezone(&zone).format(&format))
        .map_err(|_| bad(&format!("unknown format {format:?}")))?;
    Ok(out)
}

fn tojson(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let (args, kwargs) = split_kwargs(&args)?;
    let style = json::Style::from_args(args, &kwargs)?;
    kwargs.assert_all_used()?;
    json::dump(value, &style)
}

fn trim(value: &Value, chars: Option<&str>) -> String {
    text::strip(&text::to_str(value), chars, true, true).to_string()
}

/// jinja2's do_int: the default where the value is no number; "3.7" is 3.
fn to_int(value: &Value, default: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or_else(|| Value::from(0));
    let base: u32 = kwargs.get::<Option<u32>>("base")?.unwrap_or(10);
    kwargs.assert_all_used()?;
    if let Some(s) = value.as_str() {
        let digits: String = s.trim().replace('_', "");
        if let Ok(n) = i64::from_str_radix(&digits, base.clamp(2, 36)) {
            return Ok(Value::from(n));
        }
        return Ok(digits.parse::<f64>().map_or(default, |f| Value::from(f as i64)));
    }
    if value.is_integer() {
        return Ok(value.clone());
    }
    Ok(match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        ValueKind::Number => f64::try_from(value.clone()).map_or(default, |f| Value::from(f as i64)),
        _ => default,
    })
}

fn to_float(value: &Value, default: Option<Value>) -> Value {
    let default = default.unwrap_or_else(|| Value::from(0.0));
    if let Some(s) = value.as_str() {
        return s.trim().parse::<f64>().map_or(default, Value::from);
    }
    match value.kind() {
        ValueKind::Bool => Value::from(if value.is_true() { 1.0 } else { 0.0 }),
        ValueKind::Number => f64::try_from(value.clone()).map_or(default, Value::from),
        _ => default,
    }
}

/// jinja2's do_indent: lines are Python's, blank lines stay bare unless asked.
fn indent(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let (args, kwargs) = split_kwargs(&args)?;
    let width = argument(args, 0, &kwargs, "width")?.unwrap_or_else(|| Value::from(4));
    let first = argument(args, 1, &kwargs, "first")?.is_some_and(|v| v.is_true());
    let blank = argument(args, 2, &kwargs, "blank")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let prefix = match width.as_str() {
        Some(s) => s.to_string(),
        None => " ".repeat(width.as_usize().unwrap_or(0).min(1 << 16)),
    };
    let source = text::to_str(value) + "\n"; // as jinja2 does: a last empty line counts
    let mut out = String::new();
    for (i, line) in text::split_lines(&source, false).into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let indented = if i == 0 { first } else { blank || !line.is_empty() };
        if indented {
            out.push_str(&prefix);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// Keyword arguments arrive as a last argument of their own kind.
pub fn split_kwargs(args: &[Value]) -> Result<(&[Value], Kwargs), Error> {
    match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => Ok((rest, Kwargs::try_from(last.clone())?)),
        _ => Ok((args, Kwargs::from_iter(std::iter::empty::<(&str, Value)>()))),
    }
}

/// An argument by place or by name.
pub fn argument(
    args: &[Value],
    place: usize,
    kwargs: &Kwargs,
    name: &str,
) -> Result<Option<Value>, Error> {
    match args.get(place) {
        Some(value) => Ok(Some(value.clone())),
        None if kwargs.has(name) => kwargs.get(name).map(Some),
        None => Ok(None),
    }
}
