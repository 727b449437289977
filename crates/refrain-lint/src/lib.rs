//! Finds code that may do the same thing twice, or lose it, when something is tried again.
//!
//! Sources are parsed with tree-sitter, and brought into one form for all languages: functions, calls, loops, assignments.
//! Rules are data: what they say, the patterns that find them, and the names of analyses for what a pattern cannot say.
//! An analysis asks what the whole project knows: what runs a function again, what a helper really does, which column is unique.
//!
//! ```
//! let rules = refrain_lint::Rules::built_in()?;
//! let source = "import stripe\ndef pay(order):\n    stripe.Charge.create(amount=order.total)\n";
//! let report = refrain_lint::lint_texts(&[("pay.py", source)], &rules);
//! assert_eq!(report.findings[0].rule, "money-call-without-key");
//! # Ok::<(), refrain_lint::BadRule>(())
//! ```

mod analyses;
mod file;
mod finding;
mod item;
mod language;
mod lint;
mod lower;
mod names;
mod predicate;
mod project;
mod rule;
mod suppress;
mod walk;
mod words;

pub use finding::{Finding, Report};
pub use language::Lang;
pub use lint::{lint, lint_texts};
pub use rule::{BadRule, PatternRule, Rule, Rules, Severity, explanation};
pub use walk::{Limits, NoSuchPath};
