//! Macros that read `varargs` and `kwargs`: the arguments that they do not declare. minijinja has none. The source declares both as
//! parameters (see source.rs), and this function puts a value in the macro's place that fills them.

use std::sync::Arc;

use minijinja::value::{Kwargs, Object, ObjectRepr, Value};
use minijinja::{Error, ErrorKind, State};

use crate::arguments::split_kwargs;

/// The name of `new` in templates.
pub const FUNCTION: &str = "__variadic";

/// The named argument of a `call` block.
pub const CALLER: &str = "caller";

#[derive(Debug)]
struct Variadic {
    inner: Value,
    declared: Vec<String>, // parameters, and at the end caller if it reads that
    varargs: bool,         // it reads varargs
    kwargs: bool,
}

/// A macro that takes the named arguments of a list, and then varargs and kwargs.
pub fn new(inner: Value, declared: Vec<String>, varargs: bool, kwargs: bool) -> Value {
    Value::from_object(Variadic { inner, declared, varargs, kwargs })
}

impl Object for Variadic {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.inner.get_item(key).ok()
    }

    fn call(self: &Arc<Self>, state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let (plain, named) = split_kwargs(args)?;
        let places = self.declared.iter().filter(|name| *name != CALLER).count();
        if plain.len() > places && !self.varargs {
            let text = format!("a macro takes not more than {places} argument(s)");
            return Err(Error::new(ErrorKind::TooManyArguments, text));
        }
        let room = plain.len().min(places);
        // A named argument whose parameter has one by place is one that the macro does not declare, as in jinja2.
        let (own, more): (Vec<&str>, Vec<&str>) = named
            .args()
            .partition(|name| !self.kwargs || self.declared[room..].iter().any(|d| d == name));
        let mut all: Vec<(&str, Value)> = Vec::new();
        for name in own {
            all.push((name, named.get(name)?));
        }
        if self.varargs {
            all.push(("varargs", plain[room..].iter().cloned().collect()));
        }
        let mut rest = Vec::new();
        for name in more {
            rest.push((Value::from(name), named.get::<Value>(name)?));
        }
        if self.kwargs {
            all.push(("kwargs", rest.into_iter().collect()));
        }
        let mut given = plain[..room].to_vec();
        given.push(Kwargs::from_iter(all).into());
        self.inner.call(state, &given)
    }
}
