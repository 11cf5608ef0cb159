//! JSON in as the template's variables, and out as Python's json.dumps writes it.

use std::fmt::{self, Write};
use std::sync::Arc;

use indexmap::IndexMap;
use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::arguments::argument;
use crate::text;

const MAX_DEPTH: usize = 200;

pub fn parse(bytes: &[u8]) -> Result<Value, String> {
    let mut parser = Parser { bytes, at: 0 };
    let value = parser.value(0)?;
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.wrong("the end")),
    }
}

/// Reads JSON with numbers as Python reads them: integers of any length, 1e400 as infinity. serde_json has that as a
/// feature that would change what the other crates of this library read.
struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn wrong(&self, expected: &str) -> String {
        match self.bytes.get(self.at) {
            Some(&b) => format!("found {:?} at byte {}, expected {expected}", b as char, self.at),
            None => format!("found the end, expected {expected}"),
        }
    }

    /// The next byte that is no whitespace.
    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.bytes.get(self.at) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > MAX_DEPTH {
            return Err("values nested too deeply".into());
        }
        match self.peek() {
            Some(b'{') => {
                let mut members = IndexMap::new();
                self.items(b'}', |parser| {
                    let key = parser.string()?;
                    if parser.peek() != Some(b':') {
                        return Err(parser.wrong("':'"));
                    }
                    parser.at += 1;
                    members.insert(key, parser.value(depth + 1)?);
                    Ok(())
                })?;
                Ok(Value::from_object(Dict(members)))
            }
            Some(b'[') => {
                let mut items = Vec::new();
                self.items(b']', |parser| {
                    items.push(parser.value(depth + 1)?);
                    Ok(())
                })?;
                Ok(Value::from_object(List(items)))
            }
            Some(b'"') => self.string().map(Value::from),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.word(),
        }
    }

    fn items(
        &mut self,
        close: u8,
        mut item: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.at += 1; // the bracket
        if self.peek() == Some(close) {
            self.at += 1;
            return Ok(());
        }
        loop {
            item(self)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b) if b == close => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.wrong("',' or a closing bracket")),
            }
        }
    }

    fn string(&mut self) -> Result<String, String> {
        if self.peek() != Some(b'"') {
            return Err(self.wrong("a string"));
        }
        let start = self.at;
        let mut escaped = false;
        for (i, &b) in self.bytes[start + 1..].iter().enumerate() {
            match b {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    self.at = start + i + 2;
                    let text = &self.bytes[start..self.at];
                    return serde_json::from_slice(text).map_err(|e| e.to_string());
                }
                _ => {}
            }
        }
        self.at = self.bytes.len();
        Err(self.wrong("'\"'"))
    }

    fn number(&mut self) -> Result<Value, String> {
        let rest = &self.bytes[self.at..];
        let len = rest
            .iter()
            .position(|b| !matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
            .unwrap_or(rest.len());
        let text = std::str::from_utf8(&rest[..len]).unwrap_or_default();
        let value = if text.contains(['.', 'e', 'E']) {
            text.parse::<f64>().map(Value::from).ok()
        } else if let Ok(n) = text.parse::<i64>() {
            Some(Value::from(n))
        } else if let Ok(n) = text.parse::<i128>() {
            Some(Value::from(n))
        } else {
            let digits = text.strip_prefix('-').unwrap_or(text);
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| Value::from_object(Integer(text.into())))
        };
        let value = value.ok_or_else(|| self.wrong("a number"))?;
        self.at += len;
        Ok(value)
    }

    fn word(&mut self) -> Result<Value, String> {
        let words = [("null", Value::from(())), ("true", true.into()), ("false", false.into())];
        for (word, value) in words {
            if self.bytes[self.at..].starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.wrong("a value"))
    }
}

/// An integer beyond 128 bits. Templates can print it, not compute with it.
#[derive(Debug)]
struct Integer(String);

impl Object for Integer {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a value is an integer that minijinja has no type for.
pub fn is_integer(value: &Value) -> bool {
    value.downcast_object_ref::<Integer>().is_some()
}

/// A list that prints itself as Python's does, wherever it becomes text.
#[derive(Debug)]
struct List(Vec<Value>);

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write_str(f, &Value::from_dyn_object(self.clone()))
    }
}

/// A dict, in the order of its keys, that prints itself as Python's does.
#[derive(Debug)]
struct Dict(IndexMap<String, Value>);

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.keys().map(|k| Value::from(k.as_str())).collect())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write_str(f, &Value::from_dyn_object(self.clone()))
    }
}

/// The arguments of `tojson` in transformers:
/// (ensure_ascii=False, indent=None, separators=None, sort_keys=False).
pub struct Style {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl Style {
    pub fn from_args(args: &[Value], kwargs: &Kwargs) -> Result<Style, Error> {
        let truthy = |v: Option<Value>| v.is_some_and(|v| v.is_true());
        let ensure_ascii = truthy(argument(args, 0, kwargs, "ensure_ascii")?);
        let indent = argument(args, 1, kwargs, "indent")?.filter(|v| !v.is_none());
        let separators = argument(args, 2, kwargs, "separators")?.filter(|v| !v.is_none());
        let sort_keys = truthy(argument(args, 3, kwargs, "sort_keys")?);
        let indent = indent.map(|v| match v.as_str() {
            Some(s) => s.to_string(),
            None => " ".repeat(v.as_usize().unwrap_or(0).min(64)),
        });
        let (item_separator, key_separator) = match separators {
            Some(pair) => (
                text::to_str(&pair.get_item_by_index(0)?),
                text::to_str(&pair.get_item_by_index(1)?),
            ),
            None if indent.is_some() => (",".into(), ": ".into()),
            None => (", ".into(), ": ".into()),
        };
        Ok(Style { ensure_ascii, indent, item_separator, key_separator, sort_keys })
    }
}

pub fn dump(value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    write_value(&mut out, value, style, 0)?;
    Ok(out)
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(unserializable("value nested too deeply"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(out, value)?,
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), style),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_nested(out, ('[', ']'), items.len(), style, depth, |out, i| {
                write_value(out, &items[i], style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            write_nested(out, ('{', '}'), keys.len(), style, depth, |out, i| {
                write_key(out, &keys[i], style)?;
                out.push_str(&style.key_separator);
                write_value(out, &value.get_item(&keys[i])?, style, depth + 1)
            })?;
        }
        _ if is_integer(value) => out.push_str(&text::to_str(value)),
        kind => {
            return Err(unserializable(&format!("Object of type {kind} is not JSON serializable")))
        }
    }
    Ok(())
}

fn write_nested(
    out: &mut String,
    brackets: (char, char),
    len: usize,
    style: &Style,
    depth: usize,
    mut write_item: impl FnMut(&mut String, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(brackets.0);
    for i in 0..len {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, style, depth + 1);
        write_item(out, i)?;
    }
    if len > 0 {
        new_line(out, style, depth);
    }
    out.push(brackets.1);
    Ok(())
}

fn new_line(out: &mut String, style: &Style, depth: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        for _ in 0..depth {
            out.push_str(indent);
        }
    }
}

fn write_key(out: &mut String, key: &Value, style: &Style) -> Result<(), Error> {
    match key.as_str() {
        Some(s) => write_string(out, s, style),
        None => {
            out.push('"');
            write_value(out, key, style, 0)?;
            out.push('"');
        }
    }
    Ok(())
}

fn write_number(out: &mut String, value: &Value) -> Result<(), Error> {
    let start = out.len();
    text::write_number(out, value).map_err(Error::from)?;
    let name = match &out[start..] {
        "nan" => "NaN",
        "inf" => "Infinity",
        "-inf" => "-Infinity",
        _ => return Ok(()),
    };
    out.truncate(start);
    out.push_str(name);
    Ok(())
}

fn write_string(out: &mut String, s: &str, style: &Style) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (style.ensure_ascii && !(' '..='~').contains(&c)) => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn unserializable(message: &str) -> Error {
    Error::new(ErrorKind::BadSerialization, message.to_string())
}
