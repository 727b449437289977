//! The systems further down, as small as can be: each remembers what it did under which key, and does it once.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use refrain::{Key, steps::Failure};

/// What nobody pays for a ride.
const FARE_MAX: u64 = 100;

/// Drivers, a bank and a mail server. Clones are the same ones.
#[derive(Debug, Clone, Default)]
pub struct Town {
    books: Arc<Mutex<Books>>,
    is_mail_down: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Books {
    /// The number that was given under a key.
    known: HashMap<Key, u64>,
    /// What happened, in order.
    effects: Vec<String>,
}

impl Town {
    /// Books a ride and gives its number.
    ///
    /// # Errors
    /// None here; a real one can be out of reach.
    pub async fn book(&self, key: Key, passenger: &str) -> Result<u64, Failure> {
        Ok(self.once(key, &format!("ride for {passenger}")))
    }

    /// Cancels a ride.
    ///
    /// # Errors
    /// None here; a real one can be out of reach.
    pub async fn cancel(&self, key: Key, ride: u64) -> Result<(), Failure> {
        self.once(key, &format!("ride {ride} cancelled"));
        Ok(())
    }

    /// Charges a fare and gives the payment's number.
    ///
    /// # Errors
    /// When the fare is too high: that is final.
    pub async fn charge(&self, key: Key, fare: u64) -> Result<u64, Failure> {
        match fare > FARE_MAX {
            true => Err(Failure::reject("the card was declined")),
            false => Ok(self.once(key, &format!("{fare} charged"))),
        }
    }

    /// Pays a charge back.
    ///
    /// # Errors
    /// None here; a real one can be out of reach.
    pub async fn refund(&self, key: Key, charge: u64) -> Result<(), Failure> {
        self.once(key, &format!("payment {charge} refunded"));
        Ok(())
    }

    /// Mails a receipt.
    ///
    /// # Errors
    /// While the mail server is down: to be tried again.
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

    /// What happened so far.
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
