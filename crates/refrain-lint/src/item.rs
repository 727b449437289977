//! What a file holds, in the same form for every language.
//!
//! Only nodes that analyses ask about become items.
//! Items stand in the order of the source, each before what is inside it, so that "inside" is a range and "before" a comparison.

use std::ops::Range;

/// What a node is to the analyses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing that is asked about.
    Other,
    /// A function, method, closure or block.
    Function,
    /// A class, module or implementation.
    Class,
    /// A call or a construction.
    Call,
    /// A loop.
    Loop,
    /// A block whose errors are caught.
    Try,
    /// What is done about an error.
    Catch,
    /// What is done in any case.
    Finally,
    /// Something that happens under a condition.
    If,
    /// A block with a resource, such as a transaction.
    With,
    /// A variable, field or element that gets a value.
    Assign,
    /// A named value: of a table, of a structure, or an argument.
    Pair,
    /// A value handed back.
    Return,
    /// Anything else that leaves a block.
    Exit,
    /// `retry`, which runs a block again.
    Rerun,
    /// What stands between the quotes of a string, or a symbol.
    Text,
    /// A comment.
    Comment,
    /// A decorator, annotation or attribute.
    Attribute,
    /// What is done when the function ends.
    Deferred,
}

/// A stretch of the source, in bytes.
pub(crate) type Span = Range<usize>;

/// One thing in a file.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) role: Role,
    pub(crate) span: Span,
    /// The item around it; itself at the top.
    pub(crate) parent: usize,
    /// Behind the last item inside it.
    pub(crate) last: usize,
    /// Calls: the path, as `client.payments.create`. Assignments and pairs: the folded name. Functions and classes: the folded name.
    pub(crate) name: String,
    /// Assignments: the path of what the field or element belongs to. Calls: the path of the receiver.
    pub(crate) base: String,
    /// The value of an assignment, pair or return; the condition of an `if`; the head of a loop, class or `with`; the body of a function.
    pub(crate) value: Span,
    /// The arguments of a call; the parameters of a function.
    pub(crate) args: Vec<Arg>,
}

/// An argument or a parameter.
#[derive(Debug)]
pub(crate) struct Arg {
    /// The folded name, if it has one; `*` for a spread.
    pub(crate) name: String,
    pub(crate) span: Span,
}

impl Item {
    /// The last segment of a path.
    pub(crate) fn tail(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or_default()
    }

    pub(crate) fn at(&self) -> usize {
        self.span.start
    }

    /// Whether the other stretch lies within.
    pub(crate) fn holds(&self, span: &Span) -> bool {
        self.span.start <= span.start && span.end <= self.span.end
    }
}
