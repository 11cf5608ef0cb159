//! jinja2's filters, where minijinja's differ from them.

use std::cmp::Ordering;

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};

use crate::arguments::{argument, split_kwargs};
use crate::{json, text, wrap};

pub fn add(env: &mut Environment) {
    env.add_filter("tojson", tojson);
    env.add_filter("string", |v: &Value| text::to_str(v));
    env.add_filter("trim", trim);
    env.add_filter("title", |v: &Value| text::jinja_title(&text::to_str(v)));
    env.add_filter("int", to_int);
    env.add_filter("float", to_float);
    env.add_filter("indent", indent);
    env.add_filter("items", items);
    env.add_filter("dictsort", dictsort);
    env.add_filter("wordcount", |v: &Value| text::to_str(v).split_whitespace().count());
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("join", join);
    env.add_filter("replace", replace);
    env.add_filter("__each", each);
    env.add_filter("sum", sum);
    env.add_filter("min", |v: &Value, args: Rest<Value>| extreme(v, &args, Ordering::Less));
    env.add_filter("max", |v: &Value, args: Rest<Value>| extreme(v, &args, Ordering::Greater));
    env.add_filter("round", round);
    env.add_filter("center", center);
    env.add_filter("truncate", truncate);
    env.add_filter("forceescape", |v: &Value| {
        Value::from_safe_string(text::escape(&text::to_str(v)))
    });
    env.add_filter("escape", escape);
    env.add_filter("e", escape);
    env.add_filter("wordwrap", wordwrap);
    env.add_filter("urlencode", urlencode);
    env.add_filter("filesizeformat", filesizeformat);
    env.add_filter("xmlattr", xmlattr);
}

/// markupsafe.escape: what is marked as safe stays.
fn escape(value: &Value) -> Value {
    Value::from_safe_string(text::escaped(value))
}

/// jinja2's do_wordwrap: (width=79, break_long_words=True, wrapstring="\n", break_on_hyphens=True).
fn wordwrap(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let (args, kwargs) = split_kwargs(&args)?;
    let width = argument(args, 0, &kwargs, "width")?.map_or(Ok(79), i64::try_from)?;
    let truth = |v: Option<Value>| v.is_none_or(|v| v.is_true());
    let break_long_words = truth(argument(args, 1, &kwargs, "break_long_words")?);
    let between = argument(args, 2, &kwargs, "wrapstring")?
        .filter(|v| !v.is_none())
        .map_or("\n".into(), |v| text::to_str(&v));
    let break_on_hyphens = truth(argument(args, 3, &kwargs, "break_on_hyphens")?);
    kwargs.assert_all_used()?;
    let Some(s) = value.as_str() else {
        return Err(invalid(format!("wordwrap: found a {}, expected a text", value.kind())));
    };
    let width = usize::try_from(width).ok().filter(|&width| width > 0);
    let mut lines = Vec::new();
    for line in text::split_lines(s, false) {
        let Some(width) = width else {
            return Err(invalid("wordwrap: invalid width (must be > 0)".into()));
        };
        let style = wrap::Style { width, break_long_words, break_on_hyphens };
        lines.push(wrap::wrap(line, &style).join(&between));
    }
    Ok(lines.join(&between))
}

/// jinja2's do_urlencode: a text as a part of a path, or pairs as a query.
fn urlencode(value: &Value) -> Result<String, Error> {
    let items = match value.kind() {
        ValueKind::Map => pairs(value)?,
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.collect(),
        _ => return Ok(quote(&text::to_str(value), "/")),
    };
    let mut out = Vec::new();
    for item in items {
        if item.len() != Some(2) {
            return Err(invalid("urlencode: found an item that is no pair".into()));
        }
        let part =
            |i| item.get_item_by_index(i).map(|v| quote(&text::to_str(&v), "").replace("%20", "+"));
        out.push(format!("{}={}", part(0)?, part(1)?));
    }
    Ok(out.join("&"))
}

/// urllib.parse.quote.
fn quote(s: &str, safe: &str) -> String {
    let mut out = String::new();
    for byte in s.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || "_.-~".contains(c) || safe.contains(c) {
            out.push(c);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// jinja2's do_filesizeformat: (binary=False).
fn filesizeformat(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let (args, kwargs) = split_kwargs(&args)?;
    let binary = argument(args, 0, &kwargs, "binary")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let bytes = match value.as_str() {
        Some(s) => s
            .trim()
            .parse::<f64>()
            .map_err(|_| invalid("filesizeformat: found a text that is no number".into()))?,
        None if value.kind() == ValueKind::Bool => f64::from(u8::from(value.is_true())),
        None => f64::try_from(value.clone())?,
    };
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok("1 Byte".into());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes as i128));
    }
    let mut unit = base;
    let mut out = String::new();
    for prefix in ["k", "M", "G", "T", "P", "E", "Z", "Y"] {
        unit *= base;
        let prefix = if binary { format!("{}i", prefix.to_uppercase()) } else { prefix.into() };
        out = format!("{:.1} {prefix}B", base * bytes / unit);
        if bytes < unit {
            break;
        }
    }
    Ok(out)
}

/// jinja2's do_xmlattr: (autospace=True).
fn xmlattr(state: &State, value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let (args, kwargs) = split_kwargs(&args)?;
    let space = argument(args, 0, &kwargs, "autospace")?.is_none_or(|v| v.is_true());
    kwargs.assert_all_used()?;
    if value.kind() != ValueKind::Map {
        return Err(invalid(format!("xmlattr: found a {}, expected a mapping", value.kind())));
    }
    let mut out = String::new();
    for pair in pairs(value)? {
        let (key, value) = (pair.get_item_by_index(0)?, pair.get_item_by_index(1)?);
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let bad = |c| matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}' | '/' | '>' | '=');
        if key.as_str().is_none_or(|key| key.contains(bad)) {
            let key = text::to_repr(&key);
            return Err(invalid(format!("xmlattr: invalid character in attribute name: {key}")));
        }
        if space || !out.is_empty() {
            out.push(' ');
        }
        out += &format!("{}=\"{}\"", text::escaped(&key), text::escaped(&value));
    }
    Ok(match state.auto_escape() {
        AutoEscape::None => Value::from(out),
        _ => Value::from_safe_string(out),
    })
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
fn to_int(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let (args, kwargs) = split_kwargs(&args)?;
    let default = argument(args, 0, &kwargs, "default")?.unwrap_or_else(|| Value::from(0));
    let base = argument(args, 1, &kwargs, "base")?.map_or(Ok(10), u32::try_from)?;
    kwargs.assert_all_used()?;
    if let Some(s) = value.as_str() {
        let mut digits: String = s.trim().replace('_', "");
        if let Some(prefix) = [(16, "0x"), (8, "0o"), (2, "0b")].iter().find(|(b, _)| *b == base) {
            digits = digits.to_lowercase().replacen(prefix.1, "", 1);
        }
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
        ValueKind::Number => {
            f64::try_from(value.clone()).map_or(default, |f| Value::from(f as i64))
        }
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

/// jinja2's do_indent: lines are Python's, blank lines are not indented unless the argument blank is true.
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

/// jinja2's do_items: of what is undefined, none.
fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if value.kind() != ValueKind::Map {
        return Err(invalid("Can only get item pairs from a mapping.".into()));
    }
    pairs(value).map(Value::from)
}

fn pairs(value: &Value) -> Result<Vec<Value>, Error> {
    value.try_iter()?.map(|key| Ok(Value::from(vec![key.clone(), value.get_item(&key)?]))).collect()
}

/// jinja2's do_dictsort: (case_sensitive=False, by="key", reverse=False).
fn dictsort(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let (args, kwargs) = split_kwargs(&args)?;
    let case_sensitive = argument(args, 0, &kwargs, "case_sensitive")?.is_some_and(|v| v.is_true());
    let by_value = match argument(args, 1, &kwargs, "by")? {
        None => false,
        Some(by) if by.as_str() == Some("key") => false,
        Some(by) if by.as_str() == Some("value") => true,
        Some(by) => {
            return Err(invalid(format!("dictsort: by is {by}, expected 'key' or 'value'")));
        }
    };
    let reverse = argument(args, 2, &kwargs, "reverse")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let mut keyed = Vec::new();
    for pair in pairs(value)? {
        let key = pair.get_item_by_index(usize::from(by_value))?;
        keyed.push(match key.as_str() {
            Some(s) if !case_sensitive => (Value::from(s.to_lowercase()), pair),
            _ => (key, pair),
        });
    }
    if reverse {
        keyed.sort_by(|a, b| b.0.cmp(&a.0)); // equal ones keep their order, as in Python
    } else {
        keyed.sort_by(|a, b| a.0.cmp(&b.0));
    }
    Ok(keyed.into_iter().map(|(_, pair)| pair).collect())
}

/// len(value): characters of text; an undefined value is empty.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    if let Some(s) = value.as_str() {
        return Ok(s.chars().count());
    }
    match value.len() {
        Some(len) => Ok(len),
        // A lazy sequence, such as a slice, is a list in jinja2.
        None if value.kind() == ValueKind::Iterable => Ok(value.try_iter()?.count()),
        None => Err(invalid(format!("object of type {} has no len()", value.kind()))),
    }
}

/// jinja2's do_join: (d="", attribute=None), each item as str() has it.
fn join(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let (args, kwargs) = split_kwargs(&args)?;
    let separator = argument(args, 0, &kwargs, "d")?.map_or(String::new(), |v| text::to_str(&v));
    let attribute = argument(args, 1, &kwargs, "attribute")?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    for (i, item) in value.try_iter()?.enumerate() {
        if i > 0 {
            out.push_str(&separator);
        }
        out.push_str(&text::to_str(&attribute_of(item, attribute.as_ref())?));
    }
    Ok(out)
}

/// What an argument `attribute` names of an item: "a.b.0". The item itself without one.
fn attribute_of(mut item: Value, path: Option<&Value>) -> Result<Value, Error> {
    let Some(path) = path.filter(|path| !path.is_none()) else {
        return Ok(item);
    };
    for part in text::to_str(path).split('.') {
        item = match part.parse::<usize>() {
            Ok(index) => item.get_item_by_index(index)?,
            Err(_) => item.get_attr(part)?,
        };
    }
    Ok(item)
}

/// The value of a `for` as one whose length the loop knows: the characters of a text, the items of a lazy sequence.
fn each(value: Value) -> Result<Value, Error> {
    if value.as_str().is_some() || value.kind() == ValueKind::Iterable && value.len().is_none() {
        return Ok(value.try_iter()?.collect::<Vec<Value>>().into());
    }
    Ok(value)
}

/// jinja2's do_sum: (attribute=None, start=0).
fn sum(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let (args, kwargs) = split_kwargs(&args)?;
    let attribute = argument(args, 0, &kwargs, "attribute")?;
    let start = argument(args, 1, &kwargs, "start")?.unwrap_or_else(|| Value::from(0));
    kwargs.assert_all_used()?;
    let (mut whole, mut exact) = (i128::try_from(start.clone()).ok(), true);
    let mut total = f64::try_from(start)?;
    for item in value.try_iter()? {
        let item = match attribute_of(item, attribute.as_ref())? {
            item if item.kind() == ValueKind::Bool => Value::from(i64::from(item.is_true())),
            item => item,
        };
        exact &= item.is_integer();
        total += f64::try_from(item.clone())?;
        whole = whole.and_then(|sum| sum.checked_add(i128::try_from(item).ok()?));
    }
    Ok(whole.filter(|_| exact).map_or(Value::from(total), Value::from))
}

/// jinja2's do_min and do_max: (case_sensitive=False, attribute=None), the first of equal ones.
fn extreme(value: &Value, args: &[Value], wanted: Ordering) -> Result<Value, Error> {
    let (args, kwargs) = split_kwargs(args)?;
    let case_sensitive = argument(args, 0, &kwargs, "case_sensitive")?.is_some_and(|v| v.is_true());
    let attribute = argument(args, 1, &kwargs, "attribute")?;
    kwargs.assert_all_used()?;
    let mut best: Option<(Value, Value)> = None;
    for item in value.try_iter()? {
        let key = match attribute_of(item.clone(), attribute.as_ref())? {
            key if !case_sensitive && key.as_str().is_some() => {
                Value::from(text::to_str(&key).to_lowercase())
            }
            key => key,
        };
        if best.as_ref().is_none_or(|(held, _)| key.cmp(held) == wanted) {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, item)| item))
}

/// jinja2's do_round: (precision=0, method="common"), a float. Halves go to the even neighbor.
fn round(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let (args, kwargs) = split_kwargs(&args)?;
    let precision = argument(args, 0, &kwargs, "precision")?.map_or(Ok(0), i32::try_from)?;
    let method =
        argument(args, 1, &kwargs, "method")?.map_or("common".into(), |v| text::to_str(&v));
    kwargs.assert_all_used()?;
    let number = f64::try_from(value.clone())?;
    let scale = 10f64.powi(precision.clamp(-300, 300));
    let scaled = number * scale;
    if method == "common" && precision >= 0 {
        if value.is_integer() {
            return Ok(value.clone());
        }
        // Exact decimal digits decide, as in Python.
        return Ok(Value::from(
            format!("{number:.0$}", precision.min(300) as usize).parse().unwrap_or(number),
        ));
    }
    let rounded = match method.as_str() {
        "common" => scaled.round_ties_even(),
        "ceil" => scaled.ceil(),
        "floor" => scaled.floor(),
        _ => return Err(invalid("method must be common, ceil or floor".into())),
    } / scale;
    if method == "common" && value.is_integer() {
        return Ok(Value::from(rounded as i128));
    }
    Ok(Value::from(rounded))
}

/// jinja2's do_center: (width=80).
fn center(value: &Value, width: Option<usize>) -> Result<String, Error> {
    let s = text::to_str(value);
    let width = width.unwrap_or(80);
    if width > 1 << 20 {
        return Err(invalid(format!("width {width} is above {}", 1 << 20)));
    }
    let missing = width.saturating_sub(s.chars().count());
    let before = missing / 2 + (missing & width & 1);
    Ok(format!("{}{s}{}", " ".repeat(before), " ".repeat(missing - before)))
}

/// jinja2's do_truncate: (length=255, killwords=False, end="...", leeway=5), in characters.
fn truncate(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let (args, kwargs) = split_kwargs(&args)?;
    let length = argument(args, 0, &kwargs, "length")?.map_or(Ok(255), usize::try_from)?;
    let kill = argument(args, 1, &kwargs, "killwords")?.is_some_and(|v| v.is_true());
    let end = argument(args, 2, &kwargs, "end")?.map_or("...".into(), |v| text::to_str(&v));
    let leeway = argument(args, 3, &kwargs, "leeway")?
        .filter(|v| !v.is_none())
        .map_or(Ok(5), usize::try_from)?;
    kwargs.assert_all_used()?;
    let (s, mark) = (text::to_str(value), end.chars().count());
    if length < mark {
        return Err(invalid(format!("expected length >= {mark}, got {length}")));
    }
    if s.chars().count() <= length.saturating_add(leeway) {
        return Ok(s);
    }
    let kept: String = s.chars().take(length - mark).collect();
    if kill {
        return Ok(kept + &end);
    }
    Ok(kept.rsplit_once(' ').map_or(kept.as_str(), |(words, _)| words).to_string() + &end)
}

/// jinja2's do_replace: (old, new, count=None).
fn replace(value: &Value, old: &str, new: &str, count: Option<i64>) -> String {
    let s = text::to_str(value);
    match count.and_then(|n| usize::try_from(n).ok()) {
        Some(n) => s.replacen(old, new, n),
        None => s.replace(old, new),
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
