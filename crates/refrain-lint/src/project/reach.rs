//! Data flow: traces a value back through variables, writes into them, and helpers of the same project.

use super::Project;
use crate::{
    file::File,
    item::{Role, Span},
    language::Lang,
    names,
};

/// Maximum number of pieces of one value.
const PIECES_MAX: usize = 48;

/// Maximum number of items to visit for one value, which bounds the time for huge generated functions.
const ITEMS_MAX: usize = 1_000_000;

/// How a piece contributes to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Part of the expression itself.
    Own,
    /// Assigned to a variable of the function.
    Variable,
    /// Written into a variable: an element, a setter.
    Written,
    /// Body of a called function of the project.
    Helper,
    /// Assigned to a variable outside the function: of the file or the class.
    Outer,
}

/// Byte range that contributes to a value.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) file: usize,
    pub(crate) span: Span,
    pub(crate) kind: Kind,
    /// Position in the first function where the piece enters the value.
    pub(crate) site: usize,
    /// Whether the piece is only used if there was no value before.
    pub(crate) is_fallback: bool,
}

/// Everything that contributes to a value.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    pub(crate) pieces: Vec<Piece>,
    /// Function parameters that contribute to the value.
    pub(crate) params: Vec<String>,
}

impl Reach {
    /// Whether any piece contains one of the words.
    pub(crate) fn has<S: AsRef<str>>(&self, project: &Project, words: &[S]) -> bool {
        let mut pieces = self.pieces.iter();
        pieces.any(|piece| names::has_any(project.files[piece.file].low(&piece.span), words))
    }
}

impl Project {
    /// Traces a byte range back to everything that contributes to it.
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
        let mut looked_at = 0;
        while let Some(piece) = open.pop() {
            let known = reach
                .pieces
                .iter()
                .any(|it| it.file == piece.file && it.span == piece.span);
            if known || reach.pieces.len() >= PIECES_MAX {
                continue;
            }
            if piece.kind != Kind::Helper && looked_at < ITEMS_MAX {
                looked_at += self.variables(&piece, &mut open, &mut reach.params);
            }
            self.helpers(&piece, &mut open);
            reach.pieces.push(piece);
        }
        reach
    }

    /// Follows the variables of a piece; returns the number of visited items.
    fn variables(&self, piece: &Piece, open: &mut Vec<Piece>, params: &mut Vec<String>) -> usize {
        let file = &self.files[piece.file];
        let Some(inner) = file.innermost(&piece.span) else {
            return 0;
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
        let inside = functions.last().map(|at| file.items[*at].last - at);
        let items = inside.unwrap_or_default() + file.items.len() / 8;
        let names = file.names(&piece.span);
        let most = ITEMS_MAX / items.max(1) + 1;
        let count = names.len().min(most);
        for name in names.into_iter().take(most) {
            let found = functions.iter().any(|function| {
                let item = &file.items[*function];
                let is_param = item
                    .args
                    .iter()
                    .any(|arg| arg.name.trim_start_matches("mut") == name);
                if is_param && !params.contains(&name) {
                    params.push(name.clone());
                }
                add_assigned(piece, file, *function, &name, open) || is_param
            });
            if !found {
                add_outer(piece, file, &name, open);
                self.bare_call(piece, &name, open);
            }
        }
        count * items
    }

    /// Ruby: a name that is not a variable calls a method.
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

/// Adds what a function assigns to one of its variables before the piece, or writes into it.
fn add_assigned(
    piece: &Piece,
    file: &File,
    function: usize,
    name: &str,
    open: &mut Vec<Piece>,
) -> bool {
    let body = file.items[function].span.clone();
    let mut found = false;
    for at in file.within(&body) {
        let item = &file.items[at];
        let before = item.at() < piece.span.end;
        match item.role {
            Role::Assign if item.base.is_empty() && item.name == name && before => {
                // `x = f(x)` refers to an earlier `x`.
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

/// Adds values of a variable of the file, a constant, or a field of the class.
fn add_outer(piece: &Piece, file: &File, name: &str, open: &mut Vec<Piece>) {
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
