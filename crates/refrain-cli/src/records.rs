//! `refrain records`: shows the records of a running proxy, and lets operators resolve unknown outcomes.

use std::{
    fs,
    io::{BufRead as _, IsTerminal as _, Read as _, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use crate::{
    client::{ADMIN, Client, RequestError, TlsFlags},
    output::{complain, say},
};

mod erase;
mod print;
mod progress;
mod resolve;
mod resolve_all;

use erase::Erase;
use progress::Progress;
use resolve::Resolve;

/// The default number of records listed.
const LIMIT: u32 = 100;
/// The most records in one page.
const PAGE_MAX: usize = 500;
/// The most bytes of a body read from a file.
const BODY_BYTES_MAX: u64 = 8 << 20;

/// Inspect the records of a running proxy, and resolve unknown outcomes
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain records                                     the first 100 records; the same as `refrain records list`
  refrain records list --state indeterminate          unknown outcomes, which wait for a decision
  refrain records list --operation 'POST /v1/payments' --newer-than 2h
  refrain records list --scope header:x-tenant=acme   records of one scope
  refrain records find --key order-7                  every record of a key, in all scopes
  refrain records show 3f2a…                          one record, with its outcome
  refrain records show --request 'POST /v1/payments' --key order-7 --header 'Authorization: Bearer …'
                                                      the record of a request
  refrain records resolve 3f2a… --status 201 --body @answer.json --reason 'found in the ledger'
  refrain records resolve 3f2a… --never-happened --reason 'not in the ledger' --by anna
  refrain records resolve --all --operation 'POST /v1/payments' --older-than 1h --never-happened --reason 'not in the ledger' --dry-run
                                                      many unknown outcomes; with --yes instead of --dry-run it resolves them
  refrain records erase 3f2a… --reason 'test data'    a retry executes again
  refrain records erase --scope header:x-tenant=acme --reason 'tenant left' --dry-run
                                                      what it concerns; without --dry-run, the outcomes of the
                                                      scope can never be read again, and no retry executes
  refrain records list --admin https://10.0.0.5:8378 --cacert ca.pem
                                                      over TLS; SSL_CERT_FILE also names the file

The admin address of the proxy: --admin, or REFRAIN_ADMIN, or `admin` in the refrain.toml of this folder, or
http://127.0.0.1:8378.
The admin token, if the proxy requires one: --token, or REFRAIN_ADMIN_TOKEN, or the file that REFRAIN_ADMIN_TOKEN_FILE names.
Exit codes: 0 done, 1 no such record, or not possible in its state, 2 wrong usage,
64 invalid refrain.toml, 69 admin address or store unreachable.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Admin address of the proxy
    #[arg(long, global = true, value_name = "URL")]
    admin: Option<String>,
    /// Admin bearer token
    #[arg(long, global = true, value_name = "TOKEN")]
    token: Option<String>,
    #[command(flatten)]
    tls: TlsFlags,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List records in the order of their ids
    List(List),
    /// Find the records of a key, in all scopes or in one
    Find(Find),
    /// Show a record with its outcome
    Show(Named),
    /// Resolve an unknown outcome
    Resolve(Resolve),
    /// Delete a finished record; a retry executes again. With --scope, make all encrypted outcomes of a scope unreadable
    Erase(Erase),
}

#[derive(Debug, clap::Args)]
struct List {
    /// Only records in this state
    #[arg(long, value_parser = ["in-flight", "completed", "indeterminate", "tombstone"])]
    state: Option<String>,
    #[command(flatten)]
    filter: Filter,
    /// Maximum number of records
    #[arg(long, default_value_t = LIMIT, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Only records after this id
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// Selects records.
#[derive(Debug, Default, clap::Args)]
struct Filter {
    /// Only records of this operation
    #[arg(long, value_name = "NAME")]
    operation: Option<String>,
    /// Only records of this scope: a part, such as header:x-tenant=acme; repeat it for each part, in their order
    #[arg(long = "scope", value_name = "NAME=VALUE")]
    scope: Vec<String>,
    /// Only records that were first seen at least this long ago, such as 10m or 2h
    #[arg(long, value_name = "TIME")]
    older_than: Option<String>,
    /// Only records that were first seen at most this long ago
    #[arg(long, value_name = "TIME")]
    newer_than: Option<String>,
}

impl Filter {
    fn is_set(&self) -> bool {
        let is_timed = self.older_than.is_some() || self.newer_than.is_some();
        is_timed || self.operation.is_some() || !self.scope.is_empty()
    }
}

#[derive(Debug, clap::Args)]
struct Find {
    /// Key, as the client sent it
    #[arg(long)]
    key: String,
    /// Part of the scope, such as header:x-tenant=acme or credential:basic=anna; repeat it for each part, in their order
    #[arg(long = "scope", value_name = "NAME=VALUE")]
    scope: Vec<String>,
}

/// A record, named by its id or by its request.
#[derive(Debug, clap::Args)]
struct Named {
    /// Record id
    #[arg(required_unless_present = "request")]
    id: Option<String>,
    #[command(flatten)]
    sought: Sought,
}

/// A request whose record is looked for.
#[derive(Debug, clap::Args)]
struct Sought {
    /// Find the record of this request: method and path
    #[arg(long, conflicts_with = "id", value_name = "METHOD PATH")]
    request: Option<String>,
    /// Key of the request, if no header carries it
    #[arg(long, requires = "request")]
    key: Option<String>,
    /// Header of the request; include those that identify the caller
    #[arg(
        long = "header",
        visible_alias = "request-header",
        requires = "request",
        value_name = "NAME: VALUE"
    )]
    headers: Vec<String>,
    /// Body of the request, if the key comes from it: text, @FILE, or @- for standard input
    #[arg(
        long,
        visible_alias = "request-body",
        requires = "request",
        value_name = "BODY"
    )]
    body: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(async {
        let client = Client::new(
            &ADMIN,
            args.admin.as_deref(),
            args.token.as_deref(),
            &args.tls,
        )?;
        args.run(&client).await
    });
    let Err(trouble) = done else {
        return Ok(ExitCode::SUCCESS);
    };
    complain(format_args!("refrain: {trouble}"));
    // A result of many records has the error in it.
    let is_printed = matches!(&args.command, Some(Command::Resolve(resolve)) if resolve.all);
    if args.json && !is_printed {
        say(format_args!("{:#}", trouble.json()));
    }
    Ok(trouble.code().into())
}

impl Args {
    async fn run(&self, client: &Client) -> Result<(), RequestError> {
        let all = Command::List(List::default());
        match self.command.as_ref().unwrap_or(&all) {
            Command::List(list) => self.list(client, list).await,
            Command::Find(find) => self.find(client, find).await,
            Command::Show(Named { id, sought }) => {
                let id = match id {
                    Some(id) => checked(id)?.to_owned(),
                    None => id_of(client, sought).await?,
                };
                let record = client.get(&format!("/api/records/{id}")).await?;
                self.print_answer(&record, print::record);
                Ok(())
            }
            Command::Resolve(resolve) if resolve.all => self.resolve_all(client, resolve).await,
            Command::Resolve(resolve) => self.resolve(client, resolve).await,
            Command::Erase(erase) => self.erase(client, erase).await,
        }
    }

    fn print_answer(&self, answer: &Value, print: impl FnOnce(&Value)) {
        match self.json {
            true => say(format_args!("{answer:#}")),
            false => print(answer),
        }
    }

    /// Lists page by page, so that the first records appear at once.
    async fn list(&self, client: &Client, list: &List) -> Result<(), RequestError> {
        let limit = list.limit as usize;
        let mut after = list.after.clone();
        let mut listed = 0;
        let mut is_first = true;
        let mut all = Vec::new();
        let mut progress = Progress::new();
        loop {
            let wanted = (limit - listed).min(PAGE_MAX);
            let state = list.state.as_deref();
            let path = page_path(state, &list.filter, wanted, after.as_deref())?;
            let (records, next) = progress.page(client.get(&path).await?);
            match (self.json, list.csv) {
                (true, _) => {}
                (false, true) => print::csv(&records, is_first),
                (false, false) => print::rows(&records, listed == 0),
            }
            is_first = false;
            listed += records.len();
            all.extend(records.into_iter().filter(|_| self.json));
            after = next;
            if after.is_none() || listed >= limit {
                break;
            }
        }
        match (self.json, after) {
            (true, next) => say(format_args!(
                "{:#}",
                json!({ "records": all, "next": next })
            )),
            (false, Some(next)) => {
                complain(format_args!("There may be more records: --after {next}"));
            }
            (false, None) if listed == 0 => {
                complain(format_args!("No matching records."));
            }
            (false, None) => {}
        }
        Ok(())
    }
}

impl Default for List {
    fn default() -> Self {
        Self {
            state: None,
            filter: Filter::default(),
            limit: LIMIT,
            after: None,
            csv: false,
        }
    }
}

impl Args {
    /// Lists every record of a key: a person knows the key of an order, not the credential of the client.
    async fn find(&self, client: &Client, find: &Find) -> Result<(), RequestError> {
        let mut asked = json!({ "key": find.key, "scope": scope(&find.scope)? });
        let mut all = Vec::new();
        let mut progress = Progress::new();
        loop {
            let (records, next) = progress.page(client.post("/api/find", &asked).await?);
            all.extend(records);
            match next {
                Some(next) => asked["after"] = next.into(),
                None => break,
            }
        }
        all.sort_by(|one, other| {
            one["first_seen"]
                .as_str()
                .cmp(&other["first_seen"].as_str())
        });
        match self.json {
            true => say(format_args!("{:#}", json!({ "records": all }))),
            false => print::rows(&all, true),
        }
        if !all.is_empty() {
            return Ok(());
        }
        let (error, fix) = match find.scope.is_empty() {
            true => (
                "no record has this key",
                "it was never used, was released without effect, or is no longer remembered; \
                 records of earlier releases are found with `refrain records show --request`",
            ),
            false => (
                "no record has this key in this scope",
                "check the parts of the scope and their order, or search all scopes without --scope",
            ),
        };
        Err(RequestError::Refused {
            status: StatusCode::NOT_FOUND,
            error: error.into(),
            fix: fix.into(),
        })
    }
}

/// The parts of a scope, as pairs of name and value.
fn scope(parts: &[String]) -> Result<Vec<(&str, &str)>, RequestError> {
    let pair = |part: &'_ String| {
        RequestError::usage(format!(
            "--scope `{part}`: expected NAME=VALUE, such as header:x-tenant=acme"
        ))
    };
    let parts = parts.iter();
    parts
        .map(|part| part.split_once('=').ok_or_else(|| pair(part)))
        .collect()
}

fn page_path(
    state: Option<&str>,
    filter: &Filter,
    limit: usize,
    after: Option<&str>,
) -> Result<String, RequestError> {
    let mut path = format!("/api/records?limit={limit}");
    let scope = match &filter.scope[..] {
        [] => None,
        parts => Some(json!(scope(parts)?).to_string()),
    };
    let parameters = [
        ("scope", scope.as_deref()),
        ("state", state),
        ("operation", filter.operation.as_deref()),
        ("older_than", filter.older_than.as_deref()),
        ("newer_than", filter.newer_than.as_deref()),
        ("after", after.map(checked).transpose()?),
    ];
    for (name, value) in parameters {
        if let Some(value) = value {
            path.push_str(&format!(
                "&{name}={}",
                utf8_percent_encode(value, NON_ALPHANUMERIC)
            ));
        }
    }
    Ok(path)
}

/// Checks that an identity is valid, and so safe in a path.
fn checked(id: &str) -> Result<&str, RequestError> {
    match id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(id),
        false => Err(RequestError::usage(format!(
            "`{id}` is not a record id (32 hexadecimal digits); `refrain records list` prints them"
        ))),
    }
}

async fn id_of(client: &Client, sought: &Sought) -> Result<String, RequestError> {
    if sought.request.is_none() {
        let message =
            "name the record: its id, or --request 'METHOD PATH' with the key of the request";
        return Err(RequestError::usage(message.into()));
    }
    let request = sought.request.as_deref().unwrap_or_default();
    let Some((method, path)) = request.trim().split_once(' ') else {
        let message = format!(
            "--request `{request}`: expected a method and a path, such as 'POST /v1/payments'"
        );
        return Err(RequestError::usage(message));
    };
    let mut asked = json!({
        "method": method,
        "path": path.trim(),
        "headers": headers(&sought.headers)?,
    });
    if let Some(key) = &sought.key {
        asked["key"] = key.as_str().into();
    }
    if let Some(body) = &sought.body {
        let body = String::from_utf8(content(body)?);
        let body = body.map_err(|_| RequestError::usage("--body: not UTF-8 text".into()))?;
        asked["body"] = body.into();
    }
    let found = client.post("/api/find", &asked).await?;
    let missing = found["missing_headers"].as_array();
    let missing: Vec<_> = missing.into_iter().flatten().collect();
    if found["state"].is_null() && !missing.is_empty() {
        return Err(no_record_without(&missing, &found));
    }
    let id = found["id"].as_str().unwrap_or_default();
    Ok(checked(id)?.to_owned())
}

/// The request has no record as it was given, because headers of its scope are missing.
fn no_record_without(headers: &[&Value], found: &Value) -> RequestError {
    let names: Vec<_> = headers.iter().map(|name| print::value_text(name)).collect();
    let flags = names.iter().map(|name| format!("--header '{name}: …'"));
    let flags = flags.collect::<Vec<_>>().join(" ");
    let (names, operation) = (names.join(", "), print::value_text(&found["operation"]));
    RequestError::Refused {
        status: StatusCode::NOT_FOUND,
        error: format!(
            "there is no record of this request without the header {names}, by which `{operation}` tells callers apart"
        ),
        fix: format!(
            "add {flags} as the client sent it, or search all callers with `refrain records find --key KEY`"
        ),
    }
}

/// Adds the operator's name, if one is given.
fn add_operator(mut asked: Value, by: Option<&str>) -> Value {
    if let Some(by) = by {
        asked["by"] = by.into();
    }
    asked
}

fn headers(lines: &[String]) -> Result<Map<String, Value>, RequestError> {
    let pair = |line: &String| {
        let pair = line.split_once(':');
        let (name, value) = pair.ok_or_else(|| {
            RequestError::usage(format!("--header `{line}`: expected 'Name: value'"))
        })?;
        Ok((name.trim().to_owned(), value.trim().into()))
    };
    lines.iter().map(pair).collect()
}

/// The text itself, or the content of the file that it names.
fn content(text: &str) -> Result<Vec<u8>, RequestError> {
    let Some(file) = text.strip_prefix('@') else {
        return Ok(text.into());
    };
    let read = || -> anyhow::Result<Vec<u8>> {
        let source: Box<dyn std::io::Read> = match file {
            "-" => Box::new(std::io::stdin()),
            file => Box::new(fs::File::open(file)?),
        };
        let mut bytes = Vec::new();
        source.take(BODY_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        anyhow::ensure!(bytes.len() as u64 <= BODY_BYTES_MAX, "larger than 8 MiB");
        Ok(bytes)
    };
    let read = read().with_context(|| format!("--body @{file}: cannot be read"));
    read.map_err(|error| RequestError::usage(format!("{error:#}")))
}

/// Says what happens and asks for confirmation; an error if there is no terminal.
fn confirm(what: &str, question: &str) -> Result<bool, RequestError> {
    if !std::io::stdin().is_terminal() {
        let message = "nothing was changed: no terminal to confirm on; pass --yes";
        return Err(RequestError::usage(message.into()));
    }
    // Standard output may be read by a program.
    complain(what);
    let _ = write!(std::io::stderr(), "{question}");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    let is_confirmed = read.is_ok() && line.trim() == "yes";
    if !is_confirmed {
        complain("Nothing was changed.");
    }
    Ok(is_confirmed)
}
