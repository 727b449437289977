//! `refrain records resolve --all`: every unknown outcome that filters select.

use std::time::Duration;

use http::StatusCode;
use refrain::policy::units::Span;
use serde_json::{Value, json};

use super::{
    Args, PAGE_MAX, checked, confirm, page_path, print,
    progress::Progress,
    resolve::{Resolve, resolve_one},
};
use crate::{
    client::{Client, RequestError},
    output::{complain, counted, say},
};

/// The records that are selected, and the result of each.
#[derive(Debug, Default)]
struct Selected {
    ids: Vec<String>,
    /// Whether resolving began: all records are selected, and the operator agreed.
    is_started: bool,
    /// The first records of `ids` have been tried.
    tried: usize,
    resolved: Vec<String>,
    failed: Vec<String>,
    /// Records for which "it never happened" is refused now, and the time until it is accepted for all of them.
    early: usize,
    early_left: Duration,
}

impl Args {
    /// Resolves every unknown outcome that the filters select, one by one.
    pub(super) async fn resolve_all(
        &self,
        client: &Client,
        resolve: &Resolve,
    ) -> Result<(), RequestError> {
        let mut selected = Selected::default();
        let done = self
            .select_and_resolve(client, resolve, &mut selected)
            .await;
        let done = done.and_then(|()| selected.check());
        match self.json {
            true => say(format_args!(
                "{:#}",
                selected.json(resolve, done.as_ref().err())
            )),
            false => selected.print(resolve),
        }
        done
    }

    async fn select_and_resolve(
        &self,
        client: &Client,
        resolve: &Resolve,
        selected: &mut Selected,
    ) -> Result<(), RequestError> {
        let body = resolve.body()?;
        self.select(client, resolve, selected).await?;
        if resolve.dry_run {
            return Ok(());
        }
        selected.is_started = selected.ids.is_empty() || resolve.is_confirmed(selected)?;
        if !selected.is_started {
            return Ok(());
        }
        while let Some(id) = selected.ids.get(selected.tried) {
            match resolve_one(client, id, &body).await {
                Ok(_) => {
                    if !self.json {
                        say(format_args!("Resolved {id}."));
                    }
                    selected.resolved.push(id.clone());
                }
                Err(error) if is_of_record(&error) => {
                    complain(format_args!("{id}: {error}"));
                    selected.failed.push(id.clone());
                }
                // It would happen to the other records, too.
                Err(error) => return Err(error),
            }
            selected.tried += 1;
        }
        Ok(())
    }

    async fn select(
        &self,
        client: &Client,
        resolve: &Resolve,
        selected: &mut Selected,
    ) -> Result<(), RequestError> {
        let mut after = None;
        let mut progress = Progress::new();
        loop {
            let state = Some("indeterminate");
            let path = page_path(state, &resolve.filter, PAGE_MAX, after.as_deref())?;
            let (records, next) = progress.page(client.get(&path).await?);
            if resolve.dry_run && !self.json {
                print::rows(&records, selected.ids.is_empty());
            }
            for record in &records {
                selected.add(record, resolve.never_happened)?;
            }
            match next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }
}

/// Whether an error is about one record, and the others are independent of it.
fn is_of_record(error: &RequestError) -> bool {
    let is_own = |status| matches!(status, StatusCode::NOT_FOUND | StatusCode::CONFLICT);
    matches!(error, RequestError::Refused { status, .. } if is_own(*status))
}

impl Resolve {
    /// Asks for confirmation if all records are selected, or if their requests can execute again.
    fn is_confirmed(&self, selected: &Selected) -> Result<bool, RequestError> {
        if self.yes || self.filter.is_set() && !self.never_happened {
            return Ok(true);
        }
        let outcomes = counted(selected.ids.len(), "unknown outcome");
        let effect = match self.never_happened {
            true => "a retry of each request EXECUTES AGAIN",
            false => "a retry of each request gets this answer",
        };
        let what = format!("This resolves {outcomes}: {effect}.");
        confirm(&what, "Resolve them? Type yes: ")
    }
}

impl Selected {
    fn add(&mut self, record: &Value, never_happened: bool) -> Result<(), RequestError> {
        let id = checked(record["id"].as_str().unwrap_or_default())?;
        self.ids.push(id.to_owned());
        let left = record["settle_left_seconds"].as_f64().unwrap_or_default();
        let left = Duration::try_from_secs_f64(left.ceil()).unwrap_or_default();
        if never_happened && !left.is_zero() {
            self.early += 1;
            self.early_left = self.early_left.max(left);
        }
        Ok(())
    }

    /// An error if records were not resolved for their own reasons.
    fn check(&self) -> Result<(), RequestError> {
        match self.failed.len() {
            0 => Ok(()),
            failed => Err(RequestError::Refused {
                status: StatusCode::CONFLICT,
                error: format!("{} not resolved", counted(failed, "record")),
                fix: "see the reasons above".into(),
            }),
        }
    }

    fn remaining(&self) -> &[String] {
        &self.ids[self.tried..]
    }

    fn json(&self, resolve: &Resolve, error: Option<&RequestError>) -> Value {
        let mut shown = json!({
            "records": self.ids,
            "resolved": self.resolved,
            "failed": self.failed,
            "remaining": self.remaining(),
            "dry_run": resolve.dry_run,
            "accepted_now": self.ids.len() - self.early,
            "accepted_later": self.early,
            "accepted_later_seconds": self.early_left.as_secs(),
        });
        if let Some(Value::Object(error)) = error.map(RequestError::json) {
            for (name, value) in error {
                shown[name] = value;
            }
        }
        shown
    }

    fn print(&self, resolve: &Resolve) {
        let count = self.ids.len();
        if !resolve.dry_run && !self.is_started {
            return;
        }
        if !resolve.dry_run {
            let (done, left) = (self.resolved.len(), self.remaining());
            say(format_args!("{done} of {count} unknown outcomes resolved."));
            if !left.is_empty() {
                say("Not tried:");
                left.iter().for_each(say);
            }
            return;
        }
        let outcomes = counted(count, "unknown outcome");
        match self.early {
            0 => say(format_args!(
                "{outcomes} would be resolved; nothing was changed."
            )),
            early => say(format_args!(
                "{outcomes}: {} would be resolved now, {early} not before {} have passed, because a slow attempt may \
                 still take effect (settle_after); nothing was changed.",
                count - early,
                Span(self.early_left)
            )),
        }
    }
}
