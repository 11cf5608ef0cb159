//! A template's source as minijinja takes it, where its syntax is read otherwise by jinja2:
//!
//! - `{% generation %}` marks what the model wrote, for training masks. When rendering it is only a scope.
//! - jinja2 does not trim the newline after `{% raw %}`.
//! - A loop knows its length over any value: the value of `for` passes a filter that makes a list of it.
//! - `a ~ b` joins str(a) and str(b); a list that the template made has another text in minijinja.
//! - A macro that reads `varargs` or `kwargs` declares them, and a function fills them (see variadic.rs).
//! - `%`, `/`, `//` and `**` are Python's, and a plus may precede a number.
//!
//! The source is scanned into tokens and gets insertions; lines stay where they are.

use crate::variadic::{CALLER, FUNCTION};

/// What binds an operator's operands: a token of a weaker level ends them.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Level {
    Open,  // between expressions: brackets, commas, keywords, comparisons
    Sum,   // + -
    Text,  // ~
    Times, // * / // %
    Power, // **
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Name,
    Value, // a number or a text
    Opening,
    Closing,
    Sign, // any other operator
}

#[derive(Clone, Copy)]
struct Token {
    kind: Kind,
    start: usize,
    end: usize,
    depth: usize, // of brackets around it
}

/// The words of expressions. A tag's own word, as of `call`, is its first token, and elsewhere the name of a variable.
const WORDS: [&str; 7] = ["and", "or", "not", "in", "is", "if", "else"];

/// The longest tag whose operators are rewritten, in tokens: the time for one grows with the square of its length.
const LONGEST_TAG: usize = 10_000;

const LONG_SIGNS: [&str; 6] = ["**", "//", "==", "!=", "<=", ">="];

/// What a macro reads of the arguments that it does not declare.
#[derive(Clone, Copy, Default)]
struct Undeclared {
    varargs: bool,
    kwargs: bool,
    caller: bool,
}

/// The macros of a source, in the order of their beginnings.
#[derive(Default)]
struct Macros {
    reads: Vec<Undeclared>,
    begun: usize,
    open: Vec<Option<String>>, // what follows the end of each macro around; None: nothing
}

impl Macros {
    /// Those of a source in which no macro was rewritten.
    fn of(source: &str) -> Macros {
        let mut macros = Macros::default();
        if !source.contains("varargs") && !source.contains("kwargs") {
            return macros;
        }
        let mut open: Vec<usize> = Vec::new();
        each_tag(source, |start| {
            let (tokens, end) = tag_tokens(source, start);
            let text = |i: usize| tokens.get(i).map_or("", |t: &Token| &source[t.start..t.end]);
            if is_raw(source, start, &tokens) {
                return raw_end(source, end);
            }
            match (source.as_bytes()[start + 1], text(0)) {
                (b'%', "macro") => {
                    open.push(macros.reads.len());
                    macros.reads.push(Undeclared::default());
                    return end;
                }
                (b'%', "endmacro") => {
                    if let (Some(inner), Some(&outer)) = (open.pop(), open.last()) {
                        let inner = macros.reads[inner];
                        let outer = &mut macros.reads[outer];
                        outer.varargs |= inner.varargs;
                        outer.kwargs |= inner.kwargs;
                        outer.caller |= inner.caller;
                    }
                    return end;
                }
                _ => {}
            }
            let Some(reads) = open.last().map(|&i| &mut macros.reads[i]) else {
                return end;
            };
            for (i, token) in tokens.iter().enumerate() {
                let named = text(i + 1) == "=" && token.depth > 0;
                if token.kind != Kind::Name || named || i > 0 && matches!(text(i - 1), "." | "|") {
                    continue;
                }
                match text(i) {
                    "varargs" => reads.varargs = true,
                    "kwargs" => reads.kwargs = true,
                    CALLER => reads.caller = true,
                    _ => {}
                }
            }
            end
        });
        macros
    }

    /// Declares what a macro reads, at its beginning.
    fn begin(&mut self, source: &str, tokens: &[Token], edits: &mut Edits) {
        let reads = self.reads.get(self.begun).copied().unwrap_or_default();
        self.begun += 1;
        let text = |i: usize| tokens.get(i).map_or("", |t| &source[t.start..t.end]);
        let close = tokens.iter().rposition(|t| t.kind == Kind::Closing && t.depth == 0);
        let (Some(close), true) = (close, reads.varargs || reads.kwargs) else {
            self.open.push(None);
            return;
        };
        let mut names: Vec<&str> = (3..close)
            .filter(|&i| tokens[i].depth == 1 && tokens[i].kind == Kind::Name)
            .filter(|&i| matches!(text(i - 1), "(" | ","))
            .map(text)
            .collect();
        if names.iter().any(|name| matches!(*name, "varargs" | "kwargs")) {
            self.open.push(None);
            return;
        }
        let first = matches!(text(close - 1), "(" | ",");
        let more = if first { "varargs=[], kwargs={}" } else { ", varargs=[], kwargs={}" };
        edits.replace(tokens[close].start, tokens[close].start, more);
        if reads.caller {
            names.push(CALLER);
        }
        let name = text(1);
        self.open.push(Some(format!(
            "{{% set {name} = {FUNCTION}({name}, {names:?}, {}, {})",
            reads.varargs, reads.kwargs
        )));
    }
}

/// Calls a function with the start of each tag and expression, which returns its end.
fn each_tag(source: &str, mut tag: impl FnMut(usize) -> usize) {
    let mut at = 0;
    while let Some(found) = source[at..].find('{') {
        let start = at + found;
        at = match source.get(start..start + 2) {
            Some("{#") => {
                source[start + 2..].find("#}").map_or(source.len(), |end| start + end + 4)
            }
            Some("{{" | "{%") => tag(start),
            _ => start + 1,
        };
    }
}

/// The tokens of a tag or an expression, and its end.
fn tag_tokens(source: &str, start: usize) -> (Vec<Token>, usize) {
    tokenize(source, start + 2, if source.as_bytes()[start + 1] == b'%' { "%}" } else { "}}" })
}

fn is_raw(source: &str, start: usize, tokens: &[Token]) -> bool {
    source.as_bytes()[start + 1] == b'%'
        && matches!(tokens, [only] if &source[only.start..only.end] == "raw")
}

/// Where a raw block ends whose first tag ends at `from`.
fn raw_end(source: &str, from: usize) -> usize {
    let mut at = from;
    while let Some(found) = source[at..].find("{%") {
        at += found + 2;
        if let Some(len) = endraw_len(&source[at..]) {
            return at + len;
        }
    }
    source.len()
}

/// Rewrites a template's source for minijinja.
pub fn rewrite(source: &str) -> String {
    let mut macros = Macros::of(source);
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while let Some(found) = source[at..].find('{') {
        let start = at + found;
        let (open, rest) = match source.get(start..start + 2) {
            Some(open @ ("{{" | "{%" | "{#")) => (open, start + 2),
            _ => {
                out.push_str(&source[at..=start]);
                at = start + 1;
                continue;
            }
        };
        out.push_str(&source[at..start]);
        at = match open {
            "{#" => source[rest..].find("#}").map_or(source.len(), |end| rest + end + 2),
            _ => tag(source, start, &mut macros, &mut out),
        };
        if open == "{#" {
            out.push_str(&source[start..at]);
        }
    }
    out.push_str(&source[at..]);
    out
}

/// Writes a tag or an expression that begins at `start`, and returns its end.
fn tag(source: &str, start: usize, macros: &mut Macros, out: &mut String) -> usize {
    let is_tag = source.as_bytes()[start + 1] == b'%';
    let (tokens, end) = tag_tokens(source, start);
    let name = match tokens.first() {
        Some(t) if is_tag && t.kind == Kind::Name => &source[t.start..t.end],
        _ => "",
    };
    if let ("raw", [only]) = (name, &tokens[..]) {
        return raw(source, start, only, end, out);
    }
    let mut edits = Edits::default();
    match (name, tokens.first()) {
        ("generation" | "endgeneration", Some(t)) => {
            edits.replace(t.start, t.end, if name == "generation" { "with" } else { "endwith" });
        }
        ("for", _) => iterate(source, &tokens, &mut edits),
        ("macro", _) => macros.begin(source, &tokens, &mut edits),
        ("endmacro", _) => {
            if let (Some(Some(after)), Some(last)) = (macros.open.pop(), tokens.last()) {
                out.push_str(&source[start..last.end]);
                out.push_str(" %}");
                out.push_str(&after);
                out.push(' ');
                out.push_str(source[last.end..end].trim_start());
                return end;
            }
        }
        _ => {}
    }
    operators(source, &tokens[usize::from(!name.is_empty())..], &mut edits);
    edits.apply(source, start, end, out);
    end
}

/// Writes a raw block whole. In minijinja a plus keeps the newline after its beginning.
fn raw(source: &str, start: usize, name: &Token, end: usize, out: &mut String) -> usize {
    out.push_str(&source[start..name.end]);
    let close = &source[name.end..end];
    if !close.contains(['-', '+']) {
        out.push_str(" +");
    }
    out.push_str(close.trim_start());
    let last = raw_end(source, end);
    out.push_str(&source[end..last]);
    last
}

/// The length of what follows "{%" if that ends a raw block.
fn endraw_len(rest: &str) -> Option<usize> {
    let after = rest
        .strip_prefix(['-', '+'])
        .unwrap_or(rest)
        .trim_start()
        .strip_prefix("endraw")?
        .trim_start();
    let after = after.strip_prefix(['-', '+']).unwrap_or(after).strip_prefix("%}")?;
    Some(rest.len() - after.len())
}

/// The tokens up to `close`, and where it ends. Without one, the source's end.
fn tokenize(source: &str, from: usize, close: &str) -> (Vec<Token>, usize) {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let mut depth: usize = 0;
    let mut at = from;
    if matches!(bytes.get(at), Some(b'-' | b'+')) {
        at += 1; // whitespace control
    }
    while at < bytes.len() {
        let rest = &source[at..];
        let closes = rest.starts_with(close)
            || matches!(bytes[at], b'-' | b'+') && rest[1..].starts_with(close);
        if depth == 0 && closes {
            return (tokens, at + rest.find(close).unwrap_or(0) + close.len());
        }
        let c = rest.chars().next().unwrap_or(' ');
        let (kind, len) = match c {
            c if c.is_whitespace() => {
                at += c.len_utf8();
                continue;
            }
            '\'' | '"' => (Kind::Value, text_len(rest)),
            '0'..='9' => (Kind::Value, number_len(rest)),
            c if c == '_' || c.is_alphabetic() => (
                Kind::Name,
                rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len()),
            ),
            '(' | '[' | '{' => (Kind::Opening, 1),
            ')' | ']' | '}' => (Kind::Closing, 1),
            _ if LONG_SIGNS.iter().any(|sign| rest.starts_with(sign)) => (Kind::Sign, 2),
            c => (Kind::Sign, c.len_utf8()),
        };
        if kind == Kind::Closing {
            depth = depth.saturating_sub(1);
        }
        tokens.push(Token { kind, start: at, end: at + len, depth });
        if kind == Kind::Opening {
            depth += 1;
        }
        at += len;
    }
    (tokens, source.len())
}

fn text_len(rest: &str) -> usize {
    let quote = rest.as_bytes()[0];
    let mut escaped = false;
    for (i, b) in rest.bytes().enumerate().skip(1) {
        match b {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b if b == quote => return i + 1,
            _ => {}
        }
    }
    rest.len()
}

fn number_len(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 0;
    while let Some(&b) = bytes.get(at) {
        let next_digit = bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
        let exponent = at > 0 && matches!(bytes[at - 1], b'e' | b'E') && !rest.starts_with("0x");
        match b {
            b if b.is_ascii_alphanumeric() || b == b'_' => {}
            b'.' if next_digit => {}
            b'+' | b'-' if exponent && next_digit => {}
            _ => break,
        }
        at += 1;
    }
    at
}

/// A change of the source: text around a part of it, or in its place.
struct Edit {
    start: usize,
    end: usize,
    rank: u8, // of edits around the same part, the lowest is outside
    open: &'static str,
    close: Option<&'static str>, // None: open replaces the part
}

#[derive(Default)]
struct Edits(Vec<Edit>);

impl Edits {
    fn wrap(
        &mut self,
        start: usize,
        end: usize,
        rank: u8,
        open: &'static str,
        close: &'static str,
    ) {
        if !self.0.iter().any(|e| (e.start, e.end, e.rank) == (start, end, rank)) {
            self.0.push(Edit { start, end, rank, open, close: Some(close) });
        }
    }

    fn replace(&mut self, start: usize, end: usize, text: &'static str) {
        self.0.push(Edit { start, end, rank: 0, open: text, close: None });
    }

    fn apply(self, source: &str, start: usize, end: usize, out: &mut String) {
        // Where, closing before opening, inner before outer when closing, and the end of what is replaced.
        let mut places: Vec<(usize, bool, isize, usize, &str)> = Vec::new();
        for e in &self.0 {
            let depth = ((e.end - e.start) as isize) * 4 - e.rank as isize; // wider and lower ranks are outside
            let to = if e.close.is_some() { e.start } else { e.end };
            places.push((e.start, true, -depth, to, e.open));
            places.extend(e.close.map(|close| (e.end, false, depth, e.end, close)));
        }
        places.sort_by_key(|&(at, opens, depth, ..)| (at, opens, depth));
        let mut at = start;
        for (from, _, _, to, text) in places {
            out.push_str(&source[at..from]);
            out.push_str(text);
            at = to;
        }
        out.push_str(&source[at..end]);
    }
}

/// Wraps the value that a `for` iterates over.
fn iterate(source: &str, tokens: &[Token], edits: &mut Edits) {
    let is_word = |t: &Token, word: &str| t.depth == 0 && &source[t.start..t.end] == word;
    let Some(begin) = tokens.iter().position(|t| is_word(t, "in")) else {
        return;
    };
    let rest = &tokens[begin + 1..];
    let len =
        rest.iter().position(|t| is_word(t, "if") || is_word(t, "recursive")).unwrap_or(rest.len());
    if let Some((first, last)) = rest[..len].first().zip(rest[..len].last()) {
        edits.wrap(first.start, last.end, 0, "(", ")|__each");
    }
}

/// Wraps the operands of the operators that jinja2 computes otherwise.
fn operators(source: &str, tokens: &[Token], edits: &mut Edits) {
    if tokens.len() > LONGEST_TAG {
        return;
    }
    for (i, token) in tokens.iter().enumerate() {
        if token.kind != Kind::Sign {
            continue;
        }
        let sign = &source[token.start..token.end];
        let prefix = is_prefix(source, tokens, i);
        match sign {
            "+" if prefix => edits.replace(token.start, token.end, " "),
            "~" => {
                let operands =
                    [left(source, tokens, i, Level::Times), right(source, tokens, i, Level::Times)];
                let is_text = |i: usize| source[tokens[i].start..].starts_with(['"', '\'']);
                for (first, last) in operands.into_iter().flatten() {
                    if first == last && is_text(first) {
                        continue;
                    }
                    edits.wrap(tokens[first].start, tokens[last].end, 1, "(", ")|string");
                }
            }
            "%" | "/" | "//" | "**" if !prefix => {
                // jinja2's operators of a level bind from the left, ** too.
                let level = if sign == "**" { Level::Power } else { Level::Times };
                let tighter = if sign == "**" { None } else { Some(Level::Power) };
                let operands = left(source, tokens, i, level).zip(match tighter {
                    Some(level) => right(source, tokens, i, level),
                    None => right_unary(source, tokens, i),
                });
                if let Some(((first, _), (_, last))) = operands {
                    edits.wrap(tokens[first].start, tokens[last].end, 2, function(sign), ")");
                    edits.replace(token.start, token.end, ",");
                }
            }
            _ => {}
        }
    }
}

fn function(sign: &str) -> &'static str {
    match sign {
        "%" => "__rem(",
        "/" => "__div(",
        "//" => "__floordiv(",
        _ => "__pow(",
    }
}

/// Whether an operator at `i` has no operand before it.
fn is_prefix(source: &str, tokens: &[Token], i: usize) -> bool {
    match i.checked_sub(1).map(|i| &tokens[i]) {
        None => true,
        Some(t) => match t.kind {
            Kind::Value | Kind::Closing => false,
            Kind::Name => is_word(source, tokens, i - 1),
            Kind::Opening | Kind::Sign => true,
        },
    }
}

/// Whether the name at `i` is a word of the language: not an attribute, a filter or an argument of that name.
fn is_word(source: &str, tokens: &[Token], i: usize) -> bool {
    let before = i.checked_sub(1).map_or("", |i| &source[tokens[i].start..tokens[i].end]);
    WORDS.contains(&&source[tokens[i].start..tokens[i].end]) && !matches!(before, "." | "|")
}

/// What a token ends: nothing where it belongs to an operand of any level.
fn level(source: &str, tokens: &[Token], i: usize) -> Option<Level> {
    let text = &source[tokens[i].start..tokens[i].end];
    match tokens[i].kind {
        Kind::Name
            if text == "is"
                || text == "not"
                    && i > 0
                    && &source[tokens[i - 1].start..tokens[i - 1].end] == "is" =>
        {
            None // jinja2's tests belong to their operand
        }
        Kind::Name => is_word(source, tokens, i).then_some(Level::Open),
        Kind::Value => None,
        Kind::Opening | Kind::Closing => None,
        Kind::Sign => match text {
            "." | "|" => None,
            "+" | "-" if is_prefix(source, tokens, i) => None,
            "+" | "-" => Some(Level::Sum),
            "~" => Some(Level::Text),
            "*" | "/" | "//" | "%" => Some(Level::Times),
            "**" => Some(Level::Power),
            _ => Some(Level::Open),
        },
    }
}

/// The operand before `i`, of operators from a level on.
fn left(source: &str, tokens: &[Token], i: usize, least: Level) -> Option<(usize, usize)> {
    let depth = tokens[i].depth;
    let mut first = i;
    while first > 0 {
        let before = &tokens[first - 1];
        if before.depth < depth || before.depth == depth && ends(source, tokens, first - 1, least) {
            break;
        }
        first -= 1;
    }
    (first < i).then(|| (first, i - 1))
}

/// The operand after `i`, of operators from a level on.
fn right(source: &str, tokens: &[Token], i: usize, least: Level) -> Option<(usize, usize)> {
    let depth = tokens[i].depth;
    let mut end = i + 1;
    while end < tokens.len() {
        if tokens[end].depth < depth
            || tokens[end].depth == depth && ends(source, tokens, end, least)
        {
            break;
        }
        end += 1;
    }
    (end > i + 1).then(|| (i + 1, end - 1))
}

/// The operand after `**`, which has no operator in it but a sign.
fn right_unary(source: &str, tokens: &[Token], i: usize) -> Option<(usize, usize)> {
    let depth = tokens[i].depth;
    let len = tokens[i + 1..]
        .iter()
        .enumerate()
        .position(|(n, t)| {
            t.depth < depth || t.depth == depth && level(source, tokens, i + 1 + n).is_some()
        })
        .unwrap_or(tokens.len() - i - 1);
    (len > 0).then(|| (i + 1, i + len))
}

fn ends(source: &str, tokens: &[Token], i: usize, least: Level) -> bool {
    level(source, tokens, i).is_some_and(|level| level < least)
}
