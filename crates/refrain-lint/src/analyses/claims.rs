//! Check-then-act on a key without an atomic claim: two concurrent requests both pass the check.

use super::{Hit, marks, money, work};
use crate::{
    file::File,
    item::{Role, Span},
    names,
    project::Project,
};

/// Words that tell a lookup of a key from a lookup in a cache.
const KEYED: [&str; 14] = [
    "*idempot",
    "*dedup",
    "*processed",
    "*already",
    "*seen",
    "idem:",
    "idem_",
    "*event_id",
    "*message_id",
    "*eventid",
    "*messageid",
    "*request_key",
    "*webhook_id",
    "*handled",
];

pub(super) fn check_then_act(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    if !names::has_any(&source.lower, &KEYED) {
        return Vec::new();
    }
    let mut hits: Vec<Hit> = Vec::new();
    let mut seen = Vec::new();
    let mut marks = None;
    for get in source.of(Role::Call) {
        let item = &source.items[get];
        let asks = names::fits_any(&item.name, &project.words.stores.gets)
            && lookup_span(source, get).len() > 2;
        // Top-level code of a file counts as one function.
        let function = source.method(get);
        if !asks || seen.contains(&function) {
            continue;
        }
        let in_memory = matches!(
            item.tail(),
            "has" | "get" | "contains" | "containskey" | "includes" | "include"
        ) && names::has_any(&item.base, &["*seen", "*visited", "*processed"])
            && !is_shared(&item.base);
        if in_memory
            || !is_keyed(project, file, get)
            || reads_header(source, get)
            || is_atomic(project, file, function)
        {
            continue;
        }
        let Some(set) = written_later(project, file, function, get) else {
            continue;
        };
        // The rule for marks before the work already reports this one.
        if marks
            .get_or_insert_with(|| marks::marks(project, file))
            .contains(&set)
        {
            continue;
        }
        seen.push(function);
        let note = format!(
            "`{}` writes it only later, so two concurrent requests both find nothing",
            source.items[set].name
        );
        // If the start of the chain names the key, report the start of the chain.
        let place = match names::has_any(source.low(&item.value), &KEYED)
            || !names::has_any(source.low(&(item.span.start..item.value.start)), &KEYED)
        {
            true => money::position_of_call(source, get),
            false => item.at(),
        };
        hits.push(Hit::new(place, note));
    }
    hits
}

/// Whether the receiver is a store; any other set called `seen` is local to the process.
pub(super) fn is_shared(base: &str) -> bool {
    names::has_any(
        base,
        &[
            "*redis",
            "*cache",
            "*store",
            "*repo",
            "*db",
            "*client",
            "*kv",
            "*table",
            "*collection",
        ],
    )
}

/// Byte range of what a call looks up: its arguments, or the chain before a bare `.first()` or a `.First(&found)`.
pub(super) fn lookup_span(file: &File, call: usize) -> Span {
    const CHAIN_BYTES_MAX: usize = 400;
    let item = &file.items[call];
    let chain = item.span.start..item.value.start;
    let conditions = file.low(&chain).contains("where");
    match item.args.is_empty() {
        true if item.name.matches('.').count() > 1 => chain,
        false if conditions && chain.len() < CHAIN_BYTES_MAX => item.span.start..item.value.end,
        _ => item.value.clone(),
    }
}

/// Whether a call reads or writes a store.
pub(super) fn is_store(project: &Project, file: &File, call: usize) -> bool {
    let name = &file.items[call].name;
    let words = &project.words.stores;
    let nx = ["*setnx", "*setifabsent", "*sadd", "*.expire", "*.setnx"];
    let writes = names::fits_any(name, &words.sets)
        && !names::fits_any(
            name,
            &[
                "*.create".into(),
                "*.save".into(),
                "create".into(),
                "save".into(),
            ],
        );
    names::fits_any(name, &words.gets) || writes || nx.iter().any(|it| names::fits(name, it))
}

/// Whether the call reads the request and not a store: `request.headers.get("Idempotency-Key")`.
pub(super) fn reads_header(file: &File, call: usize) -> bool {
    let item = &file.items[call];
    let base = &item.base;
    [
        "header",
        "headers",
        "request",
        "req",
        "params",
        "query",
        "metadata",
        "environ",
        "attributes",
        "meta",
        "dict",
        "json",
        "body",
        "data",
        "payload",
        "args",
        "kwargs",
        "event",
        "message",
        "msg",
    ]
    .iter()
    .any(|word| base.rsplit('.').next() == Some(*word))
        || file
            .low(&item.value)
            .trim_matches(['(', ')', '"', '\'', ' '])
            .eq_ignore_ascii_case("idempotency-key")
}

/// Whether the arguments, or what they are made of, contain a key.
pub(super) fn is_keyed(project: &Project, file: usize, call: usize) -> bool {
    let source = &project.files[file];
    let item = &source.items[call];
    if names::has_any(source.low(&lookup_span(source, call)), &KEYED)
        || names::has_any(&item.base, &["*idempot", "*dedup"])
        || names::has_any(&item.base, &["*processed", "*seen"]) && is_shared(&item.base)
        || names::has_any(item.tail(), &["*idempot", "*eventid", "*messageid"])
    {
        return true;
    }
    item.args.iter().any(|arg| {
        let pieces = project.reach(file, &arg.span).pieces;
        pieces
            .iter()
            .filter(|piece| piece.span.len() < 200)
            .any(|piece| names::has_any(project.files[piece.file].low(&piece.span), &KEYED))
    })
}

/// Byte range of the function, or of the whole file.
fn body(file: &File, function: Option<usize>) -> Span {
    function.map_or(0..file.text.len(), |at| file.items[at].span.clone())
}

/// Whether the function, or a function that it calls, has an atomic operation or a lock.
fn is_atomic(project: &Project, file: usize, function: Option<usize>) -> bool {
    let source = &project.files[file];
    let span = &body(source, function);
    let words = &project.words.stores.atomic;
    let marked = function
        .is_some_and(|at| names::has_any(&source.items[at].base, &["*serializable", "*lock"]));
    marked
        || names::has_any(source.low(span), words)
        || source.calls(span).any(|call| {
            let callees = project.callees(file, call);
            callees.iter().any(|(at, function)| {
                let helper = &project.files[*at];
                names::has_any(helper.low(&helper.items[*function].span), words)
            })
        })
}

/// The write that follows the work, or that is the work.
fn written_later(
    project: &Project,
    file: usize,
    function: Option<usize>,
    get: usize,
) -> Option<usize> {
    let source = &project.files[file];
    let end = body(source, function).end;
    let after = source.items[get].span.end..end;
    let names_of = |call: usize| -> Vec<String> {
        source.items[call]
            .args
            .iter()
            .flat_map(|arg| source.names(&arg.span))
            .filter(|name| {
                name.len() > 1
                    && ![
                        "ctx", "context", "true", "false", "json", "self", "this", "params", "err",
                    ]
                    .contains(&name.as_str())
            })
            .collect()
    };
    let asked = names_of(get);
    source.calls(&after).find(|set| {
        let item = &source.items[*set];
        let writes =
            names::fits_any(&item.name, &project.words.stores.sets) && !item.args.is_empty();
        let text = source.low(&item.value);
        let inserts = text.contains("insert into")
            || matches!(
                item.tail(),
                "create" | "save" | "insert" | "insertone" | "persist"
            );
        let selects = text.contains("select ") || text.contains("begin");
        let elsewhere = function.is_none() && source.method(*set).is_some();
        if !writes || selects || elsewhere || reads_header(source, *set) {
            return false;
        }
        let same =
            names_of(*set).iter().any(|name| asked.contains(name)) || is_keyed(project, file, *set);
        let worked = source
            .calls(&(source.items[get].span.end..item.at()))
            .any(|call| work::is_work(project, source, call) && !is_store(project, source, call));
        same && (worked || inserts)
    })
}
