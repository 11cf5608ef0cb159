//! The C ABI that the Go package github.com/daulet/tokenizers links, around the same functions of
//! its Rust crate. There a failed encode is an empty result, a failed decode a null pointer, and a
//! panic elsewhere aborts the process. Here each of them keeps its message for
//! `millrace_text_error`, and truncation and padding of the file are off: ids are the text's, as with
//! transformers, whose tokenizers truncate and pad on request only.
//!
//! scripts/build/tokenizers.sh takes the C linkage from the crate's functions, so that these can have
//! their names.

#![allow(clippy::missing_safety_doc)] // the contracts are those of tokenizers.h

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_char, c_void, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::slice;

use tokenizers::normalizer::Range;
use tokenizers::{
    Encoding, Model, NormalizedString, Normalizer, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, Token, Tokenizer,
};
use tokenizers_ffi as ffi;
use tokenizers_ffi::UnifiedTokenizer;

use crate::Bytes;

thread_local! {
    static FAILED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Takes the message of this thread's last failed call. Returns 0 where none failed.
///
/// # Safety
/// `out` is valid for writing.
#[no_mangle]
pub unsafe extern "C" fn millrace_text_error(out: *mut Bytes) -> i32 {
    match FAILED.take() {
        Some(message) => {
            *out = Bytes::new(message.into_bytes());
            1
        }
        None => 0,
    }
}

/// Runs `f`. A panic is an error.
fn guarded<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        Err(format!("internal error in the tokenizers library: {}", panic_text(&*panic)))
    })
}

/// Keeps an error for `millrace_text_error`, which the caller reads after each empty result.
fn keep_error<T>(result: Result<T, String>) -> Option<T> {
    result.map_err(|message| FAILED.set(Some(message))).ok()
}

pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "panic without a message",
    }
}

/// Runs one of the crate's constructors, which leave their own message in `error`.
unsafe fn constructed(error: *mut *mut c_char, make: impl FnOnce() -> *mut c_void) -> *mut c_void {
    guarded(|| Ok(make())).unwrap_or_else(|message| {
        if !error.is_null() {
            let message = message.replace('\0', "\\0");
            *error = CString::new(message).map_or(ptr::null_mut(), CString::into_raw);
        }
        ptr::null_mut()
    })
}

/// Turns off what the file says of truncation and padding.
unsafe fn whole(made: *mut c_void) -> *mut c_void {
    if let Some(UnifiedTokenizer::HuggingFace(tokenizer)) = made.cast::<UnifiedTokenizer>().as_mut()
    {
        tokenizer.with_padding(None);
        let _ = tokenizer.with_truncation(None); // an error is of parameters only
    }
    made
}

#[no_mangle]
pub unsafe extern "C" fn tokenizers_from_bytes(
    bytes: *const u8,
    len: u32,
    options: &ffi::tokenizers_options,
    error: *mut *mut c_char,
) -> *mut c_void {
    whole(constructed(error, || ffi::tokenizers_from_bytes(bytes, len, options, error)))
}

#[no_mangle]
pub unsafe extern "C" fn tokenizers_from_bytes_with_truncation(
    bytes: *const u8,
    len: u32,
    max_len: u32,
    direction: u8,
    error: *mut *mut c_char,
) -> *mut c_void {
    let max_len = max_len as usize;
    constructed(error, || {
        ffi::tokenizers_from_bytes_with_truncation(bytes, len, max_len, direction, error)
    })
}

#[no_mangle]
pub unsafe extern "C" fn tokenizers_from_file(
    path: *const c_char,
    error: *mut *mut c_char,
) -> *mut c_void {
    whole(constructed(error, || ffi::tokenizers_from_file(path, error)))
}

#[no_mangle]
pub unsafe extern "C" fn tokenizers_from_tiktoken(
    model: *const c_char,
    config: *const c_char,
    pattern: *const c_char,
    error: *mut *mut c_char,
) -> *mut c_void {
    constructed(error, || ffi::tokenizers_from_tiktoken(model, config, pattern, error))
}

/// `tokenizers_encode_options` of tokenizers.h.
#[repr(C)]
pub struct EncodeOptions {
    add_special_tokens: bool,
    type_ids: bool,
    tokens: bool,
    special_tokens_mask: bool,
    attention_mask: bool,
    offsets: bool,
}

impl EncodeOptions {
    fn only_ids(&self) -> bool {
        let more = self.type_ids || self.tokens || self.special_tokens_mask;
        !(more || self.attention_mask || self.offsets)
    }
}

/// `tokenizers_buffer` of tokenizers.h. Only ids are filled in.
#[repr(C)]
pub struct Buffer {
    ids: *mut u32,
    type_ids: *mut u32,
    special_tokens_mask: *mut u32,
    attention_mask: *mut u32,
    tokens: *mut *mut c_char,
    offsets: *mut usize,
    len: usize,
}

impl Buffer {
    fn new(ids: Vec<u32>) -> Buffer {
        let len = ids.len();
        let ids = Box::into_raw(ids.into_boxed_slice()) as *mut u32;
        Buffer {
            ids,
            type_ids: ptr::null_mut(),
            special_tokens_mask: ptr::null_mut(),
            attention_mask: ptr::null_mut(),
            tokens: ptr::null_mut(),
            offsets: ptr::null_mut(),
            len,
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn tokenizers_encode(
    tokenizer: *const UnifiedTokenizer,
    text: *const c_char,
    options: &EncodeOptions,
) -> Buffer {
    let ids = guarded(|| {
        if !options.only_ids() {
            return Err("this build of the library encodes to ids only".into());
        }
        let text = CStr::from_ptr(text).to_str().map_err(|e| e.to_string())?;
        encode(&*tokenizer, text, options.add_special_tokens, &[])
    });
    Buffer::new(keep_error(ids).unwrap_or_default())
}

/// The ids of a text. Special tokens that cover one of the ascending byte offsets `plain` are text like any other.
fn encode(
    tokenizer: &UnifiedTokenizer,
    text: &str,
    add_special_tokens: bool,
    plain: &[usize],
) -> Result<Vec<u32>, String> {
    let encoded = match tokenizer {
        UnifiedTokenizer::HuggingFace(t) if plain.is_empty() => {
            t.encode_fast(text, add_special_tokens) // the fast form finds no offsets
        }
        UnifiedTokenizer::HuggingFace(t) => plain_encode(t, text, plain),
        other => return other.encode(text, add_special_tokens).map_err(|e| e.to_string()),
    };
    encoded.map(|encoding| encoding.get_ids().to_vec()).map_err(|e| e.to_string())
}

/// `millrace_text_ids` of millrace_text.h.
#[repr(C)]
pub struct Ids {
    data: *mut u32,
    len: usize,
}

/// The ids of a text of `len` bytes, which may have NULs. Special tokens that cover one of the `count` byte offsets
/// `plain` are text like any other. `out` is given back to `millrace_text_ids_free`. Returns 0, or -1 where
/// `millrace_text_error` has the reason.
///
/// # Safety
/// `tokenizer` is what `tokenizers_from_bytes` made; the other pointers are valid for their lengths.
#[no_mangle]
pub unsafe extern "C" fn millrace_text_encode(
    tokenizer: *const UnifiedTokenizer,
    text: *const u8,
    len: usize,
    add_special_tokens: bool,
    plain: *const usize,
    count: usize,
    out: *mut Ids,
) -> i32 {
    let ids = guarded(|| {
        let text = std::str::from_utf8(crate::bytes(text, len)).map_err(|e| e.to_string())?;
        let plain = if count == 0 { &[] } else { slice::from_raw_parts(plain, count) };
        encode(&*tokenizer, text, add_special_tokens, plain)
    });
    match keep_error(ids) {
        Some(ids) => {
            let boxed = ids.into_boxed_slice();
            let len = boxed.len();
            *out = Ids { data: Box::into_raw(boxed) as *mut u32, len };
            0
        }
        None => -1,
    }
}

/// # Safety
/// `ids` came from `millrace_text_encode` and is not used again.
#[no_mangle]
pub unsafe extern "C" fn millrace_text_ids_free(ids: Ids) {
    if !ids.data.is_null() {
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(ids.data, ids.len)));
    }
}

/// A token of the added vocabulary, and where its text is.
type Match = (usize, usize, Token);

/// Encodes a text as the library does, but for special tokens that cover one of the ascending offsets `plain`: their
/// text joins what is around it. No special tokens are added.
fn plain_encode(t: &Tokenizer, text: &str, plain: &[usize]) -> tokenizers::Result<Encoding> {
    let added = t.get_added_vocabulary().get_added_tokens_decoder();
    let covers = |start, end| {
        let next = plain[plain.partition_point(|&at| at < start)..].first();
        next.is_some_and(|&at| at < end)
    };
    let found = t.get_added_vocabulary().extract_and_normalize(t.get_normalizer(), text);
    let (mut raw, mut normalized, mut dropped) = (Vec::new(), Vec::new(), false);
    for (_, (start, end), tokens) in found.get_splits(OffsetReferential::Original, OffsetType::Byte)
    {
        let Some(token) = tokens.as_ref().and_then(|tokens| tokens.first()) else {
            continue;
        };
        match added.get(&token.id) {
            Some(a) if a.special && covers(start, end) => dropped = true,
            Some(a) if a.normalized => normalized.push((start, end, token.clone())),
            _ => raw.push((start, end, token.clone())),
        }
    }
    if !dropped {
        return t.encode_fast(text, false);
    }
    // As AddedVocabulary::extract_and_normalize splits, at the matches that are left.
    let mut split = PreTokenizedString::from(text);
    split.split(|_, whole| cut(&whole, &raw))?;
    split.split(|_, mut piece| {
        if let Some(normalizer) = t.get_normalizer() {
            normalizer.normalize(&mut piece)?;
        }
        cut(&piece, &normalized)
    })?;
    if let Some(pre_tokenizer) = t.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut split)?;
    }
    split.tokenize(|piece| t.get_model().tokenize(piece.get()))?;
    split.into_encoding(None, 0, OffsetType::None)
}

/// Cuts a piece of the text at the matches that are in it.
fn cut(
    piece: &NormalizedString,
    matches: &[Match],
) -> tokenizers::Result<Vec<(NormalizedString, Option<Vec<Token>>)>> {
    let (begin, end) = piece.offsets_original();
    let mut pieces = Vec::new();
    let mut at = begin;
    let mut take = |from: usize, to: usize, tokens| {
        if from < to {
            let slice = piece.slice(Range::Original(from - begin..to - begin));
            pieces.push((slice.ok_or("a token's text is no slice of the prompt")?, tokens));
        }
        tokenizers::Result::Ok(())
    };
    for (from, to, token) in matches.iter().filter(|m| m.0 >= begin && m.1 <= end) {
        take(at, *from, None)?;
        take(*from, *to, Some(vec![token.clone()]))?;
        at = *to;
    }
    take(at, end, None)?;
    Ok(pieces)
}

#[no_mangle]
pub unsafe extern "C" fn tokenizers_decode(
    tokenizer: *const UnifiedTokenizer,
    ids: *const u32,
    len: u32,
    skip_special_tokens: bool,
) -> *mut c_char {
    let text = guarded(|| {
        let ids = if len == 0 { &[] } else { slice::from_raw_parts(ids, len as usize) };
        let text = (*tokenizer).decode(ids, skip_special_tokens).map_err(|e| e.to_string())?;
        CString::new(text).map_err(|e| format!("the text has a NUL byte: {e}"))
    });
    keep_error(text).map_or(ptr::null_mut(), CString::into_raw)
}

#[no_mangle]
pub unsafe extern "C" fn tokenizers_vocab_size(tokenizer: *mut c_void) -> u32 {
    guarded(|| Ok(ffi::tokenizers_vocab_size(tokenizer))).unwrap_or(0)
}

#[no_mangle]
pub unsafe extern "C" fn tokenizers_free_tokenizer(tokenizer: *mut c_void) {
    let _ = guarded(|| {
        ffi::tokenizers_free_tokenizer(tokenizer);
        Ok(())
    });
}

#[no_mangle]
pub unsafe extern "C" fn tokenizers_free_buffer(buffer: Buffer) {
    if !buffer.ids.is_null() {
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(buffer.ids, buffer.len)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tokenizers_free_string(text: *mut c_char) {
    ffi::tokenizers_free_string(text);
}
