//! Python's text: str(), repr(), and what it takes for whitespace and for lines.

use std::fmt::{self, Write};

use minijinja::value::{Value, ValueKind};

/// str(value), as `{{ value }}` prints it.
pub fn to_str(value: &Value) -> String {
    let mut out = String::new();
    let _ = write_str(&mut out, value); // a String takes every write
    out
}

/// repr(value).
pub fn to_repr(value: &Value) -> String {
    let mut out = String::new();
    let _ = write_repr(&mut out, value); // as above
    out
}

/// markupsafe.escape of a text.
pub fn escape(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// markupsafe.escape: what is marked as safe stays.
pub fn escaped(value: &Value) -> String {
    match value.is_safe() {
        true => to_str(value),
        false => escape(&to_str(value)),
    }
}

pub fn write_str(out: &mut dyn Write, value: &Value) -> fmt::Result {
    match value.as_str() {
        Some(s) => out.write_str(s),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value),
    }
}

fn write_repr(out: &mut dyn Write, value: &Value) -> fmt::Result {
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Number => write_number(out, value),
        ValueKind::Map => write_dict(out, value),
        // A `loop`, a namespace and the like print themselves.
        ValueKind::Seq | ValueKind::Iterable => write_list(out, value),
        _ => write!(out, "{value}"),
    }
}

fn write_list(out: &mut dyn Write, value: &Value) -> fmt::Result {
    out.write_char('[')?;
    for (i, item) in value.try_iter().map_err(|_| fmt::Error)?.enumerate() {
        if i > 0 {
            out.write_str(", ")?;
        }
        write_repr(out, &item)?;
    }
    out.write_char(']')
}

fn write_dict(out: &mut dyn Write, value: &Value) -> fmt::Result {
    out.write_char('{')?;
    for (i, key) in value.try_iter().map_err(|_| fmt::Error)?.enumerate() {
        if i > 0 {
            out.write_str(", ")?;
        }
        write_repr(out, &key)?;
        out.write_str(": ")?;
        write_repr(out, &value.get_item(&key).unwrap_or_default())?;
    }
    out.write_char('}')
}

/// A number as Python's repr writes it: the shortest digits, an exponent below 1e-4 and from 1e16.
pub fn write_number(out: &mut dyn Write, value: &Value) -> fmt::Result {
    if value.is_integer() {
        return write!(out, "{value}");
    }
    let f = f64::try_from(value.clone()).map_err(|_| fmt::Error)?;
    if f.is_nan() {
        return out.write_str("nan");
    }
    if f.is_infinite() {
        return out.write_str(if f < 0.0 { "-inf" } else { "inf" });
    }
    if f != 0.0 && !(1e-4..1e16).contains(&f.abs()) {
        let scientific = format!("{f:e}");
        let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let (sign, digits) = match exponent.strip_prefix('-') {
            Some(digits) => ('-', digits),
            None => ('+', exponent),
        };
        return write!(out, "{mantissa}e{sign}{digits:0>2}");
    }
    write!(out, "{f:?}")
}

/// repr(str): single quotes unless the text has only single ones; what does not print is escaped.
fn write_quoted(out: &mut dyn Write, s: &str) -> fmt::Result {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in s.chars() {
        match c {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if is_printable(c) => out.write_char(c)?,
            c if (c as u32) < 0x100 => write!(out, "\\x{:02x}", c as u32)?,
            c if (c as u32) < 0x10000 => write!(out, "\\u{:04x}", c as u32)?,
            c => write!(out, "\\U{:08x}", c as u32)?,
        }
    }
    out.write_char(quote)
}

/// str.isprintable: no control, format, private or unassigned character, no space but ' '. Rust's
/// escape_debug has the same rule, and after another character spares combining marks.
fn is_printable(c: char) -> bool {
    matches!(c, '\'' | '"') || ['a', c].iter().collect::<String>().escape_debug().count() == 2
}

/// What str.strip and str.split take for whitespace: Unicode's, and the four separators.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

pub fn strip<'a>(s: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let dropped = |c: char| chars.map_or_else(|| is_space(c), |set| set.contains(c));
    let s = if left { s.trim_start_matches(dropped) } else { s };
    if right {
        s.trim_end_matches(dropped)
    } else {
        s
    }
}

/// str.splitlines.
pub fn split_lines(s: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut chars = s.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let ends_line = matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if !ends_line {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.next_if(|&(_, next)| next == '\n').is_some() {
            end += 1;
        }
        lines.push(&s[start..if keep_ends { end } else { at }]);
        start = end;
    }
    if start < s.len() {
        lines.push(&s[start..]);
    }
    lines
}

/// str.title: a letter after anything but a letter is a capital.
pub fn python_title(s: &str) -> String {
    title(s, |c| !c.is_alphabetic())
}

/// jinja2's title filter: words begin after space, hyphen and opening brackets only.
pub fn jinja_title(s: &str) -> String {
    title(s, |c| is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<'))
}

fn title(s: &str, starts_word: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(s.len());
    let mut at_start = true;
    for c in s.chars() {
        if at_start {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        at_start = starts_word(c);
    }
    out
}
