//! Receipts: rows that an operation commits together with its effect, which prove the outcome.
//!
//! Under [exactly-once](crate::Guarantee::ExactlyOnce) the operation inserts one row into a table of its own database,
//! in the same transaction as its effect. The row is unique to the record, so only one of several attempts commits.
//! If the outcome of an attempt is unknown, the row is read: if it exists, it holds the outcome;
//! if not, the attempt has not committed.
//!
//! This module has no database driver. Drivers implement [`Receipts`].
//! A [`Witness`] tracks whether the receipts of one operation are reliable.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{Error, ErrorKind, Outcome, Result, key::RecordId, outcome::Packer};

mod witness;
pub use witness::{Sighting, Standing, Witness};

/// Reads receipts, always from the primary database: a receipt missing from a stale replica would cause a second run.
///
/// # Cancellation
/// Every future here may be dropped: reading changes nothing.
pub trait Receipts: fmt::Debug + Send + Sync + 'static {
    /// Returns the receipt of this record, if one was committed.
    fn find(&self, record: RecordId) -> impl Future<Output = Result<Option<Receipt>>> + Send;

    /// Returns for each record whether a receipt was committed, in the order of `records`.
    fn seen(&self, records: &[RecordId]) -> impl Future<Output = Result<Vec<bool>>> + Send;
}

/// The row that an operation commits together with its effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The fence of the attempt that committed, as the operation received it.
    pub fence: String,
    /// The status of the response.
    pub status: u16,
    /// The media type of the body.
    pub content_type: Option<String>,
    /// The value of the `Location` header.
    pub location: Option<String>,
    /// The body of the response.
    pub body: Bytes,
    /// Time since the start of the transaction that wrote the receipt.
    pub age: Duration,
}

impl Receipt {
    /// Converts the receipt to an outcome, without the body if that is longer than `bytes_max`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the status is not between 200 and 599.
    pub fn outcome(&self, record: RecordId, bytes_max: usize) -> Result<Outcome> {
        if !(200..=599).contains(&self.status) {
            let message = format!(
                "the receipt of record {record} has status {}; write the status of the response, from 200 to 599",
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

/// Type-erased [`Receipts`], at the cost of one boxed future per call. Clones share the same receipts.
#[derive(Clone)]
pub struct AnyReceipts(Arc<dyn ReceiptsObject>);

impl AnyReceipts {
    /// Wraps any implementation of [`Receipts`].
    pub fn new(receipts: impl Receipts) -> Self {
        Self(Arc::new(receipts))
    }
}

impl fmt::Debug for AnyReceipts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

type ReceiptFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Object-safe form of [`Receipts`].
trait ReceiptsObject: fmt::Debug + Send + Sync {
    fn find(&self, record: RecordId) -> ReceiptFuture<'_, Option<Receipt>>;
    fn seen<'a>(&'a self, records: &'a [RecordId]) -> ReceiptFuture<'a, Vec<bool>>;
}

impl<R: Receipts> ReceiptsObject for R {
    fn find(&self, record: RecordId) -> ReceiptFuture<'_, Option<Receipt>> {
        Box::pin(Receipts::find(self, record))
    }

    fn seen<'a>(&'a self, records: &'a [RecordId]) -> ReceiptFuture<'a, Vec<bool>> {
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
