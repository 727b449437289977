//! The cases, each with its own ledger and keys.

use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use bytes::Bytes;
use http::Request;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{AT_ONCE, AWAITS_MAX, other};
use crate::{
    Ledger,
    door::{Door, Going, Got, Makers, Reading, ServiceResponse, describe_response, fresh_key},
    holes::Seen,
};

/// Timeout for a response, and for a key to leave the in-flight state once no request runs.
const PATIENCE: Duration = Duration::from_secs(30);
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// A service, its ledger and a request with a fresh key.
struct Trial {
    door: Door,
    ledger: Ledger,
    request: Request<Bytes>,
}

impl Trial {
    async fn new(makers: &Makers) -> Self {
        let ledger = Ledger::in_memory();
        Self {
            door: makers.door(&ledger),
            request: makers.request(&fresh_key()).await,
            ledger,
        }
    }

    fn going(&self) -> Going<Got> {
        self.door.send(self.request.clone(), Reading::All)
    }

    async fn send(&self) -> Got {
        in_time(self.going()).await
    }

    /// Repeats the request while the response is "in flight" or "busy".
    async fn decided(&self) -> Got {
        let since = Instant::now();
        loop {
            let got = self.send().await;
            let is_open = got.as_ref().is_ok_and(ServiceResponse::is_busy);
            if !is_open || since.elapsed() > PATIENCE {
                return got;
            }
            sleep(ASK_AGAIN).await;
        }
    }

    /// Checks that the ledger contains `want` effects.
    fn effects(&self, want: usize, after: &str) -> Seen {
        let effects = self.ledger.all().map_err(|error| error.to_string())?;
        let attempts: Vec<_> = effects.iter().map(|it| it.attempt.as_str()).collect();
        let by = attempts.join(", ");
        match effects.len() {
            count if count == want => Ok(()),
            0 => Err(format!("{after} it has not taken effect")),
            1 => Err(format!(
                "{after} it took effect once ({by}), not {want} times"
            )),
            count => Err(format!(
                "{after} it took effect {count} times ({by}), not {}",
                times(want)
            )),
        }
    }
}

fn times(count: usize) -> String {
    match count {
        1 => "once".into(),
        count => format!("{count} times"),
    }
}

async fn in_time(going: impl Future<Output = Got>) -> Got {
    let ended = timeout(PATIENCE, going).await;
    ended.unwrap_or_else(|_| Err(format!("no response within {PATIENCE:?}")))
}

fn same(first: &Got, duplicate: &Got, what: &str) -> Seen {
    match first == duplicate {
        true => Ok(()),
        false => Err(format!(
            "the first request got {}, {what} got {}",
            describe_response(first),
            describe_response(duplicate)
        )),
    }
}

pub(super) async fn first(makers: &Makers) -> Seen {
    let trial = Trial::new(makers).await;
    let got = trial.send().await;
    match &got {
        Ok(answer) if answer.is_success() => trial.effects(1, "after one request"),
        got => Err(format!("a first request got {}", describe_response(got))),
    }
}

pub(super) async fn sequential(makers: &Makers) -> Seen {
    let trial = Trial::new(makers).await;
    let first = trial.send().await;
    for _ in 0..2 {
        let duplicate = trial.send().await;
        trial.effects(1, "after the same request again")?;
        same(&first, &duplicate, "its duplicate")?;
    }
    Ok(())
}

pub(super) async fn concurrent(makers: &Makers) -> Seen {
    let trial = Trial::new(makers).await;
    let mut running = JoinSet::new();
    for _ in 0..AT_ONCE {
        running.spawn(in_time(trial.going()));
    }
    let all = running.join_all().await;
    trial.effects(1, &format!("after {AT_ONCE} duplicates at once"))?;
    let end = trial.decided().await;
    trial.effects(1, "after one more duplicate")?;
    let is_fine = |got: &&Got| **got == end || got.as_ref().is_ok_and(ServiceResponse::is_busy);
    match all.iter().find(|got| !is_fine(got)) {
        None => must_succeed(&end),
        Some(odd) => same(&end, odd, &format!("one of {AT_ONCE} duplicates at once")),
    }
}

fn must_succeed(end: &Got) -> Seen {
    match end {
        Ok(answer) if answer.is_success() => Ok(()),
        end => Err(format!("in the end it got {}", describe_response(end))),
    }
}

/// Sends a duplicate at each await of the first request. The `bool` says whether the first request awaited at all.
pub(super) async fn in_flight(makers: &Makers) -> (bool, Seen) {
    for awaits in 1..=AWAITS_MAX {
        let trial = Trial::new(makers).await;
        let mut first = trial.going();
        if polled(&mut first, awaits).await {
            return (awaits > 1, Ok(()));
        }
        if let Err(seen) = met(&trial, first, awaits).await {
            return (true, Err(seen));
        }
    }
    (true, Ok(()))
}

/// Sends a duplicate while the first request is suspended at an await, then runs both to the end.
async fn met(trial: &Trial, first: Going<Got>, awaits: usize) -> Seen {
    let (first, duplicate) = tokio::join!(in_time(first), in_time(trial.going()));
    let at = format!("after a duplicate at the first one's await {awaits}");
    trial.effects(1, &at)?;
    if !duplicate.as_ref().is_ok_and(ServiceResponse::is_busy) {
        same(&first, &duplicate, "a duplicate in flight")?;
    }
    let end = trial.decided().await;
    trial.effects(1, &at)?;
    must_succeed(&end)?;
    match first.as_ref().is_ok_and(ServiceResponse::is_busy) {
        true => Ok(()),
        false => same(&first, &end, "a later duplicate"),
    }
}

/// Polls the future up to `times` times; returns whether it completed.
async fn polled(going: &mut Going<Got>, times: usize) -> bool {
    let mut left = times;
    poll_fn(|context| match Pin::new(&mut *going).poll(context) {
        Poll::Ready(_) => Poll::Ready(true),
        Poll::Pending => {
            left -= 1;
            match left {
                0 => Poll::Ready(false),
                _ => Poll::Pending,
            }
        }
    })
    .await
}

pub(super) async fn lost(makers: &Makers) -> Seen {
    let trial = Trial::new(makers).await;
    let dropped = trial.door.send(trial.request.clone(), Reading::Nothing);
    let first = in_time(dropped).await;
    trial.effects(1, "after a request whose answer was dropped")?;
    let retry = trial.decided().await;
    trial.effects(1, "after the retry of a request whose answer was dropped")?;
    let status = |got: &Got| got.as_ref().map(|answer| answer.status).ok();
    match status(&first) == status(&retry) {
        true => same(&retry, &trial.decided().await, "the retry after that"),
        false => same(&first, &retry, "the retry after its answer was dropped"),
    }
}

pub(super) async fn other_body(makers: &Makers) -> Option<Seen> {
    let trial = Trial::new(makers).await;
    let body = other::other(trial.request.body())?;
    let other = trial.request.clone().map(|_| body);
    let first = trial.send().await;
    let got = in_time(trial.door.send(other, Reading::All)).await;
    let refused = got
        .as_ref()
        .is_ok_and(|answer| (400..500).contains(&answer.status));
    Some(match refused && first != got {
        true => trial.effects(1, "after another body with the same key"),
        false => Err(format!(
            "another body with the same key got {}, the first request got {}",
            describe_response(&got),
            describe_response(&first)
        )),
    })
}

pub(super) async fn other_key(makers: &Makers) -> Seen {
    let trial = Trial::new(makers).await;
    let first = trial.send().await;
    must_succeed(&first)?;
    let other = makers.request(&fresh_key()).await;
    let got = in_time(trial.door.send(other, Reading::All)).await;
    trial.effects(2, "after two requests with two keys")?;
    must_succeed(&got)
}
