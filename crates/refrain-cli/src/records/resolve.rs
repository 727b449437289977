//! `refrain records resolve`: one unknown outcome.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::{Args, Filter, Sought, add_operator, checked, content, headers, id_of, print};
use crate::{
    client::{Client, RequestError},
    output::say,
};

/// A request whose record is resolved. Its header and body have names of their own, beside those of the response.
#[derive(Debug, Clone, clap::Args)]
struct ResolvedRequest {
    /// Resolve the record of this request: method and path
    #[arg(long, conflicts_with = "id", value_name = "METHOD PATH")]
    request: Option<String>,
    /// Key of the request, if no header carries it
    #[arg(long, requires = "request")]
    key: Option<String>,
    /// Header of the request; include those that identify the caller
    #[arg(
        long = "request-header",
        requires = "request",
        value_name = "NAME: VALUE"
    )]
    request_headers: Vec<String>,
    /// Body of the request, if the key comes from it: text, @FILE, or @- for standard input
    #[arg(long, requires = "request", value_name = "BODY")]
    request_body: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("found").required(true).args(["never_happened", "status"]))]
#[command(group = clap::ArgGroup::new("which").required(true).args(["id", "request", "all"]))]
pub(super) struct Resolve {
    /// Record id
    id: Option<String>,
    #[command(flatten)]
    sought: ResolvedRequest,
    /// Resolve every unknown outcome that the filters select
    #[arg(long)]
    pub(super) all: bool,
    #[command(flatten)]
    pub(super) filter: Filter,
    /// With --all: print the records, and change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// With --all: do not ask for confirmation
    #[arg(long)]
    pub(super) yes: bool,
    /// The effect did not happen: release the key
    #[arg(long)]
    pub(super) never_happened: bool,
    /// The effect happened: replay this status to duplicates
    #[arg(long)]
    status: Option<u16>,
    /// Header of the replayed response
    #[arg(long = "header", requires = "status", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Body of the replayed response: text, @FILE, or @- for standard input
    #[arg(long, requires = "status", value_name = "BODY")]
    body: Option<String>,
    /// Reason, written to the audit log
    #[arg(long)]
    reason: String,
    /// Your name, written to the audit log
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

impl From<ResolvedRequest> for Sought {
    fn from(it: ResolvedRequest) -> Self {
        Self {
            request: it.request,
            key: it.key,
            headers: it.request_headers,
            body: it.request_body,
        }
    }
}

impl Args {
    pub(super) async fn resolve(
        &self,
        client: &Client,
        resolve: &Resolve,
    ) -> Result<(), RequestError> {
        if resolve.dry_run || resolve.yes || resolve.filter.is_set() {
            let message = "--dry-run, --yes and filters select from many records: they need --all";
            return Err(RequestError::usage(message.into()));
        }
        let id = match &resolve.id {
            Some(id) => checked(id)?.to_owned(),
            None => id_of(client, &resolve.sought.clone().into()).await?,
        };
        let done = resolve_one(client, &id, &resolve.body()?).await?;
        self.print_answer(&done, |done| {
            say(format_args!(
                "Resolved as {}.",
                print::value_text(&done["resolved"])
            ));
        });
        Ok(())
    }
}

pub(super) async fn resolve_one(
    client: &Client,
    id: &str,
    body: &Value,
) -> Result<Value, RequestError> {
    client
        .post(&format!("/api/records/{id}/resolve"), body)
        .await
}

impl Resolve {
    pub(super) fn body(&self) -> Result<Value, RequestError> {
        let Some(status) = self.status else {
            let found = json!({ "as": "never-happened", "reason": self.reason });
            return Ok(add_operator(found, self.by.as_deref()));
        };
        let mut found = json!({
            "as": "completed",
            "status": status,
            "headers": headers(&self.headers)?,
            "reason": self.reason,
        });
        if let Some(body) = &self.body {
            match String::from_utf8(content(body)?) {
                Ok(text) => found["body"] = text.into(),
                Err(bytes) => {
                    found["body_base64"] = BASE64_STANDARD.encode(bytes.as_bytes()).into();
                }
            }
        }
        Ok(add_operator(found, self.by.as_deref()))
    }
}
