//! Where a value comes from: through variables, what is written into them, and helpers of the same project.

use super::Project;
use crate::{
    file::File,
    item::{Role, Span},
    language::Lang,
    names,
};

/// The most pieces that one value is made of.
const PIECES_MAX: usize = 48;

/// How a piece takes part in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It stands there itself.
    Own,
    /// A variable of the function was given it.
    Variable,
    /// It was written into a variable: an element, a setter.
    Written,
    /// A function of the project that is called for it.
    Helper,
    /// A variable outside of the function: of the file or the class.
    Outer,
}

/// A stretch that a value is made of.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) file: usize,
    pub(crate) span: Span,
    pub(crate) kind: Kind,
    /// Where in the first function it comes in.
    pub(crate) site: usize,
    /// Given only where there was nothing before.
    pub(crate) is_fallback: bool,
}

/// All that a value is made of.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    pub(crate) pieces: Vec<Piece>,
    /// The parameters that it comes from.
    pub(crate) params: Vec<String>,
}

impl Reach {
    /// Whether any piece holds one of the words.
    pub(crate) fn has<S: AsRef<str>>(&self, project: &Project, words: &[S]) -> bool {
        let mut pieces = self.pieces.iter();
        pieces.any(|piece| names::has_any(project.files[piece.file].low(&piece.span), words))
    }
}

impl Project {
    /// Follows a stretch of a file back to what it is made of.
    pub(crate) fn reach(&self, file: usize, span: &Span) -> Reach {
        let mut reach = Reach::default();
        let first = Piece {
            file,
            span: span.clone(),
            kind: Kind::Own,
            site: span.start,
            is_fallback: false,
        };
        let mut open = vec![first];
        while let Some(piece) = open.pop() {
            let known = reach
                .pieces
                .iter()
                .any(|it| it.file == piece.file && it.span == piece.span);
            if known || reach.pieces.len() >= PIECES_MAX {
                continue;
            }
            if piece.kind != Kind::Helper {
                self.variables(&piece, &mut open, &mut reach.params);
            }
            self.helpers(&piece, &mut open);
            reach.pieces.push(piece);
        }
        reach
    }

    fn variables(&self, piece: &Piece, open: &mut Vec<Piece>, params: &mut Vec<String>) {
        let file = &self.files[piece.file];
        let Some(inner) = file.innermost(&piece.span) else {
            return;
        };
        let own = file.items[inner].role == Role::Function;
        let functions: Vec<usize> = own
            .then_some(inner)
            .into_iter()
            .chain(
                file.around(inner)
                    .filter(|at| file.items[*at].role == Role::Function),
            )
            .collect();
        for name in file.names(&piece.span) {
            let found = functions.iter().any(|function| {
                let item = &file.items[*function];
                let is_param = item
                    .args
                    .iter()
                    .any(|arg| arg.name.trim_start_matches("mut") == name);
                if is_param && !params.contains(&name) {
                    params.push(name.clone());
                }
                given(piece, file, *function, &name, open) || is_param
            });
            if !found {
                outer(piece, file, &name, open);
                self.bare_call(piece, &name, open);
            }
        }
    }

    /// Ruby: a name that is no variable calls a method.
    fn bare_call(&self, piece: &Piece, name: &str, open: &mut Vec<Piece>) {
        if self.files[piece.file].lang != Lang::Ruby {
            return;
        }
        let own = self.named(piece.file, name).into_iter();
        for (at, function) in own.filter(|(at, _)| *at == piece.file) {
            let span = self.files[at].items[function].span.clone();
            if !(span.start <= piece.span.start && piece.span.end <= span.end) {
                open.push(Piece {
                    span,
                    kind: Kind::Helper,
                    ..piece.clone()
                });
            }
        }
    }

    fn helpers(&self, piece: &Piece, open: &mut Vec<Piece>) {
        if piece.kind == Kind::Helper && piece.span.len() > 3_000 {
            return;
        }
        let file = &self.files[piece.file];
        for call in file.calls(&piece.span) {
            for (at, function) in self.callees(piece.file, call) {
                let span = self.files[at].items[function].span.clone();
                if at == piece.file && span.start <= piece.span.start && piece.span.end <= span.end
                {
                    continue;
                }
                let site = if piece.kind == Kind::Own || piece.kind == Kind::Variable {
                    file.items[call].at()
                } else {
                    piece.site
                };
                open.push(Piece {
                    file: at,
                    span,
                    kind: Kind::Helper,
                    site,
                    is_fallback: piece.is_fallback,
                });
            }
        }
    }
}

/// What a function gives to one of its variables before the piece, and writes into it.
fn given(piece: &Piece, file: &File, function: usize, name: &str, open: &mut Vec<Piece>) -> bool {
    let body = file.items[function].span.clone();
    let mut found = false;
    for at in file.within(&body) {
        let item = &file.items[at];
        let before = item.at() < piece.span.end;
        match item.role {
            Role::Assign if item.base.is_empty() && item.name == name && before => {
                // `x = f(x)` speaks of an earlier x.
                let piece = Piece {
                    span: item.value.clone(),
                    kind: if piece.kind == Kind::Outer {
                        Kind::Outer
                    } else {
                        Kind::Variable
                    },
                    site: item.at(),
                    is_fallback: piece.is_fallback || is_fallback(file, at, name),
                    ..piece.clone()
                };
                open.push(piece);
                found = true;
            }
            Role::Assign | Role::Call
                if first(&item.base) == name && before && item.base != item.name =>
            {
                open.push(Piece {
                    span: item.span.clone(),
                    kind: Kind::Written,
                    ..piece.clone()
                });
            }
            _ => {}
        }
    }
    found
}

/// `key = key or new()`, `key ||= new()`, `if key is None: key = new()`.
fn is_fallback(file: &File, assign: usize, name: &str) -> bool {
    let item = &file.items[assign];
    let text = file.low(&item.span);
    if ["||=", "??=", "||", "??", " or ", "unwrap_or", "?:"]
        .iter()
        .any(|sign| text.contains(sign))
    {
        return true;
    }
    let condition = file.nearest(assign, Role::If);
    condition.is_some_and(|at| {
        let head = &file.items[at].value;
        !head.contains(&item.at()) && file.names(head).iter().any(|it| it == name)
    })
}

/// A variable of the file, a constant, or a field of the class.
fn outer(piece: &Piece, file: &File, name: &str, open: &mut Vec<Piece>) {
    let mut found = 0;
    for at in file.of(Role::Assign) {
        let item = &file.items[at];
        let is_field = item.base == "this" || item.base == "@";
        let is_top = item.base.is_empty() && file.function(at).is_none();
        if item.name == name && (is_field || is_top) && found < 3 {
            found += 1;
            open.push(Piece {
                span: item.value.clone(),
                kind: Kind::Outer,
                ..piece.clone()
            });
        }
    }
}

fn first(path: &str) -> &str {
    path.split('.').next().unwrap_or_default()
}
