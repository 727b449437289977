//! What was probably meant: the nearest of the words that would have been right.

/// The candidate nearest to `text`, if it is near enough to be a slip.
pub(super) fn nearest<'a>(
    text: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // Long strangers are not compared: the work grows with the product of the lengths.
    if text.len() > 64 {
        return None;
    }
    let slips_max = (text.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .filter(|candidate| *candidate != text)
        .map(|candidate| (slips(text, candidate), candidate))
        .filter(|(slips, _)| *slips <= slips_max)
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, candidate)| candidate)
}

/// How many letters were added, left out, changed or swapped with their neighbour.
fn slips(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (fold(left), fold(right));
    let mut table = vec![vec![0; right.len() + 1]; left.len() + 1];
    for i in 0..=left.len() {
        for j in 0..=right.len() {
            table[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                _ => {
                    let changed = table[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
                    changed.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1)
                }
            };
            let swapped =
                i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1];
            if swapped {
                table[i][j] = table[i][j].min(table[i - 2][j - 2] + 1);
            }
        }
    }
    table[left.len()][right.len()]
}

/// Case, and the choice between `-` and `_`, are no slips worth counting.
fn fold(text: &str) -> Vec<char> {
    text.chars()
        .map(|c| {
            if c == '-' {
                '_'
            } else {
                c.to_ascii_lowercase()
            }
        })
        .collect()
}
