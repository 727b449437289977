//! Keys that are truncated.

use super::{Hit, keys};
use crate::{
    file::File,
    item::{Role, Span},
    language::Lang,
    names,
    project::{Kind, Project},
};

/// Minimum number of hexadecimal digits of a truncated digest: 32 digits are 128 bits.
const HEX_MIN: u64 = 32;
/// Shorter results are ignored: they are the first elements of a list, or a prefix.
const LEFT_MIN: u64 = 4;

pub(super) fn cut(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    if !source.lower.contains("idempot") && !source.lower.contains("paypal") {
        return Vec::new();
    }
    let mut hits: Vec<Hit> = Vec::new();
    let mut values: Vec<Span> = keys::slots(project, source)
        .into_iter()
        .map(|slot| slot.value)
        .collect();
    values.extend(named(source));
    for value in values {
        let pieces = project.reach(file, &value).pieces;
        let near = pieces.iter().filter(|piece| {
            piece.file == file
                && matches!(piece.kind, Kind::Own | Kind::Variable | Kind::Helper)
                && piece.span.len() < 1_000
        });
        for piece in near {
            if piece.kind == Kind::Helper && !is_key_helper(source, &piece.span) {
                continue;
            }
            if let Some((at, left)) = shortened(source, &piece.span)
                && !hits.iter().any(|hit| hit.at == at)
            {
                hits.push(Hit::new(at, format!("truncated to {left} characters")));
            }
        }
    }
    hits.extend(cut_in_place(project, source));
    hits
}

/// Rust: `idempotency_key.truncate(16)` shortens the key in place.
fn cut_in_place(project: &Project, file: &File) -> Vec<Hit> {
    let calls = file.of(Role::Call).map(|at| &file.items[at]);
    let cuts = calls.filter(|item| {
        let base = item.base.rsplit('.').next().unwrap_or_default();
        item.tail() == "truncate"
            && file.lang == Lang::Rust
            && project.words.key_names.iter().any(|it| it == base)
    });
    cuts.filter_map(|item| {
        let left = number(file.low(&item.args.first()?.span))
            .filter(|it| (LEFT_MIN..HEX_MIN).contains(it))?;
        Some(Hit::new(
            item.at(),
            format!("truncated to {left} characters"),
        ))
    })
    .collect()
}

/// Values of variables, and bodies of functions, whose name says that they hold a key.
fn named(file: &File) -> Vec<Span> {
    let keyed = |name: &str| {
        name.contains("idempot")
            || name.ends_with("idemkey")
            || name == "dedupkey"
            || name == "storekey"
            || name == "redisKey"
    };
    let assigned = file
        .items
        .iter()
        .filter(|item| item.role == Role::Assign && keyed(&item.name))
        .map(|item| item.value.clone());
    let functions = file
        .items
        .iter()
        .filter(|item| item.role == Role::Function && keyed(&item.name) && item.span.len() < 1_000)
        .map(|item| item.value.clone());
    assigned.chain(functions).collect()
}

fn is_key_helper(file: &File, span: &Span) -> bool {
    file.innermost(span).is_some_and(|at| {
        file.items[at].name.contains("key") || file.items[at].name.contains("idempot")
    })
}

/// Position of a truncation and the remaining length, if that is too short.
fn shortened(file: &File, span: &Span) -> Option<(usize, u64)> {
    let text = file.low(span);
    let (at, left) = cuts(text)?;
    let digest = names::has_any(
        text,
        &["*sha", "*md5", "*blake", "*digest", "*hash", "*hmac"],
    );
    // Two hexadecimal digits encode one byte, so half as many bytes suffice.
    let bytes = names::has_any(
        text,
        &["*encodetostring", "hex::encode", "*tohex", "*hex.encode"],
    );
    let enough = digest && (left >= HEX_MIN || bytes && left >= HEX_MIN / 2);
    (!enough).then_some((span.start + at, left))
}

/// First truncation to a number of leading characters.
fn cuts(text: &str) -> Option<(usize, u64)> {
    let openings = [
        "[:",
        "[..",
        "[0:",
        "[0..",
        "[0...",
        "[0, ",
        "[0,",
        ".slice(0, ",
        ".slice(0,",
        ".substring(0, ",
        ".substring(0,",
        ".substr(0, ",
        ".first(",
        ".truncate(",
        ".take(",
        ".get(..",
        ".left(",
    ];
    let mut found: Vec<(usize, u64)> = openings
        .iter()
        .flat_map(|opening| text.match_indices(opening))
        .filter_map(|(at, opening)| number(&text[at + opening.len()..]).map(|left| (at, left)))
        .collect();
    for function in [
        "substr(",
        "str::limit(",
        "str::substr(",
        "stringutils.left(",
        "stringutils.truncate(",
    ] {
        if let Some(at) = text.find(function)
            && let Some(left) = last_number(&text[at + function.len()..])
        {
            found.push((at, left));
        }
    }
    found
        .into_iter()
        .filter(|(_, left)| *left >= LEFT_MIN)
        .min()
}

fn number(text: &str) -> Option<u64> {
    let digits: String = text
        .trim_start_matches(['.', '=', ' '])
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

/// The last argument of the call, if it is a number.
fn last_number(text: &str) -> Option<u64> {
    let mut depth = 0_i32;
    let end = text.char_indices().find(|(_, c)| {
        depth += i32::from(*c == '(') - i32::from(*c == ')');
        depth < 0
    })?;
    let inside = &text[..end.0];
    inside.rsplit(',').next()?.trim().parse().ok()
}
