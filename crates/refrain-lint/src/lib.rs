//! Finds code that executes an operation twice, or loses it, when the operation is retried.
//!
//! Sources are parsed with tree-sitter and lowered to items that are the same for all languages:
//! functions, calls, loops, assignments.
//! Rules are data: texts, ast-grep patterns, and names of analyses for what a pattern cannot express.
//! An analysis uses facts of the whole project: what reruns a function, what a helper does, which column is unique.
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
