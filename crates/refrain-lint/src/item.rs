//! Items: the contents of a source file, in the same form for every language.
//!
//! Only syntax nodes that an analysis needs become items.
//! Items are in source order, each before the items inside it.
//! So "inside" is an index range, and "before" is a comparison.

use std::ops::Range;

/// Role of a syntax node in the analyses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Not used by any analysis.
    Other,
    /// A function, method, closure or block.
    Function,
    /// A class, module or implementation.
    Class,
    /// A function call or constructor call.
    Call,
    /// A loop.
    Loop,
    /// A block whose errors are caught.
    Try,
    /// An error handler.
    Catch,
    /// Code that runs with and without an error.
    Finally,
    /// A condition or a branch of a match.
    If,
    /// A block with a resource, such as a transaction.
    With,
    /// An assignment to a variable, field or element.
    Assign,
    /// A named value: of a map, of a structure, or an argument.
    Pair,
    /// A returned value.
    Return,
    /// Any other exit from a block.
    Exit,
    /// `retry`, which runs a block again.
    Rerun,
    /// Content of a string literal, or a symbol.
    Text,
    /// A comment.
    Comment,
    /// A decorator, annotation or attribute.
    Attribute,
    /// Code that runs when the function ends.
    Deferred,
}

/// Byte range in the source.
pub(crate) type Span = Range<usize>;

/// One item of a file.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) role: Role,
    pub(crate) span: Span,
    /// Index of the enclosing item; 0 at the top level, even if item 0 does not enclose this one.
    pub(crate) parent: usize,
    /// Index after the last item inside this one.
    pub(crate) last: usize,
    /// For calls, the path, such as `client.payments.create`.
    /// For assignments, pairs, functions and classes, the folded name.
    pub(crate) name: String,
    /// For assignments, the path of the object that owns the field or element. For calls, the path of the receiver.
    /// For functions and classes, their attributes in lower case.
    pub(crate) base: String,
    /// Value of an assignment, pair or return; arguments of a call; condition of an `if`;
    /// head of a loop, catch, class or `with`; body of a function.
    pub(crate) value: Span,
    /// Arguments of a call; parameters of a function.
    pub(crate) args: Vec<Arg>,
}

/// An argument or a parameter.
#[derive(Debug)]
pub(crate) struct Arg {
    /// Folded name, or empty; `*` for a spread.
    pub(crate) name: String,
    pub(crate) span: Span,
}

impl Item {
    /// Last segment of the path.
    pub(crate) fn tail(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or_default()
    }

    pub(crate) fn at(&self) -> usize {
        self.span.start
    }

    /// Whether the item contains this byte range.
    pub(crate) fn holds(&self, span: &Span) -> bool {
        self.span.start <= span.start && span.end <= self.span.end
    }
}
