//! Splits names into words: `shippingRates`, `shipping_rates` and `shipping-rates` have the same words.

/// Words of a name, in lower case.
pub(crate) fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = ' ';
    for char in name.chars() {
        let starts = !before.is_alphanumeric() || (char.is_uppercase() && !before.is_uppercase());
        if char.is_alphanumeric() {
            if starts || words.is_empty() {
                words.push(String::new());
            }
            words.last_mut().into_iter().for_each(|it| lower(char, it));
        }
        before = char;
    }
    words
}

/// Last word of a name, in lower case.
pub(crate) fn last_word(name: &str) -> String {
    words(name).pop().unwrap_or_default()
}

/// Name in lower case, without separators.
pub(crate) fn plain(name: &str) -> String {
    let mut plain = String::with_capacity(name.len());
    let kept = name.chars().filter(|char| char.is_alphanumeric());
    kept.for_each(|char| lower(char, &mut plain));
    plain
}

/// Appends a character in lower case. ASCII has a fast path, because large documents have 100,000s of ASCII names.
fn lower(char: char, into: &mut String) {
    match char.is_ascii() {
        true => into.push(char.to_ascii_lowercase()),
        false => into.extend(char.to_lowercase()),
    }
}

/// Singular of an English noun, accurate enough for the word lists.
pub(crate) fn singular(word: &str) -> String {
    if word == "ids" {
        return "id".into();
    }
    let cut = |end: &str| word.strip_suffix(end);
    if let Some(stem) = cut("ies").filter(|stem| stem.len() > 1) {
        return format!("{stem}y");
    }
    if let Some(stem) = ["sses", "shes", "ches", "xes"]
        .iter()
        .find_map(|end| cut(end).map(|stem| format!("{stem}{}", &end[..end.len() - 2])))
    {
        return stem;
    }
    match cut("s").filter(|stem| stem.len() > 2 && !stem.ends_with(['s', 'u', 'i'])) {
        Some(stem) => stem.into(),
        None => word.into(),
    }
}

/// Whether a word looks like a plural.
pub(crate) fn is_plural(word: &str) -> bool {
    singular(word) != word
}
