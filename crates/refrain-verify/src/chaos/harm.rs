//! Injects the fault of a rule into a request.

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{Mutex, PoisonError},
    task::Poll,
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{
    answer::UnreadResponse,
    exchange::{connect, poll_send_request, relay},
    flow::{Flow, Manner},
    line::{Ended, ProxiedConnection},
    request::{Request, RequestFlags},
    rule::Fault,
    side::Side,
};
use crate::place::Endpoint;

/// Maximum size of a request that is buffered to be sent in one piece or twice.
const TWICE_BYTES_MAX: usize = 16 << 20;
/// Maximum time to read a response that is discarded.
const UNSEEN_MAX: Duration = Duration::from_secs(60);

/// Requests held back until another request has overtaken them, by rule.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<HashMap<u64, oneshot::Sender<()>>>);

impl Waiting {
    /// Returns the held request for the caller to overtake. If there is none, holds the caller: returns its receiver.
    fn meet(&self, rule: u64) -> Result<oneshot::Sender<()>, oneshot::Receiver<()>> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A closed sender: the held request was dropped and cannot be overtaken.
        if let Some(other) = waiting.remove(&rule).filter(|other| !other.is_closed()) {
            return Ok(other);
        }
        let (told, tells) = oneshot::channel();
        waiting.insert(rule, told);
        Err(tells)
    }
}

/// Result of an injected fault: what the client gets, and the upstream's status.
pub(super) struct Harmed {
    pub(super) shown: Result<(UnreadResponse, Manner), Ended>,
    pub(super) upstream: Option<u16>,
}

impl Harmed {
    fn answered(answer: Result<UnreadResponse, Ended>) -> Self {
        Self::answered_in_manner(answer, Manner::AsItComes)
    }

    fn answered_in_manner(answer: Result<UnreadResponse, Ended>, manner: Manner) -> Self {
        let upstream = answer.as_ref().ok().map(|answer| answer.status.as_u16());
        Self {
            shown: answer.map(|answer| (answer, manner)),
            upstream,
        }
    }

    fn ended(upstream: Option<u16>) -> Self {
        Self {
            shown: Err(Ended),
            upstream,
        }
    }
}

impl ProxiedConnection {
    /// Injects the rule's fault into this request.
    pub(super) async fn harm(
        &mut self,
        rule: u64,
        fault: Fault,
        request: &mut Request,
    ) -> (Harmed, Option<String>) {
        match fault {
            Fault::ResetBefore => {
                self.reset_when_closed();
                (Harmed::ended(None), None)
            }
            Fault::Delay(time) => {
                sleep(time).await;
                (Harmed::answered(self.pass(request).await), None)
            }
            Fault::DelayAnswer(time) => {
                let answer = self.pass(request).await;
                sleep(time).await;
                (Harmed::answered(answer), None)
            }
            Fault::Cut(at) => {
                let answer = self.pass(request).await;
                (Harmed::answered_in_manner(answer, Manner::Cut(at)), None)
            }
            Fault::Slow(rate) => {
                let answer = self.pass(request).await;
                (Harmed::answered_in_manner(answer, Manner::slow(rate)), None)
            }
            Fault::DropAnswer => (self.drop_answer(request).await, None),
            Fault::Reorder(patience) => self.reorder(rule, patience, request).await,
            Fault::Twice(later) => self.twice(later, request).await,
            Fault::ResetAfter => self.reset_after(request).await,
        }
    }

    /// Makes the later close of the client's connection a reset instead of an orderly end.
    fn reset_when_closed(&self) {
        if let Err(error) = self.client.io.set_zero_linger() {
            tracing::warn!(%error, "cannot set SO_LINGER; the connection is closed normally instead of reset");
        }
    }

    /// Reads the upstream's response to its end and discards it.
    async fn drop_answer(&mut self, request: &mut Request) -> Harmed {
        let Ok(answer) = self.pass(request).await else {
            return Harmed::ended(None);
        };
        let status = answer.status.as_u16();
        // The upstream connection closes together with the client's.
        if let Some(mut upstream) = self.upstream.take() {
            let mut unheard = answer.into_discarded_flow();
            let onward = &mut request.onward;
            let heard = relay(&mut self.client, &mut upstream, onward, &mut unheard);
            let _ = timeout(UNSEEN_MAX, heard).await;
        }
        Harmed::ended(Some(status))
    }

    async fn reorder(
        &mut self,
        rule: u64,
        patience: Duration,
        request: &mut Request,
    ) -> (Harmed, Option<String>) {
        match self.chaos.0.reorder.meet(rule) {
            Ok(other) => {
                let answer = self.pass(request).await;
                // The held request may have timed out meanwhile.
                let _ = other.send(());
                (
                    Harmed::answered(answer),
                    Some("overtook another request".into()),
                )
            }
            Err(overtaken) => {
                let note = match timeout(patience, overtaken).await {
                    Ok(Ok(())) => "was overtaken by another request",
                    _ => "no other request arrived to overtake it",
                };
                (
                    Harmed::answered(self.pass(request).await),
                    Some(note.into()),
                )
            }
        }
    }

    async fn twice(&mut self, later: Duration, request: &mut Request) -> (Harmed, Option<String>) {
        let whole = match self.whole(request).await {
            Ok(whole) => whole,
            Err(note) => return (Harmed::ended(None), Some(note)),
        };
        let (again, asked) = (whole.clone(), request.asked);
        let upstream = self.chaos.0.upstream.clone();
        let second = tokio::spawn(async move {
            sleep(later).await;
            let sent = send_alone(&upstream, again, asked, None);
            timeout(UNSEEN_MAX, sent).await.ok().flatten()
        });
        request.onward = Flow::whole(whole);
        let answer = self.pass(request).await;
        let note = match later {
            // Without a delay, wait for the second response to note its status.
            Duration::ZERO => match second.await {
                Ok(Some(status)) => format!("the second copy got {status}"),
                _ => "the second copy got no response".into(),
            },
            later => format!("sent again {later:?} later"),
        };
        (Harmed::answered(answer), Some(note))
    }

    /// Sends the complete request on a separate connection, which outlives the client's.
    async fn reset_after(&mut self, request: &mut Request) -> (Harmed, Option<String>) {
        let whole = match self.whole(request).await {
            Ok(whole) => whole,
            Err(note) => return (Harmed::ended(None), Some(note)),
        };
        let (taken, sent) = oneshot::channel();
        let (upstream, asked) = (self.chaos.0.upstream.clone(), request.asked);
        tokio::spawn(async move {
            let sent = send_alone(&upstream, whole, asked, Some(taken));
            let _ = timeout(UNSEEN_MAX, sent).await;
        });
        let note = sent
            .await
            .err()
            .map(|_| "the upstream is unreachable".to_owned());
        self.reset_when_closed();
        (Harmed::ended(None), note)
    }

    /// Reads a request to its end; returns the bytes to send to the upstream.
    async fn whole(&mut self, request: &mut Request) -> Result<Vec<u8>, String> {
        let broken =
            |why: &dyn std::fmt::Display| format!("cannot read the whole request body: {why}");
        let said = self.send_continue(request).await;
        said.map_err(|error| broken(&error))?;
        loop {
            let input = &mut self.client.input.bytes;
            let taken = request.onward.take_whole(input);
            let taken = taken.map_err(|stuck| broken(&stuck))?;
            let so_far = request.onward.gathered_len();
            if taken.as_ref().map_or(so_far, Vec::len) > TWICE_BYTES_MAX {
                return Err(broken(&"it is larger than 16 MiB"));
            }
            if let Some(whole) = taken {
                return Ok(whole);
            }
            match self.client.read().await {
                Ok(0) => return Err(broken(&"the client hung up")),
                Ok(_) => {}
                Err(error) => return Err(broken(&error)),
            }
        }
    }
}

/// Sends a request on a separate connection and reads the whole response; returns its status. Signals `taken` once the
/// request is sent.
async fn send_alone(
    upstream: &Endpoint,
    request: Vec<u8>,
    asked: RequestFlags,
    mut taken: Option<oneshot::Sender<()>>,
) -> Option<u16> {
    let (mut nobody, mut upstream) = (Side::new(tokio::io::empty()), connect(upstream).await?);
    let mut request = Flow::whole(request);
    let answer = poll_fn(|context| {
        let polled = poll_send_request(&mut nobody, &mut upstream, &mut request, asked, context);
        if (request.is_over() || matches!(polled, Poll::Ready(Ok(_))))
            && let Some(taken) = taken.take()
        {
            let _ = taken.send(());
        }
        polled
    });
    let answer = answer.await.ok()?;
    let status = answer.status.as_u16();
    let mut unheard = answer.into_discarded_flow();
    let _ = relay(&mut nobody, &mut upstream, &mut request, &mut unheard).await;
    Some(status)
}
