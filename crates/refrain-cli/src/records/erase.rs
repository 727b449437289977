//! `refrain records erase`: one finished record, or the data key of a scope.

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    Args, Filter, PAGE_MAX, add_operator, checked, confirm, page_path, progress::Progress, scope,
};
use crate::{
    client::{Client, RequestError},
    output::say,
};

const QUESTION: &str = "Erase it? Type yes: ";

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["id", "scope"]))]
pub(super) struct Erase {
    /// Record id
    id: Option<String>,
    /// Erase the data key of this scope: a part, such as header:x-tenant=acme; repeat it for each part, in their order
    #[arg(long = "scope", value_name = "NAME=VALUE")]
    scope: Vec<String>,
    /// With --scope: count the records, and change nothing
    #[arg(long, requires = "scope")]
    dry_run: bool,
    /// Reason, written to the audit log
    #[arg(long)]
    reason: String,
    /// Your name, written to the audit log
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

impl Args {
    pub(super) async fn erase(&self, client: &Client, erase: &Erase) -> Result<(), RequestError> {
        let Some(id) = &erase.id else {
            return self.erase_scope(client, erase).await;
        };
        let path = format!("/api/records/{}", checked(id)?);
        let meaning =
            format!("This deletes the outcome of {id}: a retry of its request EXECUTES AGAIN.");
        if !erase.yes && !confirm(&meaning, QUESTION)? {
            return Ok(());
        }
        let asked = add_operator(json!({ "reason": erase.reason }), erase.by.as_deref());
        let done = client.delete(&path, &asked).await?;
        self.print_answer(&done, |_| say("Erased: the key is free again."));
        Ok(())
    }

    async fn erase_scope(&self, client: &Client, erase: &Erase) -> Result<(), RequestError> {
        let parts = scope(&erase.scope)?;
        let meaning = "This erases the data key of the scope: its outcomes can NEVER be read again, \
                       and a retry of a completed request gets 410.";
        if erase.dry_run {
            return self.count(client, erase).await;
        }
        if !erase.yes && !confirm(meaning, QUESTION)? {
            return Ok(());
        }
        let asked = json!({ "scope": parts, "reason": erase.reason });
        let asked = add_operator(asked, erase.by.as_deref());
        let done = client.post("/api/scopes/erase", &asked).await?;
        self.print_answer(&done, |_| {
            say("Erased: the encrypted outcomes of this scope can no longer be read.");
        });
        Ok(())
    }

    /// Counts the records of the scope by state.
    async fn count(&self, client: &Client, erase: &Erase) -> Result<(), RequestError> {
        let filter = Filter {
            scope: erase.scope.clone(),
            ..Filter::default()
        };
        let (mut after, mut states) = (None, BTreeMap::<String, u64>::new());
        let mut progress = Progress::new();
        loop {
            let path = page_path(None, &filter, PAGE_MAX, after.as_deref())?;
            let (records, next) = progress.page(client.get(&path).await?);
            for record in records {
                let state = record["state"].as_str().unwrap_or_default();
                *states.entry(state.into()).or_default() += 1;
            }
            after = next;
            if after.is_none() {
                break;
            }
        }
        let counted = json!({ "records": states, "dry_run": true });
        self.print_answer(&counted, |_| {
            let total: u64 = states.values().sum();
            for (state, count) in &states {
                say(format_args!("{count:8}  {state}"));
            }
            say(format_args!(
                "{total} records of this scope; nothing was changed."
            ));
        });
        Ok(())
    }
}
