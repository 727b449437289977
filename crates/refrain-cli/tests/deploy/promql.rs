//! Just enough of PromQL to find the metrics and labels that an expression uses.

use std::collections::BTreeSet;

/// A metric in an expression, with its label matchers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) metric: String,
    /// Label, and the value or pattern that it is compared with.
    pub(crate) matchers: Vec<(String, String)>,
}

/// What an expression uses.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    pub(crate) selectors: Vec<Selector>,
    /// Labels of `by (…)`.
    pub(crate) grouped: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Sign(char),
}

/// Finds what an expression uses. Fails if a bracket or a string is not closed.
pub(crate) fn parse(expression: &str) -> Result<Uses, String> {
    let tokens = tokens(expression)?;
    let mut uses = Uses::default();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            Token::Word(word) if word == "by" || word == "on" || word == "without" => {
                let labels = group(&tokens[at..], '(', ')')?;
                uses.grouped.extend(labels.iter().filter_map(word_of));
                at += labels.len() + 2;
            }
            Token::Word(word) if is_metric(word) => {
                let matchers = match tokens.get(at) {
                    Some(Token::Sign('{')) => group(&tokens[at..], '{', '}')?,
                    _ => &[],
                };
                at += if matchers.is_empty() {
                    0
                } else {
                    matchers.len() + 2
                };
                uses.selectors.push(Selector {
                    metric: word.clone(),
                    matchers: pairs(matchers),
                });
            }
            // A selector by name, such as {__name__=~"a|b", job="c"}.
            Token::Sign('{') => {
                let matchers = group(&tokens[at - 1..], '{', '}')?;
                at += matchers.len() + 1;
                uses.selectors.extend(named(&pairs(matchers)));
            }
            _ => {}
        }
    }
    Ok(uses)
}

fn is_metric(word: &str) -> bool {
    word.starts_with("refrain_") || word == "up"
}

fn word_of(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) => Some(word.clone()),
        _ => None,
    }
}

/// The selectors of the names in `__name__`, each with the other matchers.
fn named(matchers: &[(String, String)]) -> Vec<Selector> {
    let (names, rest): (Vec<_>, Vec<_>) = matchers
        .iter()
        .cloned()
        .partition(|(label, _)| label == "__name__");
    let names = names.iter().flat_map(|(_, names)| names.split('|'));
    let selector = |metric: &str| Selector {
        metric: metric.to_owned(),
        matchers: rest.clone(),
    };
    names.map(selector).collect()
}

/// The tokens between the bracket at the start and the one that closes it.
fn group(tokens: &[Token], open: char, close: char) -> Result<&[Token], String> {
    if tokens.first() != Some(&Token::Sign(open)) {
        return Err(format!("expected {open} at {tokens:?}"));
    }
    let end = tokens.iter().position(|it| *it == Token::Sign(close));
    let end = end.ok_or_else(|| format!("{open} is not closed"))?;
    Ok(&tokens[1..end])
}

fn pairs(tokens: &[Token]) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let Token::Text(value) = token else { continue };
        let name = tokens[..at].iter().rev().find_map(word_of);
        pairs.push((name.unwrap_or_default(), value.clone()));
    }
    pairs
}

fn tokens(expression: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = expression.chars().peekable();
    while let Some(char) = rest.next() {
        match char {
            '"' => {
                let mut text = String::new();
                loop {
                    match rest.next().ok_or("a string is not closed")? {
                        '"' => break,
                        '\\' => text.extend(rest.next()),
                        other => text.push(other),
                    }
                }
                tokens.push(Token::Text(text));
            }
            // A range, such as [5m] or [$__rate_interval].
            '[' => {
                rest.by_ref()
                    .find(|it| *it == ']')
                    .ok_or("[ is not closed")?;
            }
            start if start.is_ascii_alphabetic() || start == '_' => {
                let mut word = String::from(start);
                let is_part = |it: &char| it.is_ascii_alphanumeric() || *it == '_' || *it == ':';
                while let Some(next) = rest.next_if(is_part) {
                    word.push(next);
                }
                tokens.push(Token::Word(word));
            }
            // The unit of a number is not a word.
            digit if digit.is_ascii_digit() => {
                while rest.next_if(char::is_ascii_alphanumeric).is_some() {}
            }
            space if space.is_whitespace() => {}
            sign => tokens.push(Token::Sign(sign)),
        }
    }
    let count = |sign| tokens.iter().filter(|it| **it == Token::Sign(sign)).count();
    match count('(') == count(')') && count('{') == count('}') {
        true => Ok(tokens),
        false => Err("brackets are not balanced".into()),
    }
}

#[test]
fn metrics_labels_and_groups_are_found() {
    let expression =
        r#"sum by (le, op) (rate(refrain_a_bucket{job=~"$job", op="x}\""}[5m])) / refrain_b > 0.5"#;
    let found = parse(expression).unwrap();
    let a = Selector {
        metric: "refrain_a_bucket".into(),
        matchers: vec![("job".into(), "$job".into()), ("op".into(), "x}\"".into())],
    };
    let b = Selector {
        metric: "refrain_b".into(),
        matchers: Vec::new(),
    };
    assert_eq!(found.selectors, [a, b]);
    assert_eq!(found.grouped, ["le", "op"].map(String::from).into());
    let by_name = parse(r#"{__name__=~"refrain_a|refrain_b", job="c"}"#).unwrap();
    assert_eq!(by_name.selectors.len(), 2);
    assert_eq!(by_name.selectors[1].metric, "refrain_b");
    assert_eq!(by_name.selectors[1].matchers, [("job".into(), "c".into())]);
    for broken in [
        "sum(refrain_a",
        "refrain_a{b=\"c\"",
        "refrain_a{b=\"c}",
        "rate(refrain_a[5m)",
    ] {
        assert!(parse(broken).is_err(), "{broken}");
    }
}
