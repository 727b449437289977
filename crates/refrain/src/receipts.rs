//! Receipts: what an operation commits together with its effect, so that nobody has to guess.
//!
//! Under [exactly-once](crate::Guarantee::ExactlyOnce) the operation inserts one row into a table of its own database,
//! in the same transaction as its effect. The row is unique to the record: of several attempts one commits.
//! Whenever the outcome of an attempt was not learnt, the row is read: found, it is the outcome; not found, it did not commit.
//!
//! This module has no driver: [`Receipts`] is what one implements, and [`Witness`] is what one operation's receipts are known to be worth.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{Error, ErrorKind, Outcome, Result, key::RecordId, outcome::Packer};

mod witness;
pub use witness::{Sighting, Standing, Witness};

/// Reads receipts, and always from where they are written: what a copy does not show yet would be run again.
///
/// # Cancellation
/// Every future here may be dropped: nothing is changed by reading.
pub trait Receipts: fmt::Debug + Send + Sync + 'static {
    /// The receipt of this record, if one was committed.
    fn find(&self, record: RecordId) -> impl Future<Output = Result<Option<Receipt>>> + Send;

    /// For each of these records, whether a receipt was committed; in their order.
    fn seen(&self, records: &[RecordId]) -> impl Future<Output = Result<Vec<bool>>> + Send;
}

/// What an operation has committed together with its effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The fence of the attempt that committed, as the operation was told it.
    pub fence: String,
    /// The status of its answer.
    pub status: u16,
    /// What the body is.
    pub content_type: Option<String>,
    /// Where to find what it made.
    pub location: Option<String>,
    /// The body of its answer.
    pub body: Bytes,
    /// How long ago its transaction began.
    pub age: Duration,
}

impl Receipt {
    /// The receipt as an outcome; without its body where that is over `bytes_max`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the status is none that ends a request.
    pub fn outcome(&self, record: RecordId, bytes_max: usize) -> Result<Outcome> {
        if !(200..=599).contains(&self.status) {
            let message = format!(
                "the receipt of record {record} has status {}; write the status of the answer, from 200 to 599",
                self.status
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let headers = [
            ("content-type", &self.content_type),
            ("location", &self.location),
        ];
        let headers = headers
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_deref()?.as_bytes())));
        let mut packer = Packer::with_room(self.status, headers, self.body.len());
        match self.body.len() <= bytes_max {
            true => packer.push(&self.body),
            false => packer.drop_body(),
        }
        Ok(packer.finish([]).sealed(record))
    }
}

/// Any [`Receipts`] behind one type, at the price of one boxed future a call. Clones share it.
#[derive(Clone)]
pub struct AnyReceipts(Arc<dyn Object>);

impl AnyReceipts {
    /// Takes receipts.
    pub fn new(receipts: impl Receipts) -> Self {
        Self(Arc::new(receipts))
    }
}

impl fmt::Debug for AnyReceipts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// [`Receipts`] as an object.
trait Object: fmt::Debug + Send + Sync {
    fn find(&self, record: RecordId) -> Boxed<'_, Option<Receipt>>;
    fn seen<'a>(&'a self, records: &'a [RecordId]) -> Boxed<'a, Vec<bool>>;
}

impl<R: Receipts> Object for R {
    fn find(&self, record: RecordId) -> Boxed<'_, Option<Receipt>> {
        Box::pin(Receipts::find(self, record))
    }

    fn seen<'a>(&'a self, records: &'a [RecordId]) -> Boxed<'a, Vec<bool>> {
        Box::pin(Receipts::seen(self, records))
    }
}

impl Receipts for AnyReceipts {
    async fn find(&self, record: RecordId) -> Result<Option<Receipt>> {
        self.0.find(record).await
    }

    async fn seen(&self, records: &[RecordId]) -> Result<Vec<bool>> {
        self.0.seen(records).await
    }
}
