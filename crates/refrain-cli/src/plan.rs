//! `refrain plan`: reads an API's description, and writes the policy, the page for clients and the tests.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use refrain::policy::{Class, File, Settings};
use refrain_openapi::{Document, Format};
use refrain_plan::{
    Options, Plan, Planned,
    render::{self, Drift, class_name},
};
use serde_json::json;

use crate::{output::say, proxy::Failure};

mod files;
use files::Files;
pub(crate) use files::Outcome;

/// Exit code: drift was found.
const FOUND: u8 = 1;
/// The most unsure operations that are listed.
const UNSURE_MAX: usize = 20;
/// The comment before the planned class, above a table of the policy.
pub(crate) const MARK: &str = "# plan: ";
pub(crate) const POLICY: &str = "refrain.toml";
pub(crate) const VERIFY: &str = "verify.toml";
/// The proxy's default address.
pub(crate) const PROXY: &str = "http://127.0.0.1:8377";

/// Find the operations of an API that need keys; write the policy, a page for clients, and tests
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain plan openapi.yaml             write refrain.toml and the other files to this folder
  refrain plan openapi.yaml --out plan  write them to another folder
  refrain plan openapi.yaml --check     for CI: exit code 1 if the files do not match the API
  refrain plan openapi.yaml --json      print every operation with its class, confidence and evidence
  refrain plan asyncapi.yaml            write workers for the channels that the application consumes

Reads OpenAPI 3.0 and 3.1, Swagger 2, and AsyncAPI 2 and 3, as YAML or JSON, with $refs across files.
Nothing is fetched from the network.

Writes: refrain.toml, retrying-safely.md and .html, verify.toml, and NAME.refrain.yaml or .json, a copy of the
description with key parameters, problem responses and x-refrain; YAML comments are lost in the copy.
A second run keeps your edits in refrain.toml and verify.toml, adds new operations of the API, and prints the differences.
Without --force, a file that it did not write, or that was edited and cannot be merged, stays unchanged.

Exit codes: 0 success, 1 --check found drift, 2 wrong usage, 64 invalid description or file, 69 file not writable.")]
pub(crate) struct Args {
    /// API description: OpenAPI, Swagger or AsyncAPI
    document: PathBuf,
    /// Folder to write to
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
    /// Write nothing; exit code 1 if the files do not match the API
    #[arg(long)]
    check: bool,
    /// Print the plan, the drift and the written files as JSON
    #[arg(long)]
    json: bool,
    /// Overwrite files that it did not write or that were edited; refrain.toml is still merged
    #[arg(long, conflicts_with = "check")]
    force: bool,
    /// Base path of all paths of the API, instead of that of the server in the description
    #[arg(long, value_name = "PATH")]
    base: Option<String>,
    /// Upstream service, for a new refrain.toml
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Address of the proxy, for verify.toml
    #[arg(long, value_name = "URL", default_value = PROXY)]
    url: String,
}

impl Args {
    fn job(&self) -> Job<'_> {
        Job {
            description: &self.document,
            out: &self.out,
            is_check: self.check,
            is_forced: self.force,
            upstream: self.upstream.as_deref(),
            url: &self.url,
            messages: None,
            adjust: &|_, _| {},
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match planned(args) {
        Ok(code) => Ok(code),
        Err(failure) => {
            crate::output::complain(&failure);
            Ok(failure.code())
        }
    }
}

fn planned(args: &Args) -> Result<ExitCode, Failure> {
    let bad = |why: String| Failure::Configuration(format!("refrain: {why}"));
    let document = Document::read(&args.document).map_err(|error| bad(error.to_string()))?;
    let mut options = Options::default();
    options.base = args
        .base
        .as_deref()
        .map(|base| format!("/{}", base.trim_matches('/')));
    if options.base.as_deref() == Some("/") {
        options.base = Some(String::new());
    }
    let plan = refrain_plan::plan(&document, &options);
    if plan.operations.is_empty() && plan.consumers.is_empty() {
        let name = args.document.display();
        return Err(bad(format!(
            "{name}: has no operations to plan\n  fix: pass a description with `paths`, `webhooks`, or channels that the application receives from"
        )));
    }
    let written = write(&args.job(), &document, &plan)?;
    let Written { files, drift } = written;
    let news = drift.iter().any(|it| it.kind != "kept") || files.iter().any(|it| it.is_drift());
    if args.json {
        let report = json!({ "plan": plan, "drift": drift, "files": files });
        say(serde_json::to_string_pretty(&report).unwrap_or_default());
    } else {
        print_plan(&plan, &drift, &files, args.check);
    }
    Ok(if args.check && news {
        FOUND.into()
    } else {
        ExitCode::SUCCESS
    })
}

/// The inputs of a plan's files, and where they are written.
pub(crate) struct Job<'a> {
    pub(crate) description: &'a Path,
    pub(crate) out: &'a Path,
    pub(crate) is_check: bool,
    pub(crate) is_forced: bool,
    pub(crate) upstream: Option<&'a str>,
    /// The proxy's address for verify.toml.
    pub(crate) url: &'a str,
    /// A description of messages that is merged into the same policy.
    pub(crate) messages: Option<&'a Described>,
    /// Changes the policy before it is written.
    pub(crate) adjust: &'a Adjust<'a>,
}

/// A description, and its plan.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) file: PathBuf,
    pub(crate) document: Document,
    pub(crate) plan: Plan,
}

/// Changes a policy before it is written; the flag says whether the policy is new.
pub(crate) type Adjust<'a> = dyn Fn(&mut toml_edit::DocumentMut, bool) + 'a;

/// Renders all files, and writes them unless the job is a check.
///
/// # Errors
/// When an existing file cannot be merged into, or a file cannot be written.
pub(crate) fn write(job: &Job<'_>, document: &Document, plan: &Plan) -> Result<Written, Failure> {
    let bad = |why: String| Failure::Configuration(format!("refrain: {why}"));
    let mut files = Files::new(job.out, job.is_check, job.is_forced);
    let path = job.out.join(POLICY);
    let existing = files.merged(POLICY, MARK)?;
    let place = |why: String| bad(format!("{}: {why}", path.display()));
    let merged = render::policy(plan, existing.as_deref(), job.upstream);
    let mut merged = merged.map_err(place)?;
    merged.drift.retain(|it| is_about(it, document));
    if let Some(Described { document, plan, .. }) = job.messages {
        let both = render::policy(plan, Some(&merged.text), None).map_err(place)?;
        let drift = both.drift.into_iter().filter(|it| is_about(it, document));
        merged.drift.extend(drift.filter(|_| existing.is_some()));
        merged.text = both.text;
    }
    merged.text = adjusted(&merged.text, existing.is_none(), job.adjust).map_err(bad)?;
    let settings: Settings = File::parse(&merged.text, &path.display().to_string())?;
    files.write(POLICY, &merged.text)?;
    files.page("retrying-safely.md", &render::markdown(plan, &settings))?;
    files.page("retrying-safely.html", &render::html(plan, &settings))?;
    let references = files::references(job.description, job.out);
    let copy = render::annotated(plan, document, &settings.policy, &references).map_err(bad)?;
    files.page(&copy_name(job.description, document.format()), &copy)?;
    if let Some(it) = job.messages {
        let references = files::references(&it.file, job.out);
        let copy = render::annotated(&it.plan, &it.document, &settings.policy, &references);
        let copy = copy.map_err(bad)?;
        files.page(&copy_name(&it.file, it.document.format()), &copy)?;
    }
    if !document.is_async() {
        let existing = files.merged(VERIFY, MARK)?;
        let text = render::verify(plan, document, job.url, existing.as_deref());
        files.write(VERIFY, &text)?;
    }
    Ok(Written {
        files: files.outcomes,
        drift: merged.drift,
    })
}

/// Whether a drift concerns this document: a worker is not gone because a description of requests lacks it, nor an operation because one of messages does.
fn is_about(drift: &Drift, document: &Document) -> bool {
    let is_worker = !drift.name.contains(' ');
    drift.kind != "gone" || is_worker == document.is_async()
}

/// Checks that a plan can be written here: a policy from another source is not merged into.
///
/// # Errors
/// When the folder has such a policy.
pub(crate) fn check_place(out: &Path) -> Result<(), Failure> {
    let files = Files::new(out, false, false);
    match files.is_foreign(POLICY, MARK)? {
        false => Ok(()),
        true => Err(Failure::Configuration(format!(
            "refrain: {}: not written by `refrain plan` or `refrain init`\n  fix: move it away, or merge the API description into it with `refrain plan FILE --force`, which keeps its settings",
            out.join(POLICY).display()
        ))),
    }
}

/// Writes a policy for an API without a description: every POST and PATCH is guarded alike.
///
/// # Errors
/// When the existing policy is from another source, or the file cannot be written.
pub(crate) fn write_bare(
    out: &Path,
    upstream: &str,
    adjust: &Adjust<'_>,
) -> Result<Vec<Outcome>, Failure> {
    let mut files = Files::new(out, false, false);
    let existing = files.merged(POLICY, MARK)?;
    let fresh = format!(
        "# Every POST and PATCH has the same settings; add an [[operation]] for each one that needs others.\n\
         # `refrain plan` writes them from an API description, and keeps the settings of this file.\n\n\
         upstream = {}\n",
        toml_edit::value(upstream)
    );
    let text = existing.as_deref().unwrap_or(&fresh);
    let text = adjusted(text, existing.is_none(), adjust).map_err(Failure::Configuration)?;
    File::parse(&text, &out.join(POLICY).display().to_string())?;
    files.write(POLICY, &text)?;
    Ok(files.outcomes)
}

/// The files of a plan, and the drift that was found.
pub(crate) struct Written {
    pub(crate) files: Vec<Outcome>,
    drift: Vec<Drift>,
}

fn adjusted(text: &str, is_new: bool, adjust: &Adjust<'_>) -> Result<String, String> {
    let mut document = text.parse().map_err(|error| format!("{error}"))?;
    adjust(&mut document, is_new);
    Ok(document.to_string())
}

fn copy_name(document: &Path, format: Format) -> String {
    let stem = document
        .file_stem()
        .map_or("api".into(), |it| it.to_string_lossy());
    match format {
        Format::Json => format!("{stem}.refrain.json"),
        Format::Yaml => format!("{stem}.refrain.yaml"),
    }
}

fn print_plan(plan: &Plan, drift: &[Drift], files: &[Outcome], is_check: bool) {
    for trouble in &plan.troubles {
        crate::output::complain(format_args!("note: {trouble}"));
    }
    let served: Vec<_> = plan.operations.iter().filter(|it| it.is_served).collect();
    if !served.is_empty() {
        say(format!("{}: {} operations", plan.title, served.len()));
        for class in [
            Class::Monetary,
            Class::Create,
            Class::Transition,
            Class::Replace,
            Class::Delete,
            Class::Event,
            Class::Read,
        ] {
            let count = served.iter().filter(|it| it.verdict.class == class).count();
            if count > 0 {
                say(format!("  {count:>5}  {}", class_name(class)));
            }
        }
    }
    for consumer in &plan.consumers {
        say(format!("consumer {}: {}", consumer.name, consumer.channel));
    }
    print_unsure(&served);
    for Drift {
        kind,
        name,
        message,
    } in drift
    {
        say(format!("{kind:>8}  {name} {message}"));
    }
    for outcome in files {
        say(outcome);
    }
    if is_check && drift.is_empty() && !files.iter().any(Outcome::is_drift) {
        say("no drift");
    }
}

fn print_unsure(served: &[&Planned]) {
    let unsure: Vec<_> = served.iter().filter(|it| !it.verdict.is_sure()).collect();
    if unsure.is_empty() {
        return;
    }
    say(format!(
        "operations with an unsure class: {}; check them in refrain.toml:",
        unsure.len()
    ));
    for planned in unsure.iter().take(UNSURE_MAX) {
        let verdict = &planned.verdict;
        let other = verdict
            .runner_up
            .map(|it| format!(", or {}", class_name(it)))
            .unwrap_or_default();
        say(format!(
            "  {} ({}{other}; {:.2})",
            planned.name(),
            class_name(verdict.class),
            verdict.confidence
        ));
    }
    if unsure.len() > UNSURE_MAX {
        say(format!("  and {} more", unsure.len() - UNSURE_MAX));
    }
}
