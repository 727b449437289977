//! The operations of an API description: selected, filled with samples, shown, and sent after confirmation.

use std::{
    io::{self, IsTerminal as _},
    path::PathBuf,
};

use refrain_openapi::{Document, Kind, sample};
use refrain_verify::verify::{self, Operation, OperationReport, Plan, Trouble};

use super::{Args, is_agreed, print_status};
use crate::proxy::Failure;

/// The most operations in one run.
const OPERATIONS_MAX: usize = 100;
/// The most characters of a body that are shown.
const SHOWN_CHARS_MAX: usize = 600;
/// The exit code for wrong usage, as clap uses it.
const USAGE: u8 = 2;
const DEFAULT_KEY: &str = "Idempotency-Key";
/// A placeholder in a path for the identifier of a resource that is created first.
const CREATED: &str = "refrain-verify-created";

/// Flags about an API description.
#[derive(Debug, clap::Args)]
pub(super) struct Description {
    /// OpenAPI 3 or Swagger 2 description: test all its mutating operations, or only the one of --op
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub(super) openapi: Option<PathBuf>,
    /// Value of a parameter in the description, such as the id of an existing resource; may be given several times
    #[arg(long = "param", value_name = "NAME=VALUE", requires = "openapi")]
    params: Vec<String>,
}

/// The operations of a description: those to test, and those left out.
#[derive(Debug)]
pub(super) struct Described {
    chosen: Vec<Chosen>,
    left_out: Vec<OperationReport>,
}

/// An operation to test.
#[derive(Debug)]
struct Chosen {
    operation: Operation,
    /// The path parameter that names a resource, and the operation that creates the resource first.
    parent: Option<(String, Operation)>,
}

/// Reads the description, if one is named, and sets its base path in the plan.
pub(super) fn read(args: &Args, plan: &mut Plan) -> Result<Option<Described>, Failure> {
    let Some(path) = &args.described.openapi else {
        return Ok(None);
    };
    let bad = |why: String| Failure::Configuration(format!("refrain: {why}"));
    let document = Document::read(path).map_err(|error| bad(error.to_string()))?;
    if document.is_async() {
        return Err(bad(format!(
            "{}: describes messages, not requests; test a consumer with --worker",
            path.display()
        )));
    }
    plan.target = plan.target.clone().or_prefix(&document.base_path());
    plan.leaves_out = true;
    let mut options = sample::Options {
        seed: plan.seed,
        unique: Some("{{unique}}".into()),
        given: Default::default(),
    };
    for text in &args.described.params {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| bad(format!("--param {text}: expected --param NAME=VALUE")))?;
        options.given.insert(name.into(), value.into());
    }
    let described = choose(args, &document, &options).map_err(bad)?;
    match described.chosen.is_empty() {
        true => Err(bad(describe_left_out(path, &described))),
        false => Ok(Some(described)),
    }
}

fn describe_left_out(path: &std::path::Path, described: &Described) -> String {
    let why = described.left_out.iter().map(|it| {
        let why = it.left_out.as_deref().unwrap_or_default();
        format!("\n  {}: {why}", it.operation)
    });
    let why: String = why.collect();
    format!("{}: no operation can be tested{why}", path.display())
}

fn choose(
    args: &Args,
    document: &Document,
    options: &sample::Options,
) -> Result<Described, String> {
    let all = document.operations();
    let name = |it: &refrain_openapi::Operation<'_>| format!("{} {}", it.method(), it.path());
    let is_change = |it: &&refrain_openapi::Operation<'_>| {
        it.kind() == Kind::Path && matches!(it.method(), "POST" | "PUT" | "PATCH" | "DELETE")
    };
    let is_named =
        |it: &&refrain_openapi::Operation<'_>| args.op.as_ref().is_none_or(|op| *op == name(it));
    let changes: Vec<_> = all.iter().filter(is_change).filter(is_named).collect();
    if let (Some(op), true) = (&args.op, changes.is_empty()) {
        let known: Vec<_> = all.iter().filter(is_change).map(name).collect();
        return Err(format!(
            "--op {op}: the description has no such operation; it has {}",
            known.join(", ")
        ));
    }
    if changes.len() > OPERATIONS_MAX {
        return Err(format!(
            "the description has more than {OPERATIONS_MAX} operations; select one with --op"
        ));
    }
    if args.body.is_some() && args.op.is_none() {
        return Err(
            "--body with --openapi needs --op: every operation has a body of its own".into(),
        );
    }
    let mut described = Described {
        chosen: Vec::new(),
        left_out: Vec::new(),
    };
    for operation in changes {
        match chosen(args, operation, &all, options) {
            Ok(chosen) => described.chosen.push(chosen),
            Err(why) => described
                .left_out
                .push(OperationReport::left_out(name(operation), why)),
        }
    }
    Ok(described)
}

fn chosen(
    args: &Args,
    operation: &refrain_openapi::Operation<'_>,
    all: &[refrain_openapi::Operation<'_>],
    options: &sample::Options,
) -> Result<Chosen, String> {
    let made = sample::request(operation, options)?;
    let is_safe_by_method = matches!(operation.method(), "PUT" | "DELETE");
    if is_safe_by_method && made.key_header.is_none() && args.op.is_none() {
        return Err(format!(
            "{} is idempotent by definition, and the description has no key header; pass --op to test it anyway",
            operation.method()
        ));
    }
    let (made, parent) = match &made.needs[..] {
        [] => (made, None),
        [name] => {
            let parent = parent(args, operation, name, all, options)?;
            let mut options = options.clone();
            options.given.insert(name.clone(), CREATED.into());
            (sample::request(operation, &options)?, Some(parent))
        }
        many => return Err(describe_needed_params(many)),
    };
    let operation = filled(args, operation, made)?;
    Ok(Chosen { operation, parent })
}

fn describe_needed_params(names: &[String]) -> String {
    let give: Vec<_> = names
        .iter()
        .map(|name| format!("--param {name}=…"))
        .collect();
    format!("it needs an existing resource; pass {}", give.join(" "))
}

/// The operation that creates the resource of this one: a POST to the path before the parameter.
fn parent(
    args: &Args,
    operation: &refrain_openapi::Operation<'_>,
    name: &str,
    all: &[refrain_openapi::Operation<'_>],
    options: &sample::Options,
) -> Result<(String, Operation), String> {
    let slot = format!("/{{{name}}}");
    let front = operation.path().split(&slot).next().unwrap_or_default();
    let creates = all
        .iter()
        .find(|it| it.kind() == Kind::Path && it.method() == "POST" && it.path() == front);
    let creates = creates.ok_or_else(|| describe_needed_params(&[name.to_owned()]))?;
    let made = sample::request(creates, options);
    let made = made.ok().filter(|made| made.needs.is_empty());
    let made = made.ok_or_else(|| describe_needed_params(&[name.to_owned()]))?;
    let mut plain = filled(args, creates, made)?;
    if args.body.is_some() {
        plain.body.clear();
    }
    Ok((name.to_owned(), plain))
}

/// The operation to send: the sample, with the flags applied.
fn filled(
    args: &Args,
    operation: &refrain_openapi::Operation<'_>,
    made: sample::SampleRequest,
) -> Result<Operation, String> {
    let first = format!("{} {}", operation.method(), made.target());
    let mut filled = super::operation(args, &first).map_err(|error| error.to_string())?;
    filled.title = Some(format!("{} {}", operation.method(), operation.path()));
    if args.body.is_none() {
        filled.body = made.body;
        filled.set_content_type(made.content_type.as_deref());
    }
    // Headers from flags take precedence over those of the description.
    let is_new = |(name, _): &(String, String)| {
        !filled
            .headers
            .iter()
            .any(|(known, _)| known.eq_ignore_ascii_case(name))
    };
    let more: Vec<_> = made.headers.into_iter().filter(is_new).collect();
    filled.headers.extend(more);
    if let Some(header) = made.key_header.filter(|_| args.key_header == DEFAULT_KEY) {
        filled.key_header = header;
    }
    Ok(filled)
}

impl Described {
    /// Prints the requests that would be sent.
    pub(super) fn show(&self, args: &Args, plan: &Plan) {
        print_status(args, format!("{}: requests to send", plan.target));
        for chosen in &self.chosen {
            let operation = &chosen.operation;
            let name = chosen.parent.as_ref().map_or("", |(name, _)| name);
            let path = operation.path.replace(CREATED, &format!("{{{name}}}"));
            print_status(args, format!("\n  {} {path}", operation.method));
            if let Some((name, parent)) = &chosen.parent {
                let first = parent.name();
                print_status(
                    args,
                    format!(
                        "    {{{name}}} is taken from the response to {first}, which is sent once before"
                    ),
                );
            }
            let kind = operation.headers.iter();
            let kind = kind.filter(|(name, _)| name.eq_ignore_ascii_case("content-type"));
            for (_, value) in kind {
                print_status(args, format!("    Content-Type: {value}"));
            }
            print_status(args, format!("    {}: …", operation.key_header));
            let body = String::from_utf8_lossy(&operation.body);
            let shown: String = body.chars().take(SHOWN_CHARS_MAX).collect();
            let cut = if shown.len() < body.len() { "…" } else { "" };
            if !shown.is_empty() {
                print_status(args, format!("    {shown}{cut}"));
            }
        }
        for operation in &self.left_out {
            let why = operation.left_out.as_deref().unwrap_or_default();
            print_status(
                args,
                format!("\n  left out: {}: {why}", operation.operation),
            );
        }
        print_status(args, "");
    }

    /// Asks whether the operations may be sent; returns the exit code if not.
    pub(super) fn agree(&self, args: &Args, plan: &Plan) -> Result<Option<u8>, Failure> {
        if args.yes {
            return Ok(None);
        }
        if !io::stdin().is_terminal() {
            crate::output::complain(format_args!(
                "refrain: nothing was sent: each operation would take effect many times at {}; pass --yes if it may be tested",
                plan.target
            ));
            return Ok(Some(USAGE));
        }
        let question = format!(
            "Each operation is sent many times, and takes effect at {}. Send them?",
            plan.target
        );
        match is_agreed(&question)? {
            true => Ok(None),
            false => {
                crate::output::complain(format_args!("refrain: nothing was sent"));
                Ok(Some(USAGE))
            }
        }
    }

    /// Creates the resources that operations need, and adds the operations to the plan; returns those that are left out.
    pub(super) async fn ready(self, plan: &mut Plan) -> Result<Vec<OperationReport>, Trouble> {
        let mut left_out = self.left_out;
        for Chosen {
            mut operation,
            parent,
        } in self.chosen
        {
            let Some((name, parent)) = parent else {
                plan.operations.push(operation);
                continue;
            };
            match verify::create(plan, &parent, &name).await {
                Ok(id) if is_plain(&id) => {
                    operation.path = operation.path.replace(CREATED, &id);
                    plan.operations.push(operation);
                }
                Ok(id) => {
                    let why = format!(
                        "`{id}` is not valid in a path; {}",
                        describe_needed_params(&[name])
                    );
                    left_out.push(OperationReport::left_out(operation.name(), why));
                }
                Err(Trouble::Plan(why)) => {
                    let why = format!("{}: {why}", describe_needed_params(&[name]));
                    left_out.push(OperationReport::left_out(operation.name(), why));
                }
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(left_out)
    }
}

fn is_plain(id: &str) -> bool {
    id.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte))
}
