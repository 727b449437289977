//! The book of payments. It stands for your database: one payment a key, and the fence under which it was made.

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
    /// What names it.
    pub key: String,
    /// How much.
    pub amount: u64,
    /// To whom.
    pub to: String,
}

/// What came of paying.
#[derive(Debug, PartialEq, Eq)]
pub enum Paid {
    /// It is in the book, now or since an earlier attempt.
    Done(Payment),
    /// A later holder of the same key was here before: this attempt woke up too late to count.
    Overtaken,
}

/// The book, in a file of one line a payment.
#[derive(Debug)]
pub struct Book {
    pages: Mutex<Pages>,
}

#[derive(Debug)]
struct Pages {
    payments: HashMap<String, Line>,
    file: File,
}

/// A payment, and the fence that it was made under: epoch, counter, nonce.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    payment: Payment,
    fence: (u32, u64, u32),
}

impl Book {
    /// Opens the book, and begins one if there is none.
    ///
    /// # Errors
    /// When the file cannot be read or written.
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

    /// Pays, once a key. Fences of one key grow, so an older one than the book knows comes from a holder that was overtaken.
    ///
    /// # Errors
    /// When the payment cannot be written.
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
