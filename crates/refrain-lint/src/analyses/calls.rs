//! Calls that send requests, and whether a key is sent with them.

use crate::{
    file::File,
    item::{Role, Span},
    names,
    project::Project,
    words::Sdk,
};

/// Whether a call sends a POST request.
pub(super) fn is_post(project: &Project, file: usize, call: usize) -> bool {
    let (source, words) = (&project.files[file], &project.words.http);
    let item = &source.items[call];
    if names::fits_any(&item.name, &words.posts) || is_post_of_client(&item.name) {
        return !is_route(source, call);
    }
    names::fits_any(&item.name, &words.any_method) && says_post(source, call)
}

/// `client.r.setbody.post`: a call chain that contains a client and ends with `post`.
fn is_post_of_client(name: &str) -> bool {
    let mut segments = name.rsplit('.');
    let clients = [
        "r",
        "request",
        "newrequest",
        "client",
        "httpclient",
        "http",
        "rest",
        "webclient",
        "api",
    ];
    segments.next() == Some("post") && segments.any(|segment| clients.contains(&segment))
}

/// Whether the call defines a route: `app.post("/path", handler)`.
fn is_route(file: &File, call: usize) -> bool {
    let item = &file.items[call];
    let base = item.base.rsplit('.').next().unwrap_or_default();
    let router = [
        "app",
        "router",
        "server",
        "route",
        "routes",
        "fastify",
        "blueprint",
        "bp",
        "r",
        "mock",
        "nock",
    ];
    router.contains(&base)
        || item.args.iter().skip(1).any(|arg| {
            let handler = file
                .items
                .iter()
                .any(|it| it.role == Role::Function && it.span == arg.span);
            handler && file.lang != crate::language::Lang::Ruby
        })
}

/// Whether an argument is the method POST, as a string or a constant.
fn says_post(file: &File, call: usize) -> bool {
    let item = &file.items[call];
    let text = file.low(&item.value);
    // Only `CURLOPT_POST` counts, not `CURLOPT_POSTFIELDS`, so that one request is reported once.
    if item.tail() == "curlsetopt" {
        return text.contains("curlopt_post,") || text.contains("'post'");
    }
    [
        "\"post\"",
        "'post'",
        "methodpost",
        "method::post",
        ":post",
        "curlopt_post",
        "httpmethod.post",
    ]
    .iter()
    .any(|it| text.contains(it))
        || text.contains("bodypublishers") && file.low(&item.span).contains(".post(")
}

/// Payment SDK whose money-moving call this is.
pub(super) fn sdk<'p>(project: &'p Project, file: &File, call: usize) -> Option<&'p Sdk> {
    let item = &file.items[call];
    let found = project.words.sdks.iter().find(|sdk| {
        let ends = |call: &String| call.rsplit('.').next() == Some(item.tail());
        sdk.mentions
            .iter()
            .any(|it| file.lower.contains(it.as_str()))
            && (names::fits_any(&item.name, &sdk.calls)
                || sdk.calls.iter().any(ends) && names::fits_any(&made_of(file, call), &sdk.calls))
    })?;
    let text = file.low(&item.span);
    (!found.unless.iter().any(|word| text.contains(word.as_str()))).then_some(found)
}

/// Path of the call with the class of its receiver, if the file creates it: `$service = new PaymentsApi($client)`.
fn made_of(file: &File, call: usize) -> String {
    let item = &file.items[call];
    let made = file.items.iter().find_map(|it| {
        let same = it.role == Role::Assign && !item.base.is_empty() && it.name == item.base;
        let value = file.low(&it.value);
        let class = value.strip_prefix("new ").filter(|_| same)?;
        class.split('(').next()
    });
    let class = made.map(|class| names::path(class.trim()));
    class.map_or_else(String::new, |class| format!("{class}.{}", item.tail()))
}

/// Byte range of the whole call chain that this call is part of.
pub(super) fn chain(file: &File, call: usize) -> Span {
    let mut span = file.items[call].span.clone();
    for at in file.around(call) {
        let item = &file.items[at];
        if item.role != Role::Call || item.span.start != span.start {
            break;
        }
        span = item.span.clone();
    }
    span
}

/// Whether a key is sent with a call: in its arguments or what they are made of, in its receiver, or from its caller.
pub(super) fn has_key(project: &Project, file: usize, call: usize) -> bool {
    let source = &project.files[file];
    let span = chain(source, call);
    let reach = project.reach(file, &span);
    if reach.has(project, &project.words.key_evidence) {
        return true;
    }
    let open = [
        "opts",
        "options",
        "kwargs",
        "headers",
        "requestoptions",
        "config",
        "init",
        "reqopts",
        "extraheaders",
        "params",
        "request",
        "req",
        "builder",
    ];
    let carried = |name: &String| open.contains(&name.as_str());
    let in_loop_of_own =
        reach.params.iter().any(carried) && passes(project, file, call, &reach.params);
    in_loop_of_own || follows(project, file, call)
}

/// Whether a parameter that can carry a key is passed on to the call as a whole.
fn passes(project: &Project, file: usize, call: usize, params: &[String]) -> bool {
    let source = &project.files[file];
    let mut certain = vec![
        "opts",
        "options",
        "kwargs",
        "headers",
        "requestoptions",
        "init",
        "reqopts",
        "extraheaders",
    ];
    // An SDK takes its key beside the request, not inside it.
    if sdk(project, source, call).is_none() {
        certain.extend(["request", "req", "builder"]);
    }
    let item = &source.items[call];
    item.args.iter().any(|arg| {
        let text = names::fold(&source.text[arg.span.clone()]);
        let text = text.trim_start_matches("init");
        params.iter().any(|param| {
            certain.contains(&param.as_str()) && (text == param || text.starts_with(param.as_str()))
        })
    })
}

/// Whether a later statement adds the key: `req = new Request(…)`, then `req.Header.Set("Idempotency-Key", …)`.
fn follows(project: &Project, file: usize, call: usize) -> bool {
    let source = &project.files[file];
    let Some(assign) = source
        .around(call)
        .find(|at| source.items[*at].role == Role::Assign)
    else {
        return false;
    };
    let Some(function) = source.function(call) else {
        return false;
    };
    let assigned = &source.items[assign];
    // An assignment to several variables has one item for each, with the same byte range.
    let names: Vec<&str> = source
        .within(&assigned.span)
        .chain([assign])
        .chain(
            (assign.saturating_sub(3)..assign).filter(|at| source.items[*at].span == assigned.span),
        )
        .map(|at| &source.items[at])
        .filter(|it| it.role == Role::Assign && it.span == assigned.span)
        .map(|it| it.name.as_str())
        .collect();
    let rest = assigned.span.end..source.items[function].span.end;
    source.within(&rest).any(|at| {
        let item = &source.items[at];
        let base = item.base.split('.').next().unwrap_or_default();
        let written = matches!(item.role, Role::Call | Role::Assign) && names.contains(&base);
        let handed = item.role == Role::Call
            && item
                .args
                .iter()
                .any(|arg| names.contains(&names::fold(&source.text[arg.span.clone()]).as_str()));
        (written
            && project
                .reach(file, &item.span)
                .has(project, &project.words.key_evidence))
            || (handed
                && project.callees(file, at).iter().any(|(at, function)| {
                    let span = &project.files[*at].items[*function].span;
                    names::has_any(project.files[*at].low(span), &project.words.key_evidence)
                }))
    })
}

/// URL of a call, in lower case, with the values of its variables.
pub(super) fn address(project: &Project, file: usize, call: usize) -> String {
    let source = &project.files[file];
    let item = &source.items[call];
    let mut text = String::new();
    for arg in item.args.iter().take(3) {
        let is_address = arg.name.is_empty() || matches!(arg.name.as_str(), "url" | "uri" | "path");
        if !is_address || source.low(&arg.span).starts_with(['{', '[']) {
            continue;
        }
        text.push_str(source.low(&arg.span));
        text.push(' ');
        let names = source.names(&arg.span);
        if names.len() <= 6 {
            for piece in project.reach(file, &arg.span).pieces.iter().take(6) {
                if piece.span.len() < 200 {
                    text.push_str(project.files[piece.file].low(&piece.span));
                    text.push(' ');
                }
            }
        }
        if text.contains('/') || !names.is_empty() && text.contains("url") {
            break;
        }
    }
    if !text.contains('/') {
        // `newBuilder(uri).POST(body)` and `post().uri(uri)` have the URL elsewhere in the chain.
        let chain = chain(source, call);
        let whole = if item.args.is_empty() {
            chain
        } else {
            item.span.start..item.value.start
        };
        let texts = source.within(&whole).map(|at| &source.items[at]);
        for it in texts.filter(|it| it.role == Role::Text) {
            let part = source.low(&it.span);
            if part.contains('/') {
                text.push_str(part);
                text.push(' ');
            }
        }
    }
    text
}
