//! Normalizes names, so that `idempotency_key`, `idempotencyKey` and `Idempotency-Key` are equal.

/// Folded name: lower case, letters and digits only.
pub(crate) fn fold(name: &str) -> String {
    let kept = name.chars().filter(|c| c.is_alphanumeric());
    kept.flat_map(char::to_lowercase).collect()
}

/// Maximum length of a callee in bytes; only the end of a longer chain is parsed.
const CALLEE_BYTES_MAX: usize = 1_000;

/// Path of a callee: `$this->client->post(…)->json` and `self.client.post(…).json` both become `client.post.json`.
pub(crate) fn path(callee: &str) -> String {
    let mut start = callee.len().saturating_sub(CALLEE_BYTES_MAX);
    while !callee.is_char_boundary(start) {
        start += 1;
    }
    let mut segments = vec![String::new()];
    let mut depth = 0_u32;
    let mut angles = 0_u32;
    let mut quote = None;
    let mut escaped = false;
    for c in callee[start..].chars() {
        if let Some(open) = quote {
            if c == open && !escaped {
                quote = None;
            }
            escaped = c == '\\' && !escaped;
            continue;
        }
        match c {
            // The types in `post<Created>(…)` and `query_as::<_, Row>(…)` are not part of the name.
            '<' => angles += 1,
            '>' if angles > 0 => angles -= 1,
            _ if angles > 0 => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '"' | '`' => quote = Some(c),
            _ if depth > 0 => {}
            '.' | ':' | '>' | '\\' | ' ' | '\n' | '\t' => segments.push(String::new()),
            c if c.is_alphanumeric() => {
                if let Some(last) = segments.last_mut() {
                    last.extend(c.to_lowercase());
                }
            }
            _ => {}
        }
    }
    let noise = ["", "this", "self", "await", "cls", "super", "async"];
    segments.retain(|segment| !noise.contains(&segment.as_str()));
    // `new Client` is a constructor call, `refund.New` a function.
    if segments.len() > 1 && segments[0] == "new" {
        segments.remove(0);
    }
    segments.join(".")
}

/// Whether a path matches a pattern such as `stripe.*.create`, compared segment by segment from the end.
/// A segment of the pattern may start and end with `*`.
pub(crate) fn fits(path: &str, pattern: &str) -> bool {
    let mut have = path.rsplit('.');
    for want in pattern.rsplit('.') {
        match have.next() {
            Some(segment) if segment_fits(segment, want) => {}
            _ => return false,
        }
    }
    true
}

fn segment_fits(segment: &str, want: &str) -> bool {
    match (want.strip_prefix('*'), want.strip_suffix('*')) {
        (Some(""), _) => true,
        (Some(rest), None) => segment.ends_with(rest),
        (None, Some(rest)) => segment.starts_with(rest),
        (Some(_), Some(_)) => segment.contains(want.trim_matches('*')),
        (None, None) => segment == want,
    }
}

/// Whether a path matches any of the patterns.
pub(crate) fn fits_any(path: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| fits(path, pattern))
}

/// Whether a lower-case text contains any of the words.
pub(crate) fn has_any<S: AsRef<str>>(text: &str, words: &[S]) -> bool {
    words.iter().any(|word| has(text, word.as_ref()))
}

/// Whether a text contains a word that does not start inside another word.
/// A word with a leading `*` may start anywhere.
pub(crate) fn has(text: &str, word: &str) -> bool {
    find(text, word).is_some()
}

/// Position of the first match of the word.
pub(crate) fn find(text: &str, word: &str) -> Option<usize> {
    if let Some(word) = word.strip_prefix('*') {
        return text.find(word);
    }
    let mut from = 0;
    while let Some(at) = text[from..].find(word).map(|at| at + from) {
        let before = text[..at].chars().next_back();
        let first = word.chars().next();
        let free =
            !before.is_some_and(char::is_alphanumeric) || !first.is_some_and(char::is_alphanumeric);
        if free {
            return Some(at);
        }
        from = at + word.len().max(1);
    }
    None
}
