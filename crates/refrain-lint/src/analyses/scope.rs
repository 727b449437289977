//! Keys that are looked up without a scope (tenant or caller).

use super::{Hit, calls, claims, money};
use crate::{
    file::File,
    item::{Role, Span},
    names,
    project::{Kind, Project},
};

/// Spellings of the header: its own name, and the CGI variable.
const SENT: [&str; 2] = ["idempotency-key", "http_idempotency_key"];

pub(super) fn of_nobody(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    let sent = SENT.iter().any(|word| source.lower.contains(word));
    if !sent && !source.lower.contains("header(") {
        return Vec::new();
    }
    let mut hits = Vec::new();
    let mut seen = Vec::new();
    for call in source.of(Role::Call) {
        let item = &source.items[call];
        let words = &project.words.stores;
        let nx = ["*setnx", "*setifabsent", "*.setnx"];
        let stores = names::fits_any(&item.name, &words.gets)
            || names::fits_any(&item.name, &words.sets)
            || nx.iter().any(|it| names::fits(&item.name, it));
        let function = source.method(call);
        if !stores
            || lookup_spans(source, call).is_empty()
            || claims::reads_header(source, call)
            || seen.contains(&function)
        {
            continue;
        }
        if comes_from_header(project, file, call) && !is_scoped(project, file, call) {
            seen.push(function);
            hits.push(Hit::new(
                money::position_of_call(source, call),
                "two callers with the same key share one record",
            ));
        }
    }
    hits
}

/// Byte ranges of what a call looks up: its arguments, or the chain before a bare `.first()`.
fn lookup_spans(file: &File, call: usize) -> Vec<Span> {
    let item = &file.items[call];
    if !item.args.is_empty() {
        return item.args.iter().map(|arg| arg.span.clone()).collect();
    }
    let chain = claims::lookup_span(file, call);
    let says = file.low(&chain).contains("where");
    says.then_some(chain).into_iter().collect()
}

/// Whether an argument contains the key that the caller sent.
fn comes_from_header(project: &Project, file: usize, call: usize) -> bool {
    let source = &project.files[file];
    lookup_spans(source, call).iter().any(|span| {
        let reach = project.reach(file, span);
        let near = reach.pieces.iter().filter(|piece| {
            matches!(piece.kind, Kind::Own | Kind::Variable) && piece.span.len() < 240
        });
        let read = near.into_iter().any(|piece| {
            let text = project.files[piece.file].low(&piece.span);
            text.contains(SENT[1])
                || text.contains(SENT[0])
                    && names::has_any(
                        text,
                        &["*header", "*request", "*req", "*ctx", "*environ", "*get("],
                    )
        });
        read || reach
            .params
            .iter()
            .any(|param| declared(project, file, call, param))
    })
}

/// Whether a parameter is bound to the header:
/// `@RequestHeader("Idempotency-Key") String key`, `key: str = Header(alias="Idempotency-Key")`.
fn declared(project: &Project, file: usize, call: usize, param: &str) -> bool {
    let source = &project.files[file];
    source
        .around(call)
        .filter(|at| source.items[*at].role == Role::Function)
        .any(|at| {
            source.items[at].args.iter().any(|arg| {
                arg.name == param && source.low(&arg.span).contains("idempotency-key")
                    || arg.name == param
                        && source.low(&arg.span).contains("idempotency_key")
                        && source.low(&arg.span).contains("header(")
            })
        })
}

/// Whether a scope is part of the lookup: in the arguments, in what they are made of, or in the SQL.
fn is_scoped(project: &Project, file: usize, call: usize) -> bool {
    let source = &project.files[file];
    let words = &project.words.stores.scopes;
    let own = source.low(&calls::chain(source, call));
    if names::has_any(own, words)
        || names::has_any(&source.items[call].base, &["*tenant", "*scoped", "*user"])
    {
        return true;
    }
    source.items[call].args.iter().any(|arg| {
        let pieces = project.reach(file, &arg.span).pieces;
        pieces
            .iter()
            .filter(|piece| piece.span.len() < 600 && piece.kind != Kind::Written)
            .any(|piece| names::has_any(project.files[piece.file].low(&piece.span), words))
    })
}
