//! Suggestions for misspelled words.

/// Returns the candidate nearest to `text`, if it is near enough to be a typo.
pub(super) fn nearest<'a>(
    text: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // Long texts are skipped: the cost grows with the product of the lengths.
    if text.len() > 64 {
        return None;
    }
    let slips_max = (text.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .filter(|candidate| *candidate != text)
        .map(|candidate| (edit_distance(text, candidate), candidate))
        .filter(|(slips, _)| *slips <= slips_max)
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, candidate)| candidate)
}

/// Edit distance: letters added, left out, changed or swapped with their neighbour.
fn edit_distance(left: &str, right: &str) -> usize {
    strsim::osa_distance(&fold(left), &fold(right))
}

/// Normalises case, and `-` to `_`: neither counts as a typo.
fn fold(text: &str) -> String {
    text.to_ascii_lowercase().replace('-', "_")
}
