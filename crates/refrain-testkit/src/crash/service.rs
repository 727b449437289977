//! Crashes of services.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use refrain::Guarantee;
use tokio::time::{Instant, sleep, timeout};

use super::{
    CRASHES_MAX, add, at_points, describe_crash,
    life::{Death, cut, live},
};
use crate::{
    Audit, Ledger, Seen as Saw,
    door::{Door, Got, Makers, Reading, ServiceResponse, describe_response, fresh_key},
    holes::{Case, Report, Seen},
    ledger::Fall,
};

/// Timeout for a response, and for retries that are answered "in flight" or "busy".
const PATIENCE: Duration = Duration::from_secs(30);
const ASK_AGAIN: Duration = Duration::from_millis(10);

const HANGS_UP: Case = Case {
    id: "client-hangs-up",
    hole: "A client disconnect cancels the execution or its recording: the retry executes again, or the key stays locked.",
    fix: "Continue execution and recording after a disconnect, or commit effect and record together.",
};
const DIES: Case = Case {
    id: "process-dies",
    hole: "After a crash between effect and record, the retry executes again, or the key stays locked for the whole retention.",
    fix: "Commit effect and record in one transaction; or give claims a lease, and return unknown outcome after it lapses.",
};
const PANICS: Case = Case {
    id: "handler-panics",
    hole: "After a panic the key is free although the effect may have happened, or stays locked for ever.",
    fix: "Settle the claim on every exit path; after a panic the outcome is unknown, and the key must not be released.",
};
const LOST: Case = Case {
    id: "lost-answer",
    hole: "A retry after a lost response executes again, or gets no response.",
    fix: "Store the response durably before sending it, and replay it.",
};

/// One operation with its own key and ledger.
struct Trial<'m> {
    guarantee: Guarantee,
    makers: &'m Makers,
    ledger: Ledger,
    key: String,
    request: Request<Bytes>,
}

pub(super) async fn check(guarantee: Guarantee, makers: Makers) -> Report {
    let mut report = Report::default();
    report.add(&HANGS_UP, hangs_up(guarantee, &makers).await);
    let died = dies(guarantee, &makers).await;
    let at_points = at_points(async |at, fall| at_point(guarantee, &makers, at, fall).await).await;
    add(&mut report, [&DIES, &PANICS], died, at_points);
    report.add(&LOST, lost(guarantee, &makers).await);
    report
}

/// Drops the caller's future at each await in turn; the process lives on.
async fn hangs_up(guarantee: Guarantee, makers: &Makers) -> Seen {
    for awaits in 1..=CRASHES_MAX {
        let trial = Trial::new(guarantee, makers).await;
        let door = makers.door(&trial.ledger);
        let going = door.send(trial.request.clone(), Reading::All);
        let Ok(cut) = timeout(PATIENCE, cut(going, awaits)).await else {
            return Err(format!(
                "a first request got no response within {PATIENCE:?}"
            ));
        };
        if cut.is_some() {
            return Ok(());
        }
        let end = trial.retried(&door).await;
        trial.judge(&end, &format!("the client disconnected at await {awaits}"))?;
    }
    Ok(())
}

/// Drops the runtime at each await in turn.
async fn dies(guarantee: Guarantee, makers: &Makers) -> Seen {
    for awaits in 1..=CRASHES_MAX {
        let trial = Trial::new(guarantee, makers).await;
        if trial.life(Death::AtAwait(awaits)).await.is_some() {
            return Ok(());
        }
        let end = trial.retried(&makers.door(&trial.ledger)).await;
        trial.judge(&end, &format!("the process died at await {awaits}"))?;
    }
    Ok(())
}

async fn at_point(guarantee: Guarantee, makers: &Makers, at: usize, fall: Fall) -> Option<Seen> {
    let trial = Trial::new(guarantee, makers).await;
    trial.ledger.arm(at, fall);
    let door = makers.door(&trial.ledger);
    match fall {
        Fall::Stop => drop(trial.life(Death::AtPoint(trial.ledger.clone())).await),
        Fall::Panic => drop(trial.send(&door).await),
    }
    let place = trial.ledger.fallen()?;
    let door = match fall {
        Fall::Stop => makers.door(&trial.ledger),
        Fall::Panic => door,
    };
    let end = trial.retried(&door).await;
    Some(trial.judge(&end, &describe_crash(fall, at, &place)))
}

async fn lost(guarantee: Guarantee, makers: &Makers) -> Seen {
    let trial = Trial::new(guarantee, makers).await;
    let door = makers.door(&trial.ledger);
    let dropped = door.send(trial.request.clone(), Reading::Nothing);
    if timeout(PATIENCE, dropped).await.is_err() {
        return Err(format!(
            "a first request got no response within {PATIENCE:?}"
        ));
    }
    let end = trial.retried(&door).await;
    trial.judge(&end, "the answer was lost")
}

impl<'m> Trial<'m> {
    async fn new(guarantee: Guarantee, makers: &'m Makers) -> Self {
        let key = fresh_key();
        Self {
            guarantee,
            makers,
            ledger: Ledger::in_memory(),
            request: makers.request(&key).await,
            key,
        }
    }

    /// Sends the request in a simulated process that dies as `death` says.
    async fn life(&self, death: Death) -> Option<Got> {
        let (makers, ledger) = (self.makers.clone(), self.ledger.clone());
        let request = self.request.clone();
        let work = move || makers.door(&ledger).send(request, Reading::All);
        live(work, death).await
    }

    async fn send(&self, door: &Door) -> Got {
        let going = door.send(self.request.clone(), Reading::All);
        let ended = timeout(PATIENCE, going).await;
        ended.unwrap_or_else(|_| Err(format!("no response within {PATIENCE:?}")))
    }

    /// Retries like a client, as long as the response says to retry later.
    async fn retried(&self, door: &Door) -> Got {
        let since = Instant::now();
        loop {
            let got = self.send(door).await;
            let is_open = got.as_ref().is_ok_and(ServiceResponse::is_busy);
            if !is_open || since.elapsed() > PATIENCE {
                return got;
            }
            sleep(ASK_AGAIN).await;
        }
    }

    /// Compares what the guarantee promises with the ledger and the last response.
    fn judge(&self, end: &Got, after: &str) -> Seen {
        let effects = self.ledger.all().map_err(|error| error.to_string())?;
        let seen = |why: String| {
            Err(format!(
                "{after}; the retry got {}, and there were {} effects: {why}",
                describe_response(end),
                effects.len()
            ))
        };
        let saw = match end {
            Ok(answer) if answer.is_busy() => {
                return seen(format!("it is still in flight after {PATIENCE:?}"));
            }
            Ok(answer) if answer.is_success() => Saw::Completed,
            Ok(answer) if answer.is_doubt() => Saw::Unknown,
            Ok(_) => Saw::Failed,
            Err(_) => Saw::Unknown,
        };
        if self.guarantee != Guarantee::AtMostOnce && saw != Saw::Completed {
            return seen("a retry must complete it".into());
        }
        // The outcome of the crashed request is unknown: it may have executed.
        let mut audit = Audit::new(self.guarantee);
        let named = effects.first().map_or(&*self.key, |effect| &*effect.key);
        audit.saw(named, Saw::Unknown);
        audit.saw(named, saw);
        match audit.check(&effects).first() {
            Some(violation) => seen(violation.what.clone()),
            None if saw == Saw::Failed => {
                seen("the response is neither the outcome nor an unknown outcome".into())
            }
            None => Ok(()),
        }
    }
}
