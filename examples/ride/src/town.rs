//! Minimal downstream systems: each stores its result per key, and acts once per key.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use refrain::{Key, steps::Failure};

/// A higher fare is declined.
const FARE_MAX: u64 = 100;

/// Drivers, a bank and a mail server. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct Town {
    books: Arc<Mutex<Books>>,
    is_mail_down: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Books {
    /// The number assigned to each key.
    known: HashMap<Key, u64>,
    /// The effects, in order.
    effects: Vec<String>,
}

impl Town {
    /// Books a ride and returns its number.
    ///
    /// # Errors
    /// Never here; a real service may be unavailable.
    pub async fn book(&self, key: Key, passenger: &str) -> Result<u64, Failure> {
        Ok(self.once(key, &format!("ride for {passenger}")))
    }

    /// Cancels a ride.
    ///
    /// # Errors
    /// Never here; a real service may be unavailable.
    pub async fn cancel(&self, key: Key, ride: u64) -> Result<(), Failure> {
        self.once(key, &format!("ride {ride} cancelled"));
        Ok(())
    }

    /// Charges a fare and returns the payment's number.
    ///
    /// # Errors
    /// If the fare is too high, which is final.
    pub async fn charge(&self, key: Key, fare: u64) -> Result<u64, Failure> {
        match fare > FARE_MAX {
            true => Err(Failure::reject("the card was declined")),
            false => Ok(self.once(key, &format!("{fare} charged"))),
        }
    }

    /// Refunds a charge.
    ///
    /// # Errors
    /// Never here; a real service may be unavailable.
    pub async fn refund(&self, key: Key, charge: u64) -> Result<(), Failure> {
        self.once(key, &format!("payment {charge} refunded"));
        Ok(())
    }

    /// Mails a receipt.
    ///
    /// # Errors
    /// While the mail server is down; retryable.
    pub async fn mail(&self, key: Key, passenger: &str, charge: u64) -> Result<(), Failure> {
        if self.is_mail_down.load(Ordering::Relaxed) {
            return Err(Failure::retry("the mail server does not answer"));
        }
        self.once(key, &format!("receipt {charge} to {passenger}"));
        Ok(())
    }

    /// Takes the mail server down, or up again.
    pub fn set_mail_down(&self, is_down: bool) {
        self.is_mail_down.store(is_down, Ordering::Relaxed);
    }

    /// The effects so far.
    #[must_use]
    pub fn effects(&self) -> Vec<String> {
        self.books().effects.clone()
    }

    fn once(&self, key: Key, what: &str) -> u64 {
        let mut books = self.books();
        if let Some(number) = books.known.get(&key) {
            return *number;
        }
        books.effects.push(what.into());
        let number = books.effects.len() as u64;
        books.known.insert(key, number);
        number
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
