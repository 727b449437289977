//! `refrain verify`: sends a service every kind of duplicate, and reports which ones it handles wrongly.

use std::{
    io::{self, IsTerminal as _, Write as _},
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use refrain::policy::{Address, units};
use refrain_verify::verify::{
    self, CASES, CONCURRENT_MAX, CaseReport, CaseVerdict, Counting, File, Operation, Plan, Process,
    Report, Target, Trouble, Trust, body, header,
};

use crate::{
    output::say,
    proxy::{Failure, Signals, log_to_stderr},
};

mod openapi;
mod worker;
pub(crate) mod write;

/// Exit code: a case failed, or got worse than the baseline.
const FOUND: u8 = 1;
/// Exit code: no operation could be tested.
const BAD_PLAN: u8 = 64;
/// The exit code that shells use after Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Send every kind of duplicate to a service, and report which ones it handles wrongly
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain verify http://127.0.0.1:3000 --op 'POST /v1/payments' --body '{\"amount\":20}' \\
      --effects-url http://127.0.0.1:3000/v1/payments
                                        count the entries of the list; the strongest check is a ledger of your own
  refrain verify http://127.0.0.1:3000 --op 'POST /v1/orders' --body @order.json \\
      --header 'Authorization: Bearer a' --other-credential 'Authorization: Bearer b'
                                        also check that another caller does not get the response
  refrain verify http://127.0.0.1:3000 --openapi openapi.yaml --param shop=7
                                        test all mutating operations, with bodies generated from the description;
                                        prints the requests, and asks before sending
  refrain verify --config verify.toml --html report.html --junit report.xml
                                        test several operations, and write reports
  refrain verify … --json now.json --baseline before.json
                                        exit 1 only for cases that got worse
  refrain verify … --restart-command './server --port 3000'
                                        start the service, kill it during a request, and retry
  refrain verify --worker --broker redis://127.0.0.1 --queue orders --body '{\"order\":\"{id}\"}' --message-id '{id}' \\
      --effects-url 'http://127.0.0.1:3000/count?id={id}' --restart-command './consumer'
                                        test a message consumer: duplicates, failures, crashes
  refrain verify --list                 list all cases; with --worker those for consumers

{{unique}} in the body, the path or a header is replaced by a word that no other request has.
{{key}} there is replaced by the key, which is then not sent in the key header.
The test creates effects: use a test system. A service on another machine needs --yes.

Exit codes: 0 no case failed, 1 a case failed, 2 wrong usage, 64 invalid plan, 69 service or effect count unreachable.")]
pub(crate) struct Args {
    /// URL of the service, such as http://127.0.0.1:3000 or https://staging.example, with the base path of the operations
    url: Option<String>,
    /// Operation to test, such as 'POST /v1/payments'
    #[arg(long, value_name = "OPERATION", conflicts_with = "config")]
    op: Option<String>,
    /// Body that the service accepts: text, or @FILE
    #[arg(long, value_name = "BODY")]
    body: Option<String>,
    /// Header of every request, such as a credential; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Content type of the body [default: JSON or text, detected]
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// Header that carries the key, unless {{key}} is used elsewhere
    #[arg(long, value_name = "NAME", default_value = "Idempotency-Key")]
    key_header: String,
    /// Credential of another caller
    #[arg(long, value_name = "NAME: VALUE")]
    other_credential: Option<String>,
    /// Rotated credential of the same caller
    #[arg(long, value_name = "NAME: VALUE")]
    rotated_credential: Option<String>,
    /// Different body, sent with the same key [default: the body with one number changed]
    #[arg(long, value_name = "BODY")]
    other_body: Option<String>,
    /// Another path that accepts the same body [default: a path that does not exist]
    #[arg(long, value_name = "PATH")]
    other_path: Option<String>,
    /// Body that the service rejects with 4xx
    #[arg(long, value_name = "BODY")]
    bad_body: Option<String>,
    /// Body that fails with 5xx
    #[arg(long, value_name = "BODY")]
    failing_body: Option<String>,
    /// Body that the service handles slowly
    #[arg(long, value_name = "BODY")]
    slow_body: Option<String>,
    /// Retention that the service promises, up to 30s
    #[arg(long, value_name = "TIME")]
    retention: Option<String>,
    /// Lease of a claim that the service promises
    #[arg(long, value_name = "TIME")]
    lease: Option<String>,
    #[command(flatten)]
    described: openapi::Description,
    /// Configuration file (verify.toml), for several operations
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// URL that counts effects: returns a number or a list; {key} and {unique} are filled in
    #[arg(long, value_name = "URL", conflicts_with = "effects_sql")]
    effects_url: Option<Address>,
    /// JSON pointer to the number or list in the response of --effects-url
    #[arg(long, value_name = "POINTER", requires = "effects_url")]
    effects_pointer: Option<String>,
    /// Query that counts effects: 'postgres://USER@HOST/DATABASE SELECT count(*) FROM …'
    #[arg(long, value_name = "SQL")]
    effects_sql: Option<String>,
    /// Command that starts the service, and restarts it after it was killed
    #[arg(long, value_name = "COMMAND")]
    restart_command: Option<String>,
    /// Process id of the running service, which the test may pause (SIGSTOP) and kill
    #[arg(long, value_name = "N")]
    pid: Option<u32>,
    /// PEM file with the CA certificates to trust [default: those of the system]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    cacert: Option<PathBuf>,
    /// Do not verify TLS certificates
    #[arg(long)]
    insecure: bool,
    /// Number of concurrent duplicates
    #[arg(long, value_name = "N", default_value_t = 10)]
    concurrent: usize,
    /// Delay of the late duplicate
    #[arg(long, value_name = "TIME", default_value = "2s")]
    late: String,
    /// Timeout of a request
    #[arg(long, value_name = "TIME", default_value = "10s")]
    timeout: String,
    /// Maximum time that a key stays in flight after its execution died [default: 5s]; with --worker, maximum time until a message has its effect, redelivery included [default: 15s]
    #[arg(long, value_name = "TIME")]
    patience: Option<String>,
    /// Time for which the count of effects must stay unchanged [default: 150ms; 300ms with --worker]
    #[arg(long, value_name = "TIME")]
    settle: Option<String>,
    /// Run only this case; may be given several times
    #[arg(long = "case", value_name = "CASE")]
    only: Vec<String>,
    /// Random seed of keys and bodies; use each seed only once on a service [default: random, and printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Write the report as JSON; - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the failed cases as SARIF
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,
    /// Write the report as an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Earlier --json report: exit 1 only for cases that fail now and did not fail then
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Do not ask for confirmation, also for a service on another machine
    #[arg(long)]
    yes: bool,
    /// Print all cases, and exit
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    worker: worker::WorkerArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.list {
        let cases = match args.worker.is_meant() {
            true => &verify::worker::CASES[..],
            false => &CASES[..],
        };
        for case in cases {
            say(format!("{:22}  {}", case.id, case.title));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match runtime.block_on(start(args)) {
        Ok(code) => Ok(code.into()),
        Err(failure) => {
            crate::output::complain(&failure);
            Ok(failure.code())
        }
    }
}

async fn start(args: &Args) -> Result<u8, Failure> {
    let mut signals = Signals::new()?;
    log_to_stderr(&Some("error".into()))?;
    let before = args.baseline.as_deref().map(write::baseline).transpose()?;
    let running = async {
        match args.worker.is_meant() {
            true => worker::run(args).await.map(ControlFlow::Continue),
            false => service(args).await,
        }
    };
    let report = tokio::select! {
        report = running => match report? {
            ControlFlow::Continue(report) => report,
            ControlFlow::Break(code) => return Ok(code),
        },
        () = signals.next() => {
            crate::output::complain(format_args!("refrain: interrupted; no report was written"));
            return Ok(INTERRUPTED);
        }
    };
    summary(args, &report);
    write::all(args, &report)?;
    Ok(code(args, before.as_ref(), &report))
}

/// Tests a service; returns the report, or an exit code if the test was not confirmed.
async fn service(args: &Args) -> Result<ControlFlow<u8, Report>, Failure> {
    let mut plan = plan(args)?;
    let mut left_out = Vec::new();
    match openapi::read(args, &mut plan)? {
        None => agree(args, &plan.target, plan.target.is_loopback())?,
        Some(described) => {
            described.show(args, &plan);
            if let Some(code) = described.agree(args, &plan)? {
                return Ok(ControlFlow::Break(code));
            }
            left_out = described.ready(&mut plan).await.map_err(trouble)?;
        }
    }
    print_status(args, format!("{}, seed {}", plan.target, plan.seed));
    let mut named = String::new();
    let report = verify::run(&plan, |operation, case| {
        progress(args, &mut named, &operation.name(), case);
    });
    let mut report = report.await.map_err(trouble)?;
    report.operations.extend(left_out);
    Ok(ControlFlow::Continue(report))
}

/// Prints the result of a case as it ends.
fn progress(args: &Args, named: &mut String, operation: &str, case: &CaseReport) {
    if named != operation {
        operation.clone_into(named);
        print_status(args, format!("\n{named}"));
    }
    let said = case.findings.join("; ");
    print_status(
        args,
        format!("  {:7}  {:22}  {said}", case.verdict, case.id).trim_end(),
    );
}

fn trouble(trouble: Trouble) -> Failure {
    match trouble {
        Trouble::Plan(why) => Failure::Configuration(format!("refrain: {why}")),
        Trouble::Unreachable(why) => Failure::Unavailable(why),
    }
}

/// Prints a line; to standard error if the JSON report goes to standard output.
fn print_status(args: &Args, line: impl std::fmt::Display) {
    match args.json.as_deref() == Some(Path::new("-")) {
        true => {
            let _ = writeln!(io::stderr(), "{line}");
        }
        false => say(line),
    }
}

fn code(args: &Args, before: Option<&Report>, report: &Report) -> u8 {
    if report.operations.iter().all(|it| it.left_out.is_some()) {
        print_status(args, "no operation could be tested");
        return BAD_PLAN;
    }
    if report.is_blind() && !report.has_failed() {
        print_status(
            args,
            "cannot count effects: two executions return the same response; pass --effects-url or --effects-sql",
        );
        return BAD_PLAN;
    }
    let Some(before) = before else {
        return if report.has_failed() { FOUND } else { 0 };
    };
    let worse = verify::worse(before, report);
    for case in &worse {
        print_status(args, format!("worse than the baseline: {case}"));
    }
    if worse.is_empty() { 0 } else { FOUND }
}

fn summary(args: &Args, report: &Report) {
    for operation in &report.operations {
        if let Some(why) = &operation.left_out {
            print_status(args, format!("\n{}: left out: {why}", operation.operation));
            continue;
        }
        print_status(
            args,
            format!(
                "\n{}: effects are counted {}",
                operation.operation, operation.counting
            ),
        );
        let is_told = |it: &&CaseReport| it.verdict == CaseVerdict::Fail;
        for case in operation.cases.iter().filter(is_told) {
            print_status(args, format!("\n  FAIL {}: {}", case.id, case.title));
            for finding in &case.findings {
                print_status(args, format!("       seen: {finding}"));
            }
            print_status(
                args,
                format!("       hole: {}\n       fix:  {}", case.hole, case.fix),
            );
        }
    }
    let count = |verdict| report.count(verdict);
    print_status(
        args,
        format!(
            "\n{} failed, {} warned, {} passed, {} skipped, in {:.1} s",
            count(CaseVerdict::Fail),
            count(CaseVerdict::Warn),
            count(CaseVerdict::Pass),
            count(CaseVerdict::Skipped),
            Duration::from_millis(report.took_ms).as_secs_f64()
        ),
    );
}

/// Asks before anything is sent to another machine.
fn agree(args: &Args, target: &dyn std::fmt::Display, is_here: bool) -> Result<(), Failure> {
    if is_here || args.yes {
        return Ok(());
    }
    let refused = |why: &str| {
        Err(Failure::Configuration(format!(
            "refrain: {target} is on another machine, and testing creates effects there; {why}"
        )))
    };
    if !io::stdin().is_terminal() {
        return refused("pass --yes if it may be tested");
    }
    let question =
        format!("{target} is on another machine, and testing creates effects there. Test it?");
    match is_agreed(&question)? {
        true => Ok(()),
        false => refused("nothing was sent"),
    }
}

fn is_agreed(question: &str) -> io::Result<bool> {
    let _ = write!(io::stderr(), "{question} [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn bad(why: impl std::fmt::Display) -> Failure {
    Failure::Configuration(format!("refrain: {why}"))
}

fn time(name: &str, text: &str) -> Result<Duration, Failure> {
    units::duration(text).map_err(|error| bad(format!("--{name}: {error}")))
}

fn trust(args: &Args) -> Option<Trust> {
    match (args.insecure, &args.cacert) {
        (true, _) => Some(Trust::Anybody),
        (false, file) => file.clone().map(Trust::File),
    }
}

fn seed(args: &Args) -> u64 {
    args.seed.unwrap_or_else(|| rand::random::<u32>().into())
}

fn plan(args: &Args) -> Result<Plan, Failure> {
    let file = args.config.as_deref().map(File::read).transpose();
    let file = file.map_err(bad)?;
    let url = args
        .url
        .as_ref()
        .or(file.as_ref().and_then(|file| file.url.as_ref()));
    let url =
        url.ok_or_else(|| bad("no service; pass its URL: refrain verify http://HOST:PORT"))?;
    let target: Target = url.parse().map_err(|error: verify::BadPlan| bad(error))?;
    let mut plan = Plan::new(target, seed(args));
    (plan.late, plan.timeout) = (time("late", &args.late)?, time("timeout", &args.timeout)?);
    if let Some(patience) = &args.patience {
        plan.patience = time("patience", patience)?;
    }
    if let Some(settle) = &args.settle {
        plan.settle = time("settle", settle)?;
    }
    if !(2..=CONCURRENT_MAX).contains(&args.concurrent) {
        return Err(bad(format!("--concurrent takes 2 to {CONCURRENT_MAX}")));
    }
    plan.concurrent = args.concurrent;
    plan.only.clone_from(&args.only);
    let trust = trust(args).or_else(|| file.as_ref().and_then(|file| file.trust.clone()));
    plan.trust = trust.unwrap_or_default();
    let told = (
        file.as_ref().and_then(|file| file.counting.clone()),
        file.as_ref().map(|file| file.process.clone()),
    );
    plan.counting = counting(args)
        .map_err(bad)?
        .or(told.0)
        .unwrap_or(Counting::Answers);
    let process = told.1.unwrap_or_default();
    plan.process = Process {
        command: args.restart_command.clone().or(process.command),
        pid: args.pid.or(process.pid),
    };
    if args.described.openapi.is_some() {
        return Ok(plan);
    }
    plan.operations = match (&args.op, file) {
        (Some(op), _) => vec![operation(args, op).map_err(bad)?],
        (None, Some(file)) => file.operations,
        (None, None) => Vec::new(),
    };
    match plan.operations.is_empty() {
        true => Err(bad(
            "no operation; pass --op 'POST /v1/payments' --body '…', --openapi FILE, or --config FILE with [[operation]]",
        )),
        false => Ok(plan),
    }
}

fn counting(args: &Args) -> Result<Option<Counting>, verify::BadPlan> {
    match (&args.effects_url, &args.effects_sql) {
        (Some(url), _) => Ok(Some(Counting::Url {
            url: url.clone(),
            pointer: args.effects_pointer.clone(),
        })),
        (None, Some(text)) => verify::sql(text).map(Some),
        (None, None) => Ok(None),
    }
}

fn operation(args: &Args, op: &str) -> Result<Operation, verify::BadPlan> {
    let read = |text: &Option<String>| {
        let read = text.as_deref().map(|text| body(text, Path::new("")));
        read.transpose()
    };
    let named = |text: &Option<String>| text.as_deref().map(header).transpose();
    let mut operation = Operation::new(op)?;
    operation.body = read(&args.body)?.unwrap_or_default();
    let headers = args.headers.iter().map(|text| header(text));
    operation.headers = headers.collect::<Result<_, _>>()?;
    operation.set_content_type(args.content_type.as_deref());
    operation.key_header.clone_from(&args.key_header);
    operation.other_credential = named(&args.other_credential)?;
    operation.rotated_credential = named(&args.rotated_credential)?;
    operation.other_body = read(&args.other_body)?;
    operation.other_path.clone_from(&args.other_path);
    operation.bad_body = read(&args.bad_body)?;
    operation.failing_body = read(&args.failing_body)?;
    operation.slow_body = read(&args.slow_body)?;
    operation.retention = verify::duration(args.retention.as_deref())?;
    operation.lease = verify::duration(args.lease.as_deref())?;
    Ok(operation)
}
