//! POST requests that are retried without a key.

use super::{Hit, calls, money};
use crate::{
    item::{Role, Span},
    names,
    project::Project,
    rule::Severity,
    words::Retrying,
};

pub(super) fn without_key(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    let mut hits = Vec::new();
    for call in source.of(Role::Call) {
        if !calls::is_post(project, file, call) {
            continue;
        }
        let address = calls::address(project, file, call);
        if names::has_any(&address, &project.words.http.reads) {
            continue;
        }
        let Some((why, sure)) = retried(project, file, call) else {
            continue;
        };
        if calls::has_key(project, file, call) {
            continue;
        }
        let hit = Hit::new(money::position_of_call(source, call), why);
        hits.push(if sure {
            hit
        } else {
            hit.with_severity(Severity::Hint)
        });
    }
    hits
}

/// What retries a call, and whether that is certain.
pub(super) fn retried(project: &Project, file: usize, call: usize) -> Option<(String, bool)> {
    if let Some(rerun) = project.rerun(file, call) {
        return Some((format!("sent again: {}", rerun.why), true));
    }
    let source = &project.files[file];
    if let Some(again) = further_down(source, call) {
        return Some((format!("sent again: `{again}` below"), true));
    }
    let client = project
        .words
        .retrying
        .iter()
        .find(|it| retries_posts(&source.lower, it))?;
    let made_here = uses(project, file, call, client);
    made_here.then(|| (format!("{} retries POST here", client.name), true))
}

/// Operator later in the same chain that reruns it: `.retryWhen(…)`, `.pipe(retry(3))`.
fn further_down(file: &crate::file::File, call: usize) -> Option<String> {
    let rest = file.items[call].span.end..calls::chain(file, call).end;
    let chained = |at: &usize| {
        let it = &file.items[*at];
        it.span.start == file.items[call].span.start && it.span.end > rest.start
    };
    let chain = file.around(call).filter(chained);
    let piped = file.calls(&rest);
    chain
        .chain(piped)
        .map(|at| file.items[at].tail())
        .find(|tail| matches!(*tail, "retry" | "retrywhen" | "retrybackoff"))
        .map(Into::into)
}

/// Whether a file configures a client to retry POST.
fn retries_posts(lower: &str, client: &Retrying) -> bool {
    let Some(at) = client
        .mentions
        .iter()
        .find_map(|word| lower.find(word.as_str()))
    else {
        return false;
    };
    if !client.also.is_empty() && !client.also.iter().any(|word| lower.contains(word.as_str())) {
        return false;
    }
    // The settings follow within 900 bytes.
    let end = lower.len().min(at + 900);
    let settings: String = lower.get(at..end).unwrap_or(&lower[at..]).into();
    if client
        .off
        .iter()
        .any(|word| settings.contains(word.as_str()))
    {
        return false;
    }
    let near = match client.near.as_str() {
        "" => Some(settings.as_str()),
        member => settings
            .find(member)
            .map(|at| &settings[at..settings.len().min(at + 80)]),
    };
    client.posts
        || near.is_some_and(|text| client.on.iter().any(|word| text.contains(word.as_str())))
}

/// Whether the call uses that client: its receiver is created with it, or is the library itself.
fn uses(project: &Project, file: usize, call: usize, client: &Retrying) -> bool {
    let source = &project.files[file];
    let item = &source.items[call];
    let span = calls::chain(source, call);
    let said = |text: &str| {
        let short = [
            "retry", "retri", "axios", "got", "ky", "resty", "faraday", "excon",
        ];
        client
            .mentions
            .iter()
            .any(|word| text.contains(word.as_str()))
            || short.iter().any(|word| text.contains(word))
    };
    if said(source.low(&span)) {
        return true;
    }
    let last = item.base.rsplit('.').next().unwrap_or_default();
    let mentions: Vec<String> = client.mentions.iter().map(|it| format!("*{it}")).collect();
    let named = source.items.iter().any(|it| {
        let is_value = matches!(it.role, Role::Assign | Role::Pair);
        let same = is_value && item.base.split('.').any(|segment| segment == it.name);
        same && (said(source.low(&it.span))
            || project.reach(file, &it.value).has(project, &mentions)
            || is_built_of(project, file, &it.value, &mentions))
    });
    let built = item.base.split('.').any(|segment| {
        let own = project.named(file, segment).into_iter();
        own.filter(|(at, _)| *at == file)
            .any(|(_, function)| said(source.low(&source.items[function].span)))
    });
    let handed = source.of(Role::Call).any(|at| {
        let it = &source.items[at];
        let configured = said(source.low(&it.span))
            || it.tail() == "mount" && project.reach(file, &it.span).has(project, &["*retry("]);
        configured
            && (it.base == item.base
                || it.base.ends_with(last) && !last.is_empty()
                || it
                    .args
                    .iter()
                    .any(|arg| names::fold(&source.text[arg.span.clone()]) == last))
    });
    named || built || handed
}

/// Whether the value is made of an object that a call configured:
/// `$stack->push(Middleware::retry(…))`, then `new Client(['handler' => $stack])`.
fn is_built_of(project: &Project, file: usize, value: &Span, mentions: &[String]) -> bool {
    let source = &project.files[file];
    let parts = source.names(value);
    source.of(Role::Call).any(|at| {
        let it = &source.items[at];
        parts.contains(&it.base) && names::has_any(source.low(&it.value), mentions)
    })
}
