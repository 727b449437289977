//! Keys that change on every attempt.

use super::{Hit, calls};
use crate::{
    file::File,
    item::{Role, Span},
    names,
    project::{Kind, Piece, Project},
    rule::Severity,
};

mod attempts;

/// A place that holds a key: a header, an option, a member, or a variable with that name.
pub(super) struct Slot {
    pub(super) item: usize,
    pub(super) value: Span,
    /// Whether the key is sent with a request.
    pub(super) is_sent: bool,
    /// Whether the key is stored in a field of a record, and not sent.
    pub(super) is_kept: bool,
}

/// A random or time-based part of a key.
struct Part {
    at: usize,
    /// The piece of the value that contains it.
    piece: Piece,
}

pub(super) fn in_retry_loop(project: &Project, file: usize) -> Vec<Hit> {
    judged(project, file, "loop")
}

pub(super) fn per_attempt(project: &Project, file: usize) -> Vec<Hit> {
    judged(project, file, "attempt")
}

pub(super) fn from_clock(project: &Project, file: usize) -> Vec<Hit> {
    judged(project, file, "clock")
}

fn judged(project: &Project, file: usize, which: &str) -> Vec<Hit> {
    let source = &project.files[file];
    if !names::has_any(
        &source.lower,
        &[
            "*idempot",
            "*paypal-request-id",
            "*paypal_request_id",
            "*paypalrequestid",
            "*idem_key",
            "*idemkey",
        ],
    ) {
        return Vec::new();
    }
    let mut hits: Vec<(&str, Hit)> = Vec::new();
    for slot in slots(project, source) {
        if let Some((kind, hit)) = judge(project, file, &slot) {
            let line = |at: usize| source.text[..at].matches('\n').count();
            if !hits.iter().any(|(_, known)| line(known.at) == line(hit.at)) {
                hits.push((kind, hit));
            }
        }
    }
    let mine = hits.into_iter().filter(|(kind, _)| *kind == which);
    mine.map(|(_, hit)| hit).collect()
}

/// All places that hold a key.
pub(super) fn slots(project: &Project, file: &File) -> Vec<Slot> {
    let is_key = |name: &str| project.words.key_names.iter().any(|it| it == name);
    let mut slots = Vec::new();
    for (at, item) in file.items.iter().enumerate() {
        match item.role {
            Role::Assign | Role::Pair if is_key(&item.name) => {
                let carrier = item.base.rsplit('.').next().unwrap_or_default();
                let carrier = [
                    "headers",
                    "header",
                    "params",
                    "opts",
                    "options",
                    "request",
                    "req",
                    "config",
                    "body",
                    "payload",
                    "requestoptions",
                ]
                .contains(&carrier);
                let key = &file.text[item.span.start..item.value.start.max(item.span.start)];
                let header = key.contains('-') && !key.contains("->");
                let in_call = item.role == Role::Pair && sends(project, file, at);
                let is_kept =
                    (item.role == Role::Assign && !item.base.is_empty() && !carrier && !header)
                        || (item.role == Role::Pair
                            && !header
                            && !in_call
                            && keeps_around(project, file, at));
                slots.push(Slot {
                    item: at,
                    value: item.value.clone(),
                    is_sent: header || carrier || in_call,
                    is_kept,
                });
            }
            Role::Call => slots.extend(in_call(file, at, is_key)),
            _ => {}
        }
    }
    slots
}

/// `.header("Idempotency-Key", value)` and `.setIdempotencyKey(value)`.
fn in_call(file: &File, at: usize, is_key: impl Fn(&str) -> bool) -> Option<Slot> {
    let item = &file.items[at];
    let tail = item.tail();
    let setter = tail
        .strip_prefix("set")
        .or(tail.strip_prefix("with"))
        .unwrap_or(tail);
    let value = match item.args.as_slice() {
        [only] if is_key(setter) && only.name.is_empty() => only.span.clone(),
        args => {
            let named = args.windows(2).find(|pair| {
                let text = &file.text[pair[0].span.clone()];
                text.starts_with(['"', '\'', ':', '`', 'b']) && is_key(&names::fold(text))
            })?;
            named[1].span.clone()
        }
    };
    let reads = matches!(tail, "get" | "getheader" | "header" if item.args.len() == 1);
    (!reads).then_some(Slot {
        item: at,
        value,
        is_sent: true,
        is_kept: false,
    })
}

fn sends(project: &Project, file: &File, pair: usize) -> bool {
    file.around(pair).take(8).any(|at| {
        let item = &file.items[at];
        item.role == Role::Call
            && (calls::sdk(project, file, at).is_some()
                || names::fits_any(&item.name, &project.words.http.posts)
                || names::fits_any(&item.name, &project.words.http.any_method))
    })
}

/// Whether the enclosing call creates or saves a record with the key.
fn keeps_around(project: &Project, file: &File, at: usize) -> bool {
    let call = file
        .around(at)
        .take(6)
        .find(|at| file.items[*at].role == Role::Call);
    call.is_some_and(|at| keeps(project, file, at))
}

fn keeps(project: &Project, file: &File, call: usize) -> bool {
    let item = &file.items[call];
    let base = item.base.rsplit('.').next().unwrap_or_default();
    let carrier = [
        "header", "headers", "params", "req", "request", "opts", "options", "builder", "config",
    ]
    .contains(&base);
    let sends = calls::sdk(project, file, call).is_some()
        || names::fits_any(&item.name, &project.words.http.posts);
    let slot = item
        .args
        .iter()
        .any(|arg| file.low(&arg.span).trim_matches(['"', '\'']) == "idempotency-key");
    !carrier && !sends && !slot && names::fits_any(&item.name, &project.words.stores.keeps)
}

fn judge(project: &Project, file: usize, slot: &Slot) -> Option<(&'static str, Hit)> {
    let source = &project.files[file];
    let reach = project.reach(file, &slot.value);
    let minted = part(project, &reach.pieces, &project.words.mints);
    let clock = part(project, &reach.pieces, &project.words.clocks);
    let day = part(project, &reach.pieces, &project.words.days);
    if let Some(part) = &minted
        && let Some(found) = judge_mint(project, file, slot, part)
        && (clock.is_none() || found.1.severity != Some(Severity::Hint))
    {
        return Some(found);
    }
    if let Some(at) = attempts::counted(project, file, slot, &reach.pieces) {
        let note = "the attempt number is part of the key, so each attempt has another key";
        return Some(("attempt", Hit::new(at, note)));
    }
    let (part, is_day) = match (clock, day) {
        (_, Some(day)) => (day, true),
        (Some(clock), None) => (clock, false),
        _ => return None,
    };
    if part.piece.is_fallback
        || part.piece.kind == Kind::Outer && source.function(slot.item).is_none()
    {
        return None;
    }
    let hit = Hit::new(
        site(file, &part),
        "the current time is part of the key, so the next attempt has another key",
    );
    Some((
        "clock",
        if is_day {
            hit.with_severity(Severity::Hint)
        } else {
            hit
        },
    ))
}

/// Position to report in this file.
fn site(file: usize, part: &Part) -> usize {
    match part.piece.file == file && part.piece.kind != Kind::Helper {
        true => part.at,
        false => part.piece.site,
    }
}

fn judge_mint(
    project: &Project,
    file: usize,
    slot: &Slot,
    part: &Part,
) -> Option<(&'static str, Hit)> {
    let source = &project.files[file];
    let site = site(file, part);
    let here = source.innermost(&(site..site + 1))?;
    let rerun = project.rerun(file, here);
    if let Some(rerun) = rerun
        .as_ref()
        .filter(|it| it.is_loop && source.items[it.around].holds(&slot.value))
    {
        if part.piece.is_fallback || slot.is_kept {
            return None;
        }
        return Some((
            "loop",
            Hit::new(site, format!("generated again: {}", rerun.why)),
        ));
    }
    if part.piece.is_fallback || slot.is_kept || is_stored(project, file, slot, part, site) {
        return None;
    }
    source.function(here)?;
    if let Some(rerun) = rerun {
        let used = slot.is_sent || is_used(source, slot);
        return used.then(|| {
            (
                "attempt",
                Hit::new(
                    site,
                    format!("each execution generates another key: {}", rerun.why),
                ),
            )
        });
    }
    if let Some(who) = per_request(source, slot.item) {
        return Some((
            "attempt",
            Hit::new(
                site,
                format!("{who} runs for each request, retries included"),
            )
            .with_severity(Severity::Warning),
        ));
    }
    let item = &source.items[slot.item];
    let reused = project
        .rerun(file, slot.item)
        .is_some_and(|it| !source.items[it.around].span.contains(&site));
    if reused {
        return None;
    }
    if slot.is_sent && (item.role != Role::Assign || !item.base.is_empty()) {
        let hit = Hit::new(
            site,
            "it is not stored before the call: after a crash or a timeout the key is lost",
        );
        return Some(("attempt", hit.with_severity(Severity::Hint)));
    }
    None
}

/// Whether a later call in the same function uses the variable; a key that is not in a variable counts as used.
fn is_used(file: &File, slot: &Slot) -> bool {
    let item = &file.items[slot.item];
    let Some(function) = file.function(slot.item) else {
        return false;
    };
    let rest = item.span.end..file.items[function].span.end;
    item.role != Role::Assign
        || file.calls(&rest).any(|call| {
            file.items[call]
                .args
                .iter()
                .any(|arg| file.names(&arg.span).contains(&item.name))
        })
}

/// Name of the enclosing function that an HTTP client calls for each request, such as an interceptor.
fn per_request(file: &File, item: usize) -> Option<String> {
    for at in file
        .around(item)
        .filter(|at| file.items[*at].role == Role::Function)
    {
        let function = &file.items[at];
        let name = &function.name;
        let words = [
            "header",
            "interceptor",
            "intercept",
            "beforerequest",
            "roundtrip",
            "signrequest",
            "requestoptions",
            "preparerequest",
            "defaultoptions",
            "createrequest",
            "buildrequest",
        ];
        if words.iter().any(|word| name.contains(word)) {
            return Some(format!("`{name}`"));
        }
        let parent = &file.items[function.parent];
        let hook = [
            "interceptors.request.use",
            "beforerequest",
            "*maprequest",
            "*requestinterceptor",
            "addinterceptor",
            "*onrequest",
            "*.prependrequest",
        ];
        let in_hook = file
            .around(at)
            .take(3)
            .any(|around| file.items[around].name == "beforerequest");
        if in_hook
            || parent.role == Role::Call && hook.iter().any(|it| names::fits(&parent.name, it))
        {
            return Some("an interceptor".into());
        }
    }
    None
}

/// First piece that contains one of the words.
fn part(project: &Project, pieces: &[Piece], words: &[String]) -> Option<Part> {
    let usable = pieces
        .iter()
        .filter(|piece| !matches!(piece.kind, Kind::Written | Kind::Outer));
    for piece in usable {
        let text = project.files[piece.file].low(&piece.span);
        let at = words
            .iter()
            .filter_map(|word| names::find(text, word))
            .min();
        if let Some(at) = at {
            return Some(Part {
                at: piece.span.start + at,
                piece: piece.clone(),
            });
        }
    }
    None
}

/// Whether the key is stored before it is sent.
fn is_stored(project: &Project, file: usize, slot: &Slot, part: &Part, site: usize) -> bool {
    if part.piece.kind == Kind::Helper {
        let helper = &project.files[part.piece.file];
        let kept = helper
            .calls(&part.piece.span)
            .any(|call| keeps(project, helper, call));
        let fields = helper.within(&part.piece.span).any(|at| {
            helper.items[at].role == Role::Assign
                && !helper.items[at].base.is_empty()
                && !helper.low(&helper.items[at].span).contains("header")
        });
        if kept || fields {
            return true;
        }
    }
    let source = &project.files[file];
    let Some(here) = source.innermost(&(site..site + 1)) else {
        return false;
    };
    if source
        .around(here)
        .chain([here])
        .any(|at| source.items[at].role == Role::Call && keeps(project, source, at))
    {
        return true;
    }
    let Some(function) = source.function(here) else {
        return true;
    };
    let var = source
        .around(here)
        .chain([here])
        .find(|at| source.items[*at].role == Role::Assign);
    let Some(var) = var.map(|at| source.items[at].name.clone()) else {
        return false;
    };
    let body = source.items[function].span.clone();
    let send = source.calls(&body).find(|at| {
        source.items[*at].at() > site
            && (calls::sdk(project, source, *at).is_some() || calls::is_post(project, file, *at))
    });
    let until = send
        .map_or(slot.value.start, |at| source.items[at].at())
        .max(slot.value.start);
    source.within(&(site..until.max(site))).any(|at| {
        let item = &source.items[at];
        let field = item.role == Role::Assign
            && !item.base.is_empty()
            && item.base != "headers"
            && at != slot.item
            && !item.base.ends_with("header")
            && !item.base.ends_with("headers")
            && source.names(&item.value).contains(&var);
        let kept = item.role == Role::Call
            && keeps(project, source, at)
            && item
                .args
                .iter()
                .any(|arg| source.names(&arg.span).contains(&var));
        field || kept
    })
}
