//! Resume: continues calls that an earlier process or a failed attempt left open.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Request;
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    Client, Ending, Stopped, Transport, Why,
    flights::Waiter,
    journal::codec::Intent,
    request,
    run::{CallRun, Deadline},
};
use crate::{Error, ErrorKind, Key, Result, clock::Timestamp};

/// A call without an ending.
#[derive(Debug, Clone)]
pub struct OpenCall {
    /// Key of the call.
    pub key: Key,
    /// The request, without its body and without headers that are not kept.
    pub request: Request<Bytes>,
    /// Wall-clock time at which it was journalled, in milliseconds since 1970.
    pub created: Timestamp,
    /// Wall-clock time after which it is not sent.
    pub deadline: Timestamp,
    /// Time left until the deadline; zero after it.
    pub left: Duration,
}

impl OpenCall {
    pub(super) fn of(intent: Intent, left: Duration) -> Self {
        Self {
            created: intent.created.wall,
            deadline: intent.created.wall + intent.deadline,
            key: intent.key,
            request: intent.request,
            left,
        }
    }
}

/// Result of a resumed call.
#[derive(Debug)]
pub struct Resumed {
    /// Key of the call.
    pub key: Key,
    /// Its ending, or the error because of which it could not be continued; then it stays open.
    pub ending: Result<Ending>,
}

/// Stream of the endings of resumed calls.
#[derive(Debug)]
pub struct Resume {
    endings: mpsc::Receiver<Resumed>,
}

impl Resume {
    /// Returns the next ending; `None` after the last one.
    ///
    /// # Cancellation
    /// Dropping it loses no ending.
    pub async fn next(&mut self) -> Option<Resumed> {
        self.endings.recv().await
    }

    /// Waits for all endings.
    ///
    /// # Cancellation
    /// If dropped, the list is lost; the endings are in the journal.
    pub async fn all(mut self) -> Vec<Resumed> {
        let mut all = Vec::new();
        while let Some(resumed) = self.next().await {
            all.push(resumed);
        }
        all
    }
}

/// Callback that adds headers to a journalled request before it is sent again.
type Renew = Arc<dyn Fn(&Key, &mut Request<Bytes>) + Send + Sync>;

/// Continues these calls, up to `resumed_at_once_max` at a time.
pub(super) fn start<T: Transport>(
    client: Client<T>,
    open: Vec<Intent>,
    renew: impl Fn(&Key, &mut Request<Bytes>) + Send + Sync + 'static,
) -> Resume {
    let at_once_max = client.settings.resumed_at_once_max.max(1);
    let (tell, endings) = mpsc::channel(at_once_max);
    let renew: Renew = Arc::new(renew);
    tokio::spawn(async move {
        let mut going = JoinSet::new();
        for intent in open {
            while going.len() >= at_once_max {
                going.join_next().await;
            }
            let key = intent.key.clone();
            let ending = begin(&client, &intent, renew.clone());
            let tell = tell.clone();
            going.spawn(async move {
                let ending = match ending {
                    ResumedCall::Going(waiter) => waiter.wait().await,
                    ResumedCall::Over(ending) => ending,
                };
                // The receiver may be gone; the calls continue anyway.
                let _ = tell.send(Resumed { key, ending }).await;
            });
        }
        // After the last ending, the caller may close the journal and open it again.
        drop(client);
        going.join_all().await;
    });
    Resume { endings }
}

enum ResumedCall {
    Going(Waiter),
    Over(Result<Ending>),
}

fn begin<T: Transport>(client: &Client<T>, intent: &Intent, renew: Renew) -> ResumedCall {
    let shared = client.shared.clone();
    if Deadline::of(intent, shared.journal.now())
        .left(shared.journal.now())
        .is_zero()
    {
        return ResumedCall::Over(Ok(Ending::Unknown(past_deadline())));
    }
    let (client, key) = (client.clone(), intent.key.clone());
    let start = || continue_call(client, key, renew);
    let started = shared
        .flights
        .join_or_start(&intent.key, intent.fingerprint, start);
    match started {
        Ok(waiter) => ResumedCall::Going(waiter),
        Err(error) => ResumedCall::Over(Err(error)),
    }
}

async fn continue_call<T: Transport>(client: Client<T>, key: Key, renew: Renew) -> Result<Ending> {
    let (shared, settings) = (client.shared.clone(), &client.settings);
    let Some(mut intent) = shared.journal.load(&key).await? else {
        let message = "the call ended meanwhile";
        return Err(Error::new(ErrorKind::Unavailable, message));
    };
    renew(&key, &mut intent.request);
    check_renewed(&shared.journal, &intent)?;
    let (header, syntax) = (&settings.key_header, settings.key_syntax);
    request::put_key(intent.request.headers_mut(), header, syntax, &key)?;
    let run = CallRun {
        deadline: Deadline::of(&intent, shared.journal.now()),
        shared,
        retry: settings.retry,
        key,
        fingerprint: intent.fingerprint,
        request: intent.request,
        may_have_run: true,
        attempts: 0,
        counted: 0,
    };
    run.run_to_end().await
}

/// Checks that a resumed request has its credentials, and is otherwise unchanged.
/// Without its credential, the server may treat it as another caller's request, and execute it again.
fn check_renewed(journal: &super::Journal, intent: &Intent) -> Result<()> {
    let headers = intent.request.headers();
    let missing = |name: &&http::HeaderName| !headers.contains_key(*name);
    if let Some(name) = intent.left_out.iter().find(missing) {
        let message = format!(
            "the request had a header `{name}`, which is not journalled; add it again with `resume_with`"
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    match journal.fingerprint(&intent.request) == intent.fingerprint {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::Mismatch,
            "`resume_with` changed the request; it may change headers, but not the method, URL or body",
        )),
    }
}

fn past_deadline() -> Stopped {
    Stopped {
        why: Why::DeadlinePassed,
        attempts: 0,
        answer: None,
        trouble: None,
    }
}
