//! Whether the texts of a compiled grammar end.

use std::collections::{HashMap, HashSet};

use llguidance::earley::regexvec::LexemeSet;
use llguidance::earley::{CGrammar, CSymIdx};
use llguidance::ParserFactory;

/// Says which part of a grammar has no text that ends: each would contain another one, or a terminal that
/// matches nothing. None: all parts that the grammar's texts reach have one.
pub fn endless(grammar: &CGrammar, factory: &ParserFactory) -> anyhow::Result<Option<String>> {
    let mut regexes = grammar.lexer_spec().to_regex_vec(&mut factory.limits().clone())?;
    let all = regexes.initial_state(&grammar.lexer_spec().all_lexemes());
    let matched = &regexes.state_desc(all).possible;
    let rules = Rules::of(grammar);
    let ends = rules.ends(grammar, matched);
    if !ends.contains(&grammar.start()) {
        return Ok(Some("no text that it allows ends".to_string()));
    }
    // Where the first symbol is a terminal that matches nothing, no text enters the rule.
    let enters = |s: CSymIdx| grammar.sym_data(s).lexeme.is_none_or(|l| matched.contains(l));
    let is_trap = |r: &&Rule| enters(r.parts[0]) && r.parts.iter().any(|s| !ends.contains(s));
    let mut traps = rules.list.iter().filter(is_trap);
    let trap = traps.clone().find(|r| !ends.contains(&r.of)).or_else(|| traps.next());
    Ok(trap.map(|r| format!("no text of a part of {:?} ends", name(grammar, r.of))))
}

/// The name of a rule, without the number of its part.
fn name(grammar: &CGrammar, symbol: CSymIdx) -> &str {
    let name = &grammar.sym_data(symbol).name;
    name.split('#').next().unwrap_or(name)
}

struct Rule<'a> {
    of: CSymIdx,
    parts: &'a [CSymIdx], // at least one
}

/// The rules that a grammar's texts can reach.
struct Rules<'a> {
    symbols: Vec<CSymIdx>,
    list: Vec<Rule<'a>>,
    uses: HashMap<CSymIdx, Vec<usize>>, // rules by a part, once for each place
}

impl<'a> Rules<'a> {
    fn of(grammar: &'a CGrammar) -> Self {
        let mut rules =
            Rules { symbols: vec![grammar.start()], list: Vec::new(), uses: HashMap::new() };
        rules.uses.insert(grammar.start(), Vec::new());
        let mut next = 0;
        while next < rules.symbols.len() {
            let of = rules.symbols[next];
            next += 1;
            for &rule in grammar.rules_of(of) {
                let parts = grammar.rule_rhs(rule).0;
                for &part in parts {
                    let Rules { symbols, uses, list } = &mut rules;
                    let by = uses.entry(part).or_insert_with(|| {
                        symbols.push(part);
                        Vec::new()
                    });
                    by.push(list.len());
                }
                rules.list.push(Rule { of, parts });
            }
        }
        rules
    }

    /// The symbols with texts that end: from those that need no other one to those that use them.
    fn ends(&self, grammar: &CGrammar, matched: &LexemeSet) -> HashSet<CSymIdx> {
        let mut missing: Vec<usize> = self.list.iter().map(|r| r.parts.len()).collect();
        let mut ends = HashSet::new();
        let mut found: Vec<CSymIdx> =
            self.symbols.iter().copied().filter(|s| ends_alone(grammar, *s, matched)).collect();
        while let Some(symbol) = found.pop() {
            if !ends.insert(symbol) {
                continue;
            }
            for &rule in &self.uses[&symbol] {
                missing[rule] -= 1;
                if missing[rule] == 0 {
                    found.push(self.list[rule].of);
                }
            }
        }
        ends
    }
}

/// Whether a symbol has a text that ends, without a look at its rules.
fn ends_alone(grammar: &CGrammar, symbol: CSymIdx, matched: &LexemeSet) -> bool {
    let data = grammar.sym_data(symbol);
    match data.lexeme {
        Some(lexeme) => matched.contains(lexeme),
        None => data.is_nullable || !data.cond_nullable.is_empty(),
    }
}
