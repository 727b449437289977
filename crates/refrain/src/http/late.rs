//! Late responses: those that arrive after the caller got `outcome-unknown`.

use std::pin::{Pin, pin};

use tokio::time::timeout_at;

use super::{
    Failure,
    budget::Share,
    receipted,
    run::{Called, Ran, Run, caught, doubt},
    service::Carried,
};
use crate::{
    Guarantee,
    engine::{Count, Running},
    policy::Ending,
    record::{Reason, Settled},
};

impl Run {
    /// Handles a timeout: answers the caller with `outcome-unknown`, and awaits a late response in the background.
    pub(super) async fn late<W, R, E>(
        self,
        mut work: Pin<Box<W>>,
        mut running: Running,
    ) -> Ran<R, E>
    where
        W: Future<Output = Called<R, E>> + Send + 'static,
        R: Carried,
        E: Send + 'static,
    {
        if let Some(outcome) = self.found_late(&running).await {
            return self.found(running, outcome).await;
        }
        doubt(&mut running, Reason::Timeout).await;
        let told = self.lost(&running, Reason::Timeout);
        tokio::spawn(async move {
            let operation = &*self.operation;
            let listening = pin!(async {
                match caught(&mut work).await {
                    Called::Started(begun) => {
                        let share = Share::counted(&self.shared.budget);
                        begun.read(operation, share).await
                    }
                    called => called,
                }
            });
            if let Some(called) = in_time(&running, listening).await {
                self.complete_late(running, called).await;
            }
        });
        told
    }

    /// Settles the record by a late response.
    async fn complete_late<R, E>(&self, running: Running, called: Called<R, E>) {
        let response = match called {
            Called::Response(Ending::Keep, response) => response,
            Called::Response(Ending::Release, _) | Called::Failure(Failure::NotSent) => {
                return release_late(running).await;
            }
            _ => return,
        };
        let witness = self.intent.receipts.as_ref();
        // With receipts, a failure response says nothing about the effect.
        if witness.is_some() && !receipted::is_success(response.status()) {
            return;
        }
        let id = running.id();
        let outcome = self.outcome(&response, id);
        let settled = running.complete(outcome).await;
        let engine = &self.shared.engine;
        if let Ok(Settled::Applied) = settled {
            engine.tally().count(Count::Resolved);
        }
        match (settled, witness) {
            (Ok(Settled::Applied), Some(witness)) => engine.check_receipt(witness, id),
            (Ok(_), _) => {}
            (Err(error), _) => tracing::error!(%error, "a late outcome could not be stored"),
        }
    }
}

/// Awaits a late response for as long as it counts.
///
/// A handler in this process is dropped at its deadline: after that the store accepts "it never happened", so the handler
/// must not act. A request that was sent to another process cannot be cancelled: its response counts until
/// the record is settled otherwise.
async fn in_time<T>(
    running: &Running,
    mut listening: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    if let Ok(called) = timeout_at(running.deadline(), &mut listening).await {
        return Some(called);
    }
    if !running.is_sent() {
        return None;
    }
    tokio::select! {
        called = listening => Some(called),
        () = running.settled_elsewhere() => None,
    }
}

/// Frees a key whose attempt reported late that it had no effect.
///
/// Under at-least-once the next retry runs anyway; under exactly-once the receipts decide.
async fn release_late(running: Running) {
    if running.guarantee() != Guarantee::AtMostOnce {
        return;
    }
    let record = running.id();
    if let Err(error) = running.release_late().await {
        tracing::error!(%record, %error, "a late response without effect could not be stored");
    }
}
