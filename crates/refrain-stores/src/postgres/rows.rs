//! Conversion of records from table rows.

use std::{error::Error as StdError, time::Duration};

use bytes::{Bytes, BytesMut};
use refrain::{
    Credential, Error, ErrorKind, Fence, Fingerprint, Guarantee, Outcome, RecordId, Result,
    clock::Timestamp,
    record::{Claimant, Hold, Reason, Record, State, Trace},
};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use super::within::Cells;

pub(super) const IN_FLIGHT: i16 = 1;
pub(super) const COMPLETED: i16 = 2;
pub(super) const INDETERMINATE: i16 = 3;
pub(super) const TOMBSTONE: i16 = 4;

/// 16 bytes as PostgreSQL's `uuid`, the most compact type, which sorts like bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Id(pub(super) [u8; 16]);

impl ToSql for Id {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Id {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    accepts!(UUID);
}

/// Record with the additional columns of its row.
#[derive(Debug, Clone)]
pub(super) struct RecordRow {
    pub(super) record: Record,
    /// Handle that granted the claim.
    pub(super) holder: Option<i64>,
    /// Whether a caller in another process waits for the record.
    pub(super) waited: bool,
}

/// Reads the identity of a row; [`read`] reads the other columns.
pub(super) fn id(row: &impl Cells) -> Result<RecordId> {
    let id = row.cell::<Id>(0).map_err(unreadable)?;
    Ok(RecordId(id.0))
}

/// Reads the columns in the order of `sql.rs`.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if they do not form a record, or the outcome is damaged or belongs to another record.
pub(super) fn read(row: &impl Cells) -> Result<RecordRow> {
    let id = id(row)?;
    let columns = Columns { row, id };
    let state = match columns.required::<i16>(3)? {
        IN_FLIGHT => State::InFlight {
            hold: columns.hold()?,
            lease_ends: columns.moment(13)?,
        },
        COMPLETED => State::Completed {
            fence: columns.fence()?,
            outcome: columns.outcome()?,
            retention_ends: columns.moment(15)?,
            remember_ends: columns.moment(16)?,
        },
        INDETERMINATE => State::Indeterminate {
            hold: columns.hold()?,
            reason: columns.reason()?,
        },
        TOMBSTONE => State::Tombstone {
            remember_ends: columns.moment(16)?,
        },
        _ => return Err(columns.corrupt("unknown state")),
    };
    let credential = columns.optional::<i64>(2)?;
    Ok(RecordRow {
        record: Record {
            fingerprint: Fingerprint(columns.required::<Id>(1)?.0),
            credential: credential.map(|bits| Credential(bits.to_be_bytes())),
            state,
            trace: columns.trace()?,
        },
        holder: columns.optional(17)?,
        waited: columns.required(18)?,
    })
}

struct Columns<'a, R> {
    row: &'a R,
    id: RecordId,
}

impl<'a, R: Cells> Columns<'a, R> {
    fn optional<T: FromSql<'a>>(&self, place: usize) -> Result<Option<T>> {
        self.row.cell(place).map_err(unreadable)
    }

    fn required<T: FromSql<'a>>(&self, place: usize) -> Result<T> {
        let value = self.optional(place)?;
        value.ok_or_else(|| self.corrupt(&format!("column {place} is NULL")))
    }

    fn moment(&self, place: usize) -> Result<Timestamp> {
        let millis = self.required::<i64>(place)?;
        Ok(Timestamp(u64::try_from(millis).unwrap_or(0)))
    }

    fn fence(&self) -> Result<Fence> {
        Ok(Fence {
            epoch: self.required::<i32>(4)?.cast_unsigned(),
            counter: self.required::<i64>(5)?.cast_unsigned(),
            nonce: self.required::<i32>(6)?.cast_unsigned(),
        })
    }

    fn hold(&self) -> Result<Hold> {
        let guarantee = guarantee(self.required(8)?);
        Ok(Hold {
            fence: self.fence()?,
            claimant: Claimant(self.required::<i64>(7)?.cast_unsigned()),
            guarantee: guarantee.ok_or_else(|| self.corrupt("unknown guarantee"))?,
            attempts: self.count(9)?,
            attempts_max: self.count(10)?,
            settle_after: Duration::from_millis(self.moment(11)?.0),
            settles: self.moment(12)?,
        })
    }

    fn count(&self, place: usize) -> Result<u16> {
        let count = u16::try_from(self.required::<i32>(place)?);
        count.map_err(|_| self.corrupt("invalid attempt counter"))
    }

    fn reason(&self) -> Result<Reason> {
        let code = u8::try_from(self.required::<i16>(14)?).ok();
        let reason = code.and_then(Reason::from_code);
        reason.ok_or_else(|| self.corrupt("unknown reason"))
    }

    fn outcome(&self) -> Result<Outcome> {
        let encoded = self.required::<&[u8]>(19)?;
        let outcome = Outcome::decode(Bytes::copy_from_slice(encoded), self.id)?;
        match outcome.fits(self.fence()?) {
            true => Ok(outcome),
            false => Err(self.corrupt("the outcome belongs to another attempt")),
        }
    }

    /// Rows of earlier versions have no trace.
    fn trace(&self) -> Result<Trace> {
        let bytes = self.optional::<&[u8]>(20)?;
        Ok(Bytes::copy_from_slice(bytes.unwrap_or_default()).into())
    }

    fn corrupt(&self, what: &str) -> Error {
        let message = format!("the row of record {} is damaged: {what}", self.id);
        Error::new(ErrorKind::Corrupt, message)
    }
}

pub(super) fn unreadable(words: String) -> Error {
    let message = format!("cannot decode a row of the records table: {words}");
    Error::new(ErrorKind::Corrupt, message)
}

pub(super) fn guarantee(code: i16) -> Option<Guarantee> {
    Some(match code {
        1 => Guarantee::AtMostOnce,
        2 => Guarantee::AtLeastOnce,
        3 => Guarantee::ExactlyOnce,
        _ => return None,
    })
}

pub(super) fn guarantee_code(guarantee: Guarantee) -> i16 {
    match guarantee {
        Guarantee::AtMostOnce => 1,
        Guarantee::AtLeastOnce => 2,
        Guarantee::ExactlyOnce => 3,
    }
}
