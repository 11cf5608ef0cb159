//! The arguments of filters and methods.

use minijinja::value::{Kwargs, Value};
use minijinja::Error;

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
