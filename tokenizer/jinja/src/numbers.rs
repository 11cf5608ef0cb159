//! Python's arithmetic, where minijinja's differs: `%`, `/`, `//` and `**`.

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{filters, Environment, Error, ErrorKind, State};

use crate::text;

pub fn add(env: &mut Environment) {
    env.add_function("__rem", remainder);
    env.add_function("__div", divide);
    env.add_function("__floordiv", floor_divide);
    env.add_function("__pow", power);
}

enum Pair {
    Integers(i128, i128),
    Floats(f64, f64),
}

/// Two numbers. True and false are 1 and 0.
fn pair(sign: &str, a: &Value, b: &Value) -> Result<Pair, Error> {
    let integer = |v: &Value| match v.kind() {
        ValueKind::Bool => Some(i128::from(v.is_true())),
        _ if v.is_integer() => i128::try_from(v.clone()).ok(),
        _ => None,
    };
    if let (Some(a), Some(b)) = (integer(a), integer(b)) {
        return Ok(Pair::Integers(a, b));
    }
    let float = |v: &Value| match v.kind() {
        ValueKind::Bool => Some(f64::from(v.is_true())),
        ValueKind::Number => f64::try_from(v.clone()).ok(),
        _ => None,
    };
    match (float(a), float(b)) {
        (Some(a), Some(b)) => Ok(Pair::Floats(a, b)),
        _ => {
            let (a, b) = (a.kind(), b.kind());
            Err(invalid(&format!("unsupported operand types for {sign}: {a} and {b}")))
        }
    }
}

/// A remainder with the divisor's sign, or a text with printf's directives.
fn remainder(state: &State, a: &Value, b: &Value) -> Result<Value, Error> {
    if a.as_str().is_some() {
        return print(state, a.as_str().unwrap_or_default(), b);
    }
    match pair("%", a, b)? {
        Pair::Integers(_, 0) | Pair::Floats(_, 0.0) => Err(invalid("modulo by zero")),
        Pair::Integers(a, b) => Ok(Value::from(floor_rem(a, b))),
        Pair::Floats(a, b) => {
            let r = a % b;
            Ok(Value::from(if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }))
        }
    }
}

/// printf's directives, with Python's str() and repr() for those of text.
fn print(state: &State, format: &str, b: &Value) -> Result<Value, Error> {
    let mut values: Vec<Value> = match b.kind() {
        ValueKind::Seq | ValueKind::Iterable => b.try_iter()?.collect(),
        _ => vec![b.clone()],
    };
    let mut plain = String::with_capacity(format.len());
    let (mut rest, mut place) = (format, 0);
    while let Some(at) = rest.find('%') {
        let directive = &rest[at + 1..];
        let len = directive.find(|c: char| !matches!(c, '0'..='9' | '#' | '-' | '+' | ' ' | '.'));
        let len = len.unwrap_or(directive.len());
        plain.push_str(&rest[..at + 1 + len]);
        rest = &directive[len..];
        let Some(kind) = rest.chars().next() else {
            break;
        };
        rest = &rest[kind.len_utf8()..];
        match (kind, values.get_mut(place)) {
            ('s', Some(v)) => *v = Value::from(text::to_str(v)),
            ('r', Some(v)) => *v = Value::from(text::to_repr(v)),
            _ => {}
        }
        place += usize::from(kind != '%');
        plain.push(if kind == 'r' { 's' } else { kind });
    }
    plain.push_str(rest);
    filters::format(state, &Value::from(plain), Rest(values))
}

fn floor_rem(a: i128, b: i128) -> i128 {
    let r = a.wrapping_rem(b);
    if r != 0 && (r < 0) != (b < 0) {
        r + b
    } else {
        r
    }
}

fn divide(a: &Value, b: &Value) -> Result<Value, Error> {
    match pair("/", a, b)? {
        Pair::Integers(_, 0) | Pair::Floats(_, 0.0) => Err(invalid("division by zero")),
        Pair::Integers(a, b) => Ok(Value::from(a as f64 / b as f64)),
        Pair::Floats(a, b) => Ok(Value::from(a / b)),
    }
}

fn floor_divide(a: &Value, b: &Value) -> Result<Value, Error> {
    match pair("//", a, b)? {
        Pair::Integers(_, 0) | Pair::Floats(_, 0.0) => Err(invalid("division by zero")),
        Pair::Integers(a, b) => a
            .checked_sub(floor_rem(a, b))
            .and_then(|whole| whole.checked_div(b))
            .map(Value::from)
            .ok_or_else(|| invalid("// overflows")),
        Pair::Floats(a, b) => Ok(Value::from((a / b).floor())),
    }
}

fn power(a: &Value, b: &Value) -> Result<Value, Error> {
    match pair("**", a, b)? {
        Pair::Integers(0, ..0) => Err(invalid("zero cannot be raised to a negative power")),
        Pair::Integers(a, b @ ..0) => Ok(Value::from((a as f64).powf(b as f64))),
        Pair::Integers(a, b) => u32::try_from(b)
            .ok()
            .and_then(|b| a.checked_pow(b))
            .map(Value::from)
            .ok_or_else(|| invalid("** overflows")),
        Pair::Floats(a, b) => Ok(Value::from(a.powf(b))),
    }
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_string())
}
