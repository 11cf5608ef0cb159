//! Grammars over a model's vocabulary: llguidance with the C ABI of millrace_grammar.h. A vocabulary
//! compiles grammars; a grammar makes matchers, one for each sequence. Every call that runs the
//! engine has a budget of memory, work and time.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{Matcher as Engine, ParserFactory};
use serde_json::Value;
use tokenizers_ffi::UnifiedTokenizer;

use crate::{budget, bytes, finite, tokens, Bytes, Failure, ERROR, LIMIT, OK};

/// The longest token that a grammar may use, in bytes: the engine's tree of tokens is not deeper.
const LONGEST_TOKEN: usize = 1000;

/// The most states of a grammar's lexer. A state takes one to two kilobytes.
const LEXER_STATES: usize = 50_000;

/// A text before a text to encode: no tokenizer merges it with what follows, and a space that a tokenizer
/// puts before a text comes before this.
const LEAD: &str = "\u{2}";

const JSON_SCHEMA: u32 = 0;
const REGEX: u32 = 1;

/// `millrace_grammar_limits` of millrace_grammar.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CallLimits {
    memory: usize,
    allocated: usize,
    milliseconds: u64,
}

/// The limits of work that needs none.
const FREE: CallLimits =
    CallLimits { memory: usize::MAX, allocated: usize::MAX, milliseconds: 3_600_000 };

impl CallLimits {
    fn budget(self) -> budget::Limits {
        let time = Some(Duration::from_millis(self.milliseconds));
        budget::Limits { held: self.memory, allocated: self.allocated, time }
    }
}

pub struct Vocabulary {
    factory: ParserFactory,
    env: Arc<Env>,
}

/// The tokens, and the tokenizer that spells forced texts as the model knows them.
struct Env {
    trie: TokTrie,
    tokenizer: RwLock<Option<Encoder>>, // None: there is none, or it is closed
}

struct Encoder(*const UnifiedTokenizer);

// SAFETY: encoding does not change a tokenizer, and Env's lock keeps it from being freed meanwhile.
unsafe impl Send for Encoder {}
unsafe impl Sync for Encoder {}

impl Encoder {
    fn encode(&self, text: &str) -> Option<Vec<TokenId>> {
        // SAFETY: the pointer is valid until millrace_grammar_vocabulary_close.
        match unsafe { &*self.0 } {
            UnifiedTokenizer::HuggingFace(t) => {
                t.encode_fast(text, false).ok().map(|e| e.get_ids().to_vec())
            }
            other => other.encode(text, false).ok(),
        }
    }
}

impl Env {
    /// The tokens that the tokenizer makes of a text inside a longer one. None where they do not spell it.
    fn encode(&self, text: &str) -> Option<Vec<TokenId>> {
        let tokenizer = self.tokenizer.read().ok()?;
        let tokenizer = tokenizer.as_ref()?;
        let plain = tokenizer.encode(text)?;
        if self.spells(&plain, text) {
            return Some(plain);
        }
        let ids = tokenizer.encode(&format!("{LEAD}{text}"))?;
        let lead = ids.iter().position(|&t| self.bytes(t).ends_with(LEAD.as_bytes()))?;
        let rest = &ids[lead + 1..];
        self.spells(rest, text).then(|| rest.to_vec())
    }

    /// The bytes of a token; of one that the vocabulary lacks, none.
    fn bytes(&self, token: TokenId) -> &[u8] {
        if (token as usize) < self.trie.vocab_size() {
            self.trie.token(token)
        } else {
            &[]
        }
    }

    /// Special tokens begin with a byte that no text has.
    fn spells(&self, ids: &[TokenId], text: &str) -> bool {
        let mut left = text.as_bytes();
        for &id in ids {
            let token = self.bytes(id);
            match left.strip_prefix(token) {
                Some(rest) if !token.is_empty() => left = rest,
                _ => return false,
            }
        }
        left.is_empty()
    }
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(text, |text| {
            self.encode(text).unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }
}

/// A compiled grammar. Its matchers share the states of its lexer.
pub struct Grammar {
    engine: Engine,
    held: Arc<AtomicIsize>,
}

/// The state of one sequence.
pub struct Matcher {
    engine: Engine,
    held: Arc<AtomicIsize>, // of the grammar
}

/// Makes a vocabulary. The bytes of token i are data[offsets[i]..offsets[i + 1]].
///
/// # Safety
/// `offsets` points to `count` + 1 numbers, `data` to the bytes that they name, `special` to `count`
/// bytes, `ends` to `end_count` ids; `tokenizer` is null, or came from `tokenizers_from_bytes` and is not freed before
/// `millrace_grammar_vocabulary_close`.
#[no_mangle]
pub unsafe extern "C" fn millrace_grammar_vocabulary(
    tokenizer: *const UnifiedTokenizer,
    data: *const u8,
    offsets: *const u32,
    special: *const u8,
    count: usize,
    ends: *const u32,
    end_count: usize,
    out_vocabulary: *mut *mut Vocabulary,
    out: *mut Bytes,
) -> i32 {
    let result = guarded(|| {
        let offsets = slice::from_raw_parts(offsets, count + 1);
        let data = bytes(data, offsets[count] as usize);
        let special = bytes(special, count);
        let ends = slice::from_raw_parts(ends, end_count);
        let words: Vec<Vec<u8>> = (0..count)
            .map(|i| word(&data[offsets[i] as usize..offsets[i + 1] as usize], special[i] != 0))
            .collect();
        let info = TokRxInfo::new(count as u32, ends[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(ends);
        let tokenizer = (!tokenizer.is_null()).then_some(Encoder(tokenizer));
        let env = Arc::new(Env { trie, tokenizer: RwLock::new(tokenizer) });
        let shared: TokEnv = env.clone();
        let mut factory = ParserFactory::new_simple(&shared).map_err(|e| failed(&e))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = LEXER_STATES;
        // The first use of a schema makes statics of the engine, which must not end early for a limit.
        parse(JSON_SCHEMA, b"{}").and_then(|g| factory.create_parser(g).map_err(|e| failed(&e)))?;
        Ok(Vocabulary { factory, env })
    });
    hand_over(result, out_vocabulary, out)
}

fn word(token: &[u8], special: bool) -> Vec<u8> {
    if token.len() > LONGEST_TOKEN || token.is_empty() {
        Vec::new()
    } else if special {
        [&[TokTrie::SPECIAL_TOKEN_MARKER], token].concat()
    } else {
        token.to_vec()
    }
}

/// Takes the tokenizer from a vocabulary. Its grammars spell forced texts with the longest tokens from then on.
///
/// # Safety
/// `vocabulary` came from `millrace_grammar_vocabulary` and is not freed.
#[no_mangle]
pub unsafe extern "C" fn millrace_grammar_vocabulary_close(vocabulary: *const Vocabulary) {
    let vocabulary = &*vocabulary;
    if let Ok(mut tokenizer) = vocabulary.env.tokenizer.write() {
        *tokenizer = None;
    }
}

/// # Safety
/// `vocabulary` came from `millrace_grammar_vocabulary` and is not used again.
#[no_mangle]
pub unsafe extern "C" fn millrace_grammar_vocabulary_free(vocabulary: *mut Vocabulary) {
    free(vocabulary);
}

/// # Safety
/// `vocabulary` is not freed, `source` points to `len` readable bytes, the other pointers are valid for writing.
#[no_mangle]
pub unsafe extern "C" fn millrace_grammar_compile(
    vocabulary: *const Vocabulary,
    kind: u32,
    source: *const u8,
    len: usize,
    limits: &CallLimits,
    out_grammar: *mut *mut Grammar,
    out: *mut Bytes,
) -> i32 {
    let source = bytes(source, len);
    let factory = &(*vocabulary).factory;
    let result = within(limits, None, || {
        let parser = factory.create_parser(parse(kind, source)?).map_err(|e| failed(&e))?;
        if let Some(part) =
            finite::endless(parser.parser.grammar(), factory).map_err(|e| failed(&e))?
        {
            return Err((ERROR, part));
        }
        let engine = Engine::new(Ok(parser));
        match engine.get_error() {
            Some(message) => Err((ERROR, first_lines(&message))),
            None => Ok(engine),
        }
    });
    let result = result.map(|(engine, held)| {
        let held = Arc::new(AtomicIsize::new(held));
        Grammar { engine, held }
    });
    hand_over(result, out_grammar, out)
}

fn parse(kind: u32, source: &[u8]) -> Result<TopLevelGrammar, Failure> {
    let text = std::str::from_utf8(source).map_err(|e| (ERROR, format!("not UTF-8: {e}")))?;
    Ok(match kind {
        JSON_SCHEMA => {
            let schema: Value = serde_json::from_str(text).map_err(|e| (ERROR, e.to_string()))?;
            TopLevelGrammar::from_json_schema(schema)
        }
        REGEX => TopLevelGrammar::from_regex(text),
        _ => TopLevelGrammar::from_lark(text.to_string()),
    })
}

/// The bytes that a grammar holds: those of its compilation, and of all calls of its matchers.
///
/// # Safety
/// `grammar` came from `millrace_grammar_compile` and is not freed.
#[no_mangle]
pub unsafe extern "C" fn millrace_grammar_size(grammar: *const Grammar) -> usize {
    (*grammar).held.load(Ordering::Relaxed).max(0) as usize
}

/// # Safety
/// `grammar` came from `millrace_grammar_compile` and is not used again.
#[no_mangle]
pub unsafe extern "C" fn millrace_grammar_free(grammar: *mut Grammar) {
    free(grammar);
}

/// # Safety
/// `grammar` is not freed; `out_matcher` and `out` are valid for writing.
#[no_mangle]
pub unsafe extern "C" fn millrace_grammar_matcher(
    grammar: *const Grammar,
    out_matcher: *mut *mut Matcher,
    out: *mut Bytes,
) -> i32 {
    let grammar = &*grammar;
    let result = within(&FREE, Some(&grammar.held), || Ok(grammar.engine.clone()));
    let result = result.map(|(engine, _)| Matcher { engine, held: grammar.held.clone() });
    hand_over(result, out_matcher, out)
}

/// # Safety
/// `matcher` came from `millrace_grammar_matcher` and is not used again.
#[no_mangle]
pub unsafe extern "C" fn millrace_grammar_matcher_free(matcher: *mut Matcher) {
    if matcher.is_null() {
        return;
    }
    let Matcher { engine, held } = *Box::from_raw(matcher);
    let _ = within(&FREE, Some(&held), || {
        drop(engine);
        Ok(())
    });
}

/// Writes one bit for each token: 1 where it may come next. At the end of the grammar these are the end tokens.
///
/// # Safety
/// `matcher` is not freed and in no other call; `bits` points to `words` words.
#[no_mangle]
pub unsafe extern "C" fn millrace_grammar_mask(
    matcher: *mut Matcher,
    limits: &CallLimits,
    bits: *mut u32,
    words: usize,
    out: *mut Bytes,
) -> i32 {
    let matcher = &mut *matcher;
    let bits = slice::from_raw_parts_mut(bits, words);
    let engine = &mut matcher.engine;
    let result = within(limits, Some(&matcher.held), || {
        let mask = engine.compute_mask_or_eos().map_err(|e| failed(&e))?;
        let mask = mask.as_slice();
        let n = mask.len().min(bits.len());
        bits[..n].copy_from_slice(&mask[..n]);
        bits[n..].fill(0);
        Ok(())
    });
    report(result.map(|_| ()), out)
}

/// Takes tokens up to the first that the grammar refuses. *out_taken is their number, and *out_ended 1 if nothing but an
/// end token may follow them.
///
/// # Safety
/// As `millrace_grammar_mask`; `tokens` points to `count` ids.
#[no_mangle]
pub unsafe extern "C" fn millrace_grammar_advance(
    matcher: *mut Matcher,
    limits: &CallLimits,
    tokens: *const u32,
    count: usize,
    out_taken: *mut usize,
    out_ended: *mut i32,
    out: *mut Bytes,
) -> i32 {
    let matcher = &mut *matcher;
    let tokens = if count == 0 { &[] } else { slice::from_raw_parts(tokens, count) };
    let engine = &mut matcher.engine;
    let result = within(limits, Some(&matcher.held), || {
        let taken = engine.try_consume_tokens(tokens).map_err(|e| failed(&e))?;
        Ok((taken, engine.is_stopped()))
    });
    let result = result.map(|((taken, ended), _)| {
        *out_taken = taken;
        *out_ended = ended.into();
    });
    report(result, out)
}

/// Writes the tokens that must follow, at most `most`, and their number.
///
/// # Safety
/// As `millrace_grammar_mask`; `tokens` points to `most` ids.
#[no_mangle]
pub unsafe extern "C" fn millrace_grammar_forced(
    matcher: *mut Matcher,
    limits: &CallLimits,
    tokens: *mut u32,
    most: usize,
    out_count: *mut usize,
    out: *mut Bytes,
) -> i32 {
    let matcher = &mut *matcher;
    let engine = &mut matcher.engine;
    let result = within(limits, Some(&matcher.held), || {
        Ok(if engine.is_stopped() { Vec::new() } else { engine.compute_ff_tokens() })
    });
    let result = result.map(|(forced, _)| {
        let n = forced.len().min(most);
        slice::from_raw_parts_mut(tokens, n).copy_from_slice(&forced[..n]);
        *out_count = n;
    });
    report(result, out)
}

/// Takes back the last tokens.
///
/// # Safety
/// As `millrace_grammar_mask`.
#[no_mangle]
pub unsafe extern "C" fn millrace_grammar_rollback(
    matcher: *mut Matcher,
    limits: &CallLimits,
    count: usize,
    out: *mut Bytes,
) -> i32 {
    let matcher = &mut *matcher;
    let engine = &mut matcher.engine;
    let result =
        within(limits, Some(&matcher.held), || engine.rollback(count).map_err(|e| failed(&e)));
    report(result.map(|_| ()), out)
}

/// Runs a piece of the engine's work within the limits, and adds what it keeps to `held`. Returns its
/// value and the bytes that it keeps.
fn within<T>(
    limits: &CallLimits,
    held: Option<&AtomicIsize>,
    work: impl FnOnce() -> Result<T, Failure>,
) -> Result<(T, isize), Failure> {
    guarded(|| {
        let (result, bytes) = budget::run_counted(limits.budget(), work)
            .map_err(|exceeded| (LIMIT, exceeded.to_string()))?;
        if let Some(held) = held {
            held.fetch_add(bytes, Ordering::Relaxed);
        }
        result.map(|value| (value, bytes))
    })
}

/// Unwinding into C is undefined behavior, so a panic becomes an error.
fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = tokens::panic_text(&*panic);
        Err((ERROR, format!("internal error in the grammar engine: {text}")))
    })
}

fn failed(error: &anyhow::Error) -> Failure {
    (ERROR, first_lines(&format!("{error:#}")))
}

/// The message without the state and the backtrace that the engine adds.
fn first_lines(message: &str) -> String {
    let end = ["\n<", "<non-verbose/>"].iter().filter_map(|mark| message.find(mark)).min();
    message[..end.unwrap_or(message.len())].trim_end().to_string()
}

unsafe fn hand_over<T>(result: Result<T, Failure>, to: *mut *mut T, out: *mut Bytes) -> i32 {
    report(result.map(|value| *to = Box::into_raw(Box::new(value))), out)
}

unsafe fn report(result: Result<(), Failure>, out: *mut Bytes) -> i32 {
    match result {
        Ok(()) => OK,
        Err((code, message)) => {
            *out = Bytes::new(message.into_bytes());
            code
        }
    }
}

unsafe fn free<T>(value: *mut T) {
    if !value.is_null() {
        let _ = guarded(|| {
            drop(Box::from_raw(value));
            Ok(())
        });
    }
}
