//! Python's methods on str, dict and list, where minijinja-contrib's differ from Python's.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use crate::arguments::{argument, split_kwargs};
use crate::text;

const MAX_PADDED: usize = 1 << 20; // characters that a padding method may ask for

pub fn call(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (plain, kwargs) = split_kwargs(args)?;
    let result = match (value.kind(), value.as_str()) {
        (_, Some(s)) => string_method(s, method, plain, &kwargs)?,
        (ValueKind::Seq | ValueKind::Iterable, _) => sequence_method(value, method, plain)?,
        (ValueKind::Map, _) if method == "copy" && plain.is_empty() => Some(value.clone()),
        _ => None,
    };
    match result {
        Some(result) => {
            kwargs.assert_all_used()?;
            Ok(result)
        }
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn string_method(
    s: &str,
    method: &str,
    args: &[Value],
    kwargs: &Kwargs,
) -> Result<Option<Value>, Error> {
    let chars = || optional_str(args.first());
    Ok(Some(match method {
        "strip" => Value::from(text::strip(s, chars()?, true, true)),
        "lstrip" => Value::from(text::strip(s, chars()?, true, false)),
        "rstrip" => Value::from(text::strip(s, chars()?, false, true)),
        "title" => Value::from(text::python_title(s)),
        "split" | "rsplit" => split(s, method == "rsplit", args, kwargs)?,
        "splitlines" => {
            let keep = argument(args, 0, kwargs, "keepends")?.is_some_and(|v| v.is_true());
            text::split_lines(s, keep).into_iter().map(Value::from).collect()
        }
        "find" | "rfind" | "index" | "rindex" => {
            let part = text_argument(args)?;
            let place = within(s, args)?.and_then(|(before, s)| {
                let found = if method.starts_with('r') { s.rfind(part) } else { s.find(part) };
                char_index(s, found).map(|at| at + before)
            });
            match place {
                Some(place) => place.into(),
                None if method.ends_with("find") => (-1).into(),
                None => return Err(invalid("substring not found")),
            }
        }
        "count" => match (text_argument(args)?, within(s, args)?) {
            (_, None) => Value::from(0),
            ("", Some((_, s))) => Value::from(s.chars().count() + 1),
            (part, Some((_, s))) => Value::from(s.matches(part).count()),
        },
        "startswith" | "endswith" if args.len() > 1 => {
            let Some((_, s)) = within(s, args)? else {
                return Ok(Some(Value::from(false)));
            };
            let parts = match args[0].as_str() {
                Some(_) => vec![args[0].clone()],
                None => args[0].try_iter()?.collect(),
            };
            let has = |part: &str| {
                if method == "startswith" {
                    s.starts_with(part)
                } else {
                    s.ends_with(part)
                }
            };
            Value::from(parts.iter().filter_map(Value::as_str).any(has))
        }
        "swapcase" => Value::from(
            s.chars()
                .flat_map(|c| -> Vec<char> {
                    if c.is_uppercase() {
                        c.to_lowercase().collect()
                    } else {
                        c.to_uppercase().collect()
                    }
                })
                .collect::<String>(),
        ),
        "casefold" => Value::from(s.to_lowercase().replace('ß', "ss")),
        "expandtabs" => {
            let size = argument(args, 0, kwargs, "tabsize")?.map_or(Some(8), |v| v.as_usize());
            Value::from(expand_tabs(
                s,
                size.filter(|&n| n <= MAX_PADDED).ok_or_else(|| invalid("bad tabsize"))?,
            ))
        }
        "isdecimal" => Value::from(!s.is_empty() && s.chars().all(|c| c.is_ascii_digit())),
        "removeprefix" => {
            let prefix = text_argument(args)?;
            Value::from(s.strip_prefix(prefix).unwrap_or(s))
        }
        "removesuffix" => {
            let suffix = text_argument(args)?;
            Value::from(s.strip_suffix(suffix).unwrap_or(s))
        }
        "partition" => {
            let separator = nonempty(text_argument(args)?)?;
            let (before, after) = s.split_once(separator).unwrap_or((s, ""));
            let found = before.len() < s.len();
            triple(before, if found { separator } else { "" }, after)
        }
        "rpartition" => {
            let separator = nonempty(text_argument(args)?)?;
            match s.rsplit_once(separator) {
                Some((before, after)) => triple(before, separator, after),
                None => triple("", "", s),
            }
        }
        "ljust" | "rjust" | "center" | "zfill" => pad(s, method, args)?,
        "islower" | "isupper" => {
            let upper = method == "isupper";
            let cased = |c: char| c.is_lowercase() || c.is_uppercase();
            let wrong = |c: char| if upper { c.is_lowercase() } else { c.is_uppercase() };
            Value::from(s.chars().any(cased) && !s.chars().any(wrong))
        }
        // Python answers no for the empty string, where "all characters are" is true.
        "isspace" => Value::from(!s.is_empty() && s.chars().all(text::is_space)),
        "isdigit" | "isnumeric" | "isalpha" | "isalnum" if s.is_empty() => Value::from(false),
        "join" => return join(s, args).map(Some),
        _ => return Ok(None),
    }))
}

fn sequence_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match (method, args) {
        ("index", [wanted]) => {
            let place = value.try_iter()?.position(|item| item == *wanted);
            place.map(|i| Some(Value::from(i))).ok_or_else(|| invalid("value is not in list"))
        }
        ("count", [wanted]) => {
            Ok(Some(Value::from(value.try_iter()?.filter(|item| item == wanted).count())))
        }
        ("copy", []) => Ok(Some(value.clone())),
        _ => Ok(None),
    }
}

/// The part of a text that the arguments (part, start=None, end=None) ask for, in characters, and how many are before
/// it. None where start is after end: nothing is found there, not even an empty text.
fn within<'a>(s: &'a str, args: &[Value]) -> Result<Option<(i64, &'a str)>, Error> {
    let len = s.chars().count() as i64;
    let place = |i: usize, default: i64| match args.get(i).filter(|v| !v.is_none()) {
        Some(v) => i64::try_from(v.clone()).map(|n| if n < 0 { (n + len).max(0) } else { n }),
        None => Ok(default),
    };
    let (start, end) = (place(1, 0)?, place(2, len)?.min(len));
    if start > end {
        return Ok(None);
    }
    let byte = |n: i64| s.char_indices().nth(n as usize).map_or(s.len(), |(at, _)| at);
    Ok(Some((start, &s[byte(start)..byte(end)])))
}

fn expand_tabs(s: &str, size: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for c in s.chars() {
        match c {
            '\t' if size > 0 => {
                let missing = size - column % size;
                out.extend(std::iter::repeat(' ').take(missing));
                column += missing;
            }
            '\t' => {}
            c => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    out
}

/// str.split and str.rsplit: (sep=None, maxsplit=-1).
fn split(s: &str, from_right: bool, args: &[Value], kwargs: &Kwargs) -> Result<Value, Error> {
    let separator = argument(args, 0, kwargs, "sep")?.filter(|v| !v.is_none());
    let limit = match argument(args, 1, kwargs, "maxsplit")? {
        Some(n) => usize::try_from(i64::try_from(n)?).ok(), // negative: no limit
        None => None,
    };
    let parts = match &separator {
        Some(separator) => {
            let separator = nonempty(optional_str(Some(separator))?.unwrap_or_default())?;
            split_on(s, separator, limit, from_right)
        }
        None => split_on_space(s, limit, from_right),
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn split_on<'a>(
    s: &'a str,
    separator: &str,
    limit: Option<usize>,
    from_right: bool,
) -> Vec<&'a str> {
    let count = limit.map_or(usize::MAX, |n| n.saturating_add(1));
    if !from_right {
        return s.splitn(count, separator).collect();
    }
    let mut parts: Vec<&str> = s.rsplitn(count, separator).collect();
    parts.reverse();
    parts
}

fn split_on_space(s: &str, limit: Option<usize>, from_right: bool) -> Vec<&str> {
    let limit = limit.unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    let mut rest = text::strip(s, None, !from_right, from_right);
    while !rest.is_empty() {
        let boundary =
            if from_right { rest.rfind(text::is_space) } else { rest.find(text::is_space) };
        let (Some(at), true) = (boundary, parts.len() < limit) else {
            parts.push(rest);
            break;
        };
        let width = rest[at..].chars().next().map_or(1, char::len_utf8);
        if from_right {
            parts.push(&rest[at + width..]);
            rest = text::strip(&rest[..at], None, false, true);
        } else {
            parts.push(&rest[..at]);
            rest = text::strip(&rest[at + width..], None, true, false);
        }
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// str.join takes strings only.
fn join(separator: &str, args: &[Value]) -> Result<Value, Error> {
    let [values] = args else {
        return Err(invalid("join() takes one argument"));
    };
    let mut out = String::new();
    for (i, value) in values.try_iter()?.enumerate() {
        if i > 0 {
            out.push_str(separator);
        }
        let part = value.as_str().ok_or_else(|| {
            invalid(&format!("sequence item {i}: expected str, {} found", value.kind()))
        })?;
        out.push_str(part);
    }
    Ok(Value::from(out))
}

fn pad(s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let width =
        args.first().and_then(Value::as_usize).ok_or_else(|| invalid("expected a width"))?;
    if width > MAX_PADDED {
        return Err(invalid(&format!("width {width} is above {MAX_PADDED}")));
    }
    let missing = width.saturating_sub(s.chars().count());
    let fill = optional_str(args.get(1))?.unwrap_or(if method == "zfill" { "0" } else { " " });
    let padding = fill.repeat(missing);
    Ok(Value::from(match method {
        "ljust" => format!("{s}{padding}"),
        "rjust" => format!("{padding}{s}"),
        "center" => {
            let before = missing / 2 + (missing & width & 1); // as Python rounds
            format!("{}{s}{}", fill.repeat(before), fill.repeat(missing - before))
        }
        _ => match s.strip_prefix(['+', '-']) {
            Some(digits) => format!("{}{padding}{digits}", &s[..1]),
            None => format!("{padding}{s}"),
        },
    }))
}

fn char_index(s: &str, byte: Option<usize>) -> Option<i64> {
    byte.map(|b| s[..b].chars().count() as i64)
}

fn triple(a: &str, b: &str, c: &str) -> Value {
    [a, b, c].into_iter().map(Value::from).collect()
}

fn optional_str(value: Option<&Value>) -> Result<Option<&str>, Error> {
    match value {
        Some(v) if !v.is_none() => v
            .as_str()
            .map(Some)
            .ok_or_else(|| invalid(&format!("expected a string, {} found", v.kind()))),
        _ => Ok(None),
    }
}

fn text_argument(args: &[Value]) -> Result<&str, Error> {
    optional_str(args.first())?.ok_or_else(|| invalid("expected a string argument"))
}

fn nonempty(separator: &str) -> Result<&str, Error> {
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    Ok(separator)
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_string())
}
