//! The book of payments, in place of a database: one payment per key, with the fence (fencing token) under
//! which it was made.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{self, BufRead as _, BufReader, Write as _},
    path::Path,
    sync::{Mutex, PoisonError},
};

use refrain::Fence;
use serde::{Deserialize, Serialize};

/// One payment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payment {
    /// The idempotency key.
    pub key: String,
    /// The amount.
    pub amount: u64,
    /// The payee.
    pub to: String,
}

/// Result of a payment attempt.
#[derive(Debug, PartialEq, Eq)]
pub enum Paid {
    /// The payment is in the book, from this attempt or an earlier one.
    Done(Payment),
    /// A later holder of the same key has already paid: this attempt is too late.
    Overtaken,
}

/// The book, in a file with one line per payment.
#[derive(Debug)]
pub struct Book {
    pages: Mutex<Pages>,
}

#[derive(Debug)]
struct Pages {
    payments: HashMap<String, Line>,
    file: File,
}

/// A payment and its fence: epoch, counter, nonce.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    payment: Payment,
    fence: (u32, u64, u32),
}

impl Book {
    /// Opens the book, or creates it if missing.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)?;
        let mut payments = HashMap::new();
        for line in BufReader::new(&file).lines() {
            let line: Line = serde_json::from_str(&line?)?;
            payments.insert(line.payment.key.clone(), line);
        }
        let pages = Mutex::new(Pages { payments, file });
        Ok(Self { pages })
    }

    /// Pays once per key. Fences of one key only grow, so a fence older than the stored one belongs to a
    /// holder that was taken over.
    ///
    /// # Errors
    /// If the payment cannot be written.
    pub fn pay(&self, payment: Payment, fence: Fence) -> io::Result<Paid> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let fence = (fence.epoch, fence.counter, fence.nonce);
        match pages.payments.get(&payment.key) {
            Some(known) if fence < known.fence => return Ok(Paid::Overtaken),
            Some(known) => return Ok(Paid::Done(known.payment.clone())),
            None => {}
        }
        let line = Line { payment, fence };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        pages.file.write_all(&text)?;
        pages.file.sync_data()?;
        let payment = line.payment.clone();
        pages.payments.insert(payment.key.clone(), line);
        Ok(Paid::Done(payment))
    }

    /// The payment under this key.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<Payment> {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.payments.get(key).map(|line| line.payment.clone())
    }
}
