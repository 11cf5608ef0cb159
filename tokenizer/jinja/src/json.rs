//! JSON in as the template's variables, and out as Python's json.dumps writes it.

use std::fmt::{self, Write};
use std::sync::Arc;

use indexmap::IndexMap;
use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::arguments::argument;
use crate::text;

const MAX_DEPTH: usize = 200;

pub fn parse(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    Ok(to_value(serde_json::from_slice(bytes)?))
}

fn to_value(json: serde_json::Value) -> Value {
    match json {
        serde_json::Value::Array(items) => {
            Value::from_object(List(items.into_iter().map(to_value).collect()))
        }
        serde_json::Value::Object(members) => {
            Value::from_object(Dict(members.into_iter().map(|(k, v)| (k, to_value(v))).collect()))
        }
        scalar => Value::from_serialize(scalar),
    }
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
