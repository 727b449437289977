//! What a plan becomes on paper: the policy, a page for clients, an annotated description, and a plan for the tester.

use std::{fmt::Display, hash::Hasher as _};

use refrain::policy::Class;

mod annotate;
pub use annotate::annotated;

mod page;
pub use page::{html, markdown};

mod policy;
pub use policy::{Drift, Merged, policy};

mod references;

mod verify;
pub use verify::verify;

/// What stands before the digest of a file that was written by a renderer.
const MARK: &str = "refrain-plan-digest: ";
const DIGEST_LEN: usize = 16;

/// Whose a file is that is already there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// As it was written by a renderer.
    Ours,
    /// Written by a renderer, and changed since.
    Edited,
    /// Somebody else's.
    Foreign,
}

/// Whose a page or a copy is, by the digest that it carries.
#[must_use]
pub fn owner(text: &str) -> Owner {
    let at = text.find(MARK).map(|at| at + MARK.len());
    let digest = at.and_then(|at| text.get(at..at + DIGEST_LEN));
    match digest {
        None => Owner::Foreign,
        Some(found) if found == digest_of(text) => Owner::Ours,
        Some(_) => Owner::Edited,
    }
}

/// The mark with no digest yet.
fn mark() -> String {
    format!("{MARK}{}", "0".repeat(DIGEST_LEN))
}

/// Fills the digest in.
fn sealed(text: String) -> String {
    let digest = digest_of(&text);
    text.replacen(&mark(), &format!("{MARK}{digest}"), 1)
}

/// FNV-1a of the text with the digest left out: it tells accidents, and need not withstand anybody.
fn digest_of(text: &str) -> String {
    let at = text.find(MARK).map_or(text.len(), |at| at + MARK.len());
    let behind = text.get(at + DIGEST_LEN..).unwrap_or_default();
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    hasher.write(&text.as_bytes()[..at]);
    hasher.write(behind.as_bytes());
    format!("{:016x}", hasher.finish())
}

struct Fnv(u64);

impl std::hash::Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// A class as the policy writes it.
#[must_use]
pub fn class_name(class: Class) -> &'static str {
    match class {
        Class::Read => "read",
        Class::Create => "create",
        Class::Monetary => "monetary",
        Class::Transition => "transition",
        Class::Replace => "replace",
        Class::Delete => "delete",
        Class::Event => "event",
    }
}

/// A text on one line, so that it fits into a comment or a cell.
fn line(text: &impl Display) -> String {
    let text = text.to_string();
    let words: Vec<_> = text.split_whitespace().collect();
    let mut line = words.join(" ");
    if line.chars().count() > 160 {
        line = line.chars().take(159).collect::<String>() + "…";
    }
    line.chars().filter(|char| !char.is_control()).collect()
}
