//! Calls in flight in this process. Each runs in its own task, and several callers may wait for it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::Ending;
use crate::{Error, ErrorKind, Fingerprint, Key, Result};

/// Result of a call, for all its waiters.
type Landed = Option<Result<Ending, Arc<Error>>>;

/// Calls in flight, by key.
#[derive(Debug, Clone, Default)]
pub(super) struct CallFlights(Arc<Mutex<HashMap<Key, CallFlight>>>);

#[derive(Debug)]
struct CallFlight {
    fingerprint: Fingerprint,
    landed: watch::Receiver<Landed>,
}

/// Waits for a call.
#[derive(Debug)]
pub(super) struct Waiter(watch::Receiver<Landed>);

impl CallFlights {
    /// Waits for the call under this key, or starts it.
    pub(super) fn join_or_start<F>(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        call: impl FnOnce() -> F,
    ) -> Result<Waiter>
    where
        F: Future<Output = Result<Ending>> + Send + 'static,
    {
        let mut flights = self.lock();
        match flights.get(key) {
            Some(flight) if flight.fingerprint == fingerprint => {
                return Ok(Waiter(flight.landed.clone()));
            }
            Some(_) => {
                return Err(Error::new(
                    ErrorKind::Mismatch,
                    "the key is in flight with another request; use another key for another intent",
                ));
            }
            None => {}
        }
        let (tell, landed) = watch::channel(None);
        let flight = CallFlight {
            fingerprint,
            landed: landed.clone(),
        };
        flights.insert(key.clone(), flight);
        drop(flights);
        let leave = Leave(self.clone(), key.clone());
        let call = call();
        tokio::spawn(async move {
            let ended = call.await.map_err(Arc::new);
            // Callers that arrive from here on find the ending in the journal.
            drop(leave);
            tell.send_replace(Some(ended));
        });
        Ok(Waiter(landed))
    }

    /// Whether a call under this key is in flight.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.lock().contains_key(key)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, CallFlight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a call when its task ends, even by a panic.
struct Leave(CallFlights, Key);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl Waiter {
    /// Waits for the result of the call.
    pub(super) async fn wait(mut self) -> Result<Ending> {
        let landed = self.0.wait_for(Option::is_some).await;
        match landed.as_deref() {
            Ok(Some(Ok(ending))) => Ok(ending.clone()),
            Ok(Some(Err(error))) => Err(Error::new(error.kind(), error.to_string())),
            Ok(None) | Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                "the call was cancelled; if it is in the journal, Client::resume continues it",
            )),
        }
    }
}
