//! Python's textwrap.wrap without its changes of whitespace, as jinja2's filter `wordwrap` calls it.

/// How lines are wrapped.
pub struct Style {
    pub width: usize,
    pub break_long_words: bool,
    pub break_on_hyphens: bool,
}

/// The lines of a text of one line.
pub fn wrap(line: &str, style: &Style) -> Vec<String> {
    let text: Vec<char> = line.chars().collect();
    let mut chunks: Vec<Vec<char>> = split(&text, style.break_on_hyphens);
    chunks.reverse();
    let mut lines: Vec<String> = Vec::new();
    while let Some(first) = chunks.last() {
        if !lines.is_empty() && is_blank(first) {
            chunks.pop();
        }
        let (mut line, mut len): (Vec<Vec<char>>, usize) = (Vec::new(), 0);
        while let Some(chunk) = chunks.pop_if(|chunk| len + chunk.len() <= style.width) {
            len += chunk.len();
            line.push(chunk);
        }
        if chunks.last().is_some_and(|chunk| chunk.len() > style.width) {
            long_word(&mut chunks, &mut line, style.width - len, style);
        }
        if line.last().is_some_and(|chunk| is_blank(chunk)) {
            line.pop();
        }
        if !line.is_empty() {
            lines.push(line.into_iter().flatten().collect());
        }
    }
    lines
}

/// Puts what fits of a word that is longer than a line into it.
fn long_word(chunks: &mut Vec<Vec<char>>, line: &mut Vec<Vec<char>>, room: usize, style: &Style) {
    let Some(mut word) = chunks.pop() else {
        return;
    };
    if !style.break_long_words {
        if line.is_empty() {
            line.push(word);
        } else {
            chunks.push(word);
        }
        return;
    }
    let mut end = room.min(word.len());
    if style.break_on_hyphens && word.len() > room {
        if let Some(hyphen) = word[..end].iter().rposition(|&c| c == '-') {
            if word[..hyphen].iter().any(|&c| c != '-') {
                end = hyphen + 1;
            }
        }
    }
    let rest = word.split_off(end);
    line.push(word);
    chunks.push(rest);
}

/// The whitespace, words and parts of words that a line can be broken between.
fn split(text: &[char], on_hyphens: bool) -> Vec<Vec<char>> {
    let mut chunks = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let len = if is_space(text[at]) {
            text[at..].iter().take_while(|&&c| is_space(c)).count()
        } else if on_hyphens {
            part_len(text, at)
        } else {
            text[at..].iter().take_while(|&&c| !is_space(c)).count()
        };
        chunks.push(text[at..at + len].to_vec());
        at += len;
    }
    chunks
}

/// The length of a dash between words, or of a word up to its end, to a hyphen, or to a dash.
fn part_len(text: &[char], at: usize) -> usize {
    let letter = |i: usize| text.get(i).is_some_and(|&c| is_letter(c));
    let hyphen = |i: usize| text.get(i) == Some(&'-');
    let punctuated =
        |i: usize| is_word(text[i]) || matches!(text[i], '!' | '"' | '\'' | '&' | '.' | ',' | '?');
    let dash_len = |from: usize| {
        let len = text[from..].iter().take_while(|&&c| c == '-').count();
        (len >= 2 && text.get(from + len).is_some_and(|&c| is_word(c))).then_some(len)
    };
    if at > 0 && punctuated(at - 1) {
        if let Some(len) = dash_len(at) {
            return len;
        }
    }
    for end in at + 1..text.len() {
        let hyphenated = hyphen(end)
            && letter(end - 1)
            && (end >= 2 && letter(end - 2) || end >= 3 && hyphen(end - 2) && letter(end - 3))
            && letter(end + 1)
            && (letter(end + 2) || hyphen(end + 2) && letter(end + 3));
        if hyphenated {
            return end + 1 - at;
        }
        if is_space(text[end]) || hyphen(end) && punctuated(end - 1) && dash_len(end).is_some() {
            return end - at;
        }
    }
    text.len() - at
}

fn is_space(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\u{b}' | '\u{c}' | '\r' | ' ')
}

fn is_blank(chunk: &[char]) -> bool {
    chunk.iter().all(|&c| crate::text::is_space(c))
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn is_letter(c: char) -> bool {
    is_word(c) && !c.is_numeric()
}
