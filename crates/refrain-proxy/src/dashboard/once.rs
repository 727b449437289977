//! Changes that are made once, however often their form is sent: a double click, a reload and a page that the browser
//! sends again lead to the result of the first time.
//!
//! Each form that changes something has an id, and this process keeps the results of the last ones.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use maud::{Markup, PreEscaped, html};

use super::visit::Fields;
use crate::admin::{refusal::Refusal, sessions::random_id};

/// Results that are kept; a further one replaces the oldest.
const KEPT_MAX: usize = 256;
/// The name of the field, and of the parameter of a page that shows the result.
const FIELD: &str = "once";

/// The results of changes. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Changes(Arc<Mutex<VecDeque<Change>>>);

#[derive(Debug, Clone)]
struct Change {
    id: String,
    /// `None` until it was made. Locked while it is being made.
    result: Arc<tokio::sync::Mutex<Option<String>>>,
}

/// The field of a form that is sent once.
pub(super) fn field() -> Markup {
    html! { input type="hidden" name=(FIELD) value=(random_id()); }
}

/// The address of the page that shows the result of a change.
pub(super) fn address(page: &str, id: &str) -> String {
    format!("{page}?{FIELD}={id}")
}

impl Changes {
    /// Makes a change, unless the form was sent before; returns its id. What `make` returns is kept as its result.
    /// It goes on if the client disconnects, as a browser does on a double click.
    pub(super) async fn make(
        &self,
        fields: &Fields,
        make: impl Future<Output = Result<Markup, Refusal>> + Send + 'static,
    ) -> Result<String, Refusal> {
        let change = self.change(fields.get(FIELD));
        let id = change.id.clone();
        let made = tokio::spawn(async move {
            let mut result = change.result.lock().await;
            if result.is_none() {
                *result = Some(make.await?.into_string());
            }
            Ok::<_, Refusal>(())
        });
        made.await.map_err(|_| interrupted())??;
        Ok(id)
    }

    /// The change of this id; a new one if none has it.
    fn change(&self, id: &str) -> Change {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.iter().find(|it| it.id == id) {
            return known.clone();
        }
        if kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        let is_id = id.len() == 64 && id.bytes().all(|it| it.is_ascii_hexdigit());
        let change = Change {
            id: if is_id { id.to_owned() } else { random_id() },
            result: Arc::default(),
        };
        kept.push_back(change.clone());
        change
    }

    /// The result that a page shows, if its address names one.
    pub(super) fn shown(&self, query: &Fields) -> Option<Markup> {
        let id = query.filled(FIELD)?;
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.iter().find(|it| it.id == id)?;
        let result = known.result.try_lock().ok()?;
        result.clone().map(PreEscaped)
    }
}

fn interrupted() -> Refusal {
    let error = "the change was interrupted, and may have been made";
    let fix = "open the page again, and look";
    Refusal::new(http::StatusCode::INTERNAL_SERVER_ERROR, error, fix)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    fn form(id: &str) -> Fields {
        Fields::of_query(&format!("/?{FIELD}={id}").parse().unwrap())
    }

    #[tokio::test]
    async fn a_form_that_is_sent_twice_at_a_time_changes_something_once() {
        let changes = Changes::default();
        let made = Arc::new(AtomicU32::new(0));
        let sent = form(&random_id());
        let send = || {
            let made = made.clone();
            changes.make(&sent, async move {
                tokio::task::yield_now().await;
                made.fetch_add(1, Relaxed);
                Ok(html! { "done" })
            })
        };
        let (one, other) = tokio::join!(send(), send());
        assert_eq!(one.unwrap(), other.unwrap());
        assert_eq!(made.load(Relaxed), 1);
        let shown = changes.shown(&sent).unwrap();
        assert_eq!(shown.into_string(), "done");
    }

    #[tokio::test]
    async fn a_change_that_was_refused_can_be_tried_again() {
        let changes = Changes::default();
        let sent = form(&random_id());
        let refused = changes.make(&sent, async { Err(Refusal::bad("no", "wait")) });
        assert!(refused.await.is_err());
        assert!(changes.shown(&sent).is_none());
        let made = changes.make(&sent, async { Ok(html! { "done" }) }).await;
        assert!(made.is_ok() && changes.shown(&sent).is_some());
    }

    #[tokio::test]
    async fn a_change_goes_on_after_the_client_has_gone() {
        let changes = Changes::default();
        let sent = form(&random_id());
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let first = changes.make(&sent, async move {
            let _ = gone.await;
            Ok(html! { "done" })
        });
        let waited = tokio::time::timeout(std::time::Duration::ZERO, first).await;
        assert!(waited.is_err(), "it waits");
        go.send(()).unwrap();
        let again = changes.make(&sent, async { Err(Refusal::bad("twice", "do not")) });
        assert!(again.await.is_ok());
    }

    #[tokio::test]
    async fn the_number_of_kept_results_has_a_limit() {
        let changes = Changes::default();
        for _ in 0..=KEPT_MAX {
            let form = form("7");
            let made = changes.make(&form, async { Ok(html! { "done" }) });
            assert!(made.await.is_ok());
        }
        assert_eq!(changes.0.lock().unwrap().len(), KEPT_MAX);
    }
}
