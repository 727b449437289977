//! Records as rows of a table, there and back.

use std::{error::Error as StdError, time::Duration};

use bytes::{Bytes, BytesMut};
use refrain::{
    Claim, Credential, Error, ErrorKind, Fence, Fingerprint, Guarantee, Outcome, RecordId, Result,
    clock::Timestamp,
    record::{Claimant, Hold, Reason, Record, State},
};
use tokio_postgres::{
    Row,
    types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked},
};

pub(super) const IN_FLIGHT: i16 = 1;
pub(super) const COMPLETED: i16 = 2;
pub(super) const INDETERMINATE: i16 = 3;
pub(super) const TOMBSTONE: i16 = 4;

/// 16 bytes as PostgreSQL's `uuid`, which takes the least room and sorts as bytes do.
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

/// What a row holds beside its record.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) record: Record,
    /// Which handle granted the claim.
    pub(super) holder: Option<i64>,
    /// Whether somebody waits for it in another process.
    pub(super) waited: bool,
}

/// The identity of a row; what else it holds is read by [`read`].
pub(super) fn id(row: &Row) -> Result<RecordId> {
    let id = row.try_get::<_, Id>(0).map_err(unreadable)?;
    Ok(RecordId(id.0))
}

/// Reads the columns of `sql.rs`, in their order.
///
/// # Errors
/// [`ErrorKind::Corrupt`] where they do not make a record, or its outcome is damaged or another record's.
pub(super) fn read(row: &Row) -> Result<Held> {
    let id = id(row)?;
    let columns = Columns { row, id };
    let state = match columns.must::<i16>(3)? {
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
        _ => return Err(columns.corrupt("its state is not known")),
    };
    let credential = columns.may::<i64>(2)?;
    Ok(Held {
        record: Record {
            fingerprint: Fingerprint(columns.must::<Id>(1)?.0),
            credential: credential.map(|bits| Credential(bits.to_be_bytes())),
            state,
        },
        holder: columns.may(17)?,
        waited: columns.must(18)?,
    })
}

struct Columns<'a> {
    row: &'a Row,
    id: RecordId,
}

impl<'a> Columns<'a> {
    fn may<T: FromSql<'a>>(&self, place: usize) -> Result<Option<T>> {
        self.row.try_get(place).map_err(unreadable)
    }

    fn must<T: FromSql<'a>>(&self, place: usize) -> Result<T> {
        let value = self.may(place)?;
        value.ok_or_else(|| self.corrupt(&format!("its column {place} is empty")))
    }

    fn moment(&self, place: usize) -> Result<Timestamp> {
        let millis = self.must::<i64>(place)?;
        Ok(Timestamp(u64::try_from(millis).unwrap_or(0)))
    }

    fn fence(&self) -> Result<Fence> {
        Ok(Fence {
            epoch: self.must::<i32>(4)?.cast_unsigned(),
            counter: self.must::<i64>(5)?.cast_unsigned(),
            nonce: self.must::<i32>(6)?.cast_unsigned(),
        })
    }

    fn hold(&self) -> Result<Hold> {
        let guarantee = guarantee(self.must(8)?);
        Ok(Hold {
            fence: self.fence()?,
            claimant: Claimant(self.must::<i64>(7)?.cast_unsigned()),
            guarantee: guarantee.ok_or_else(|| self.corrupt("its guarantee is not known"))?,
            attempts: self.count(9)?,
            attempts_max: self.count(10)?,
            settle_after: Duration::from_millis(self.moment(11)?.0),
            settles: self.moment(12)?,
        })
    }

    fn count(&self, place: usize) -> Result<u16> {
        let count = u16::try_from(self.must::<i32>(place)?);
        count.map_err(|_| self.corrupt("its attempts do not count"))
    }

    fn reason(&self) -> Result<Reason> {
        let code = u8::try_from(self.must::<i16>(14)?).ok();
        let reason = code.and_then(Reason::from_code);
        reason.ok_or_else(|| self.corrupt("its reason is not known"))
    }

    fn outcome(&self) -> Result<Outcome> {
        let encoded = self.must::<&[u8]>(19)?;
        Outcome::decode(Bytes::copy_from_slice(encoded), self.id)
    }

    fn corrupt(&self, what: &str) -> Error {
        let message = format!("the row of record {} is damaged: {what}", self.id);
        Error::new(ErrorKind::Corrupt, message)
    }
}

fn unreadable(error: tokio_postgres::Error) -> Error {
    let message = format!(
        "a row of the records table cannot be read: {}",
        super::trouble::words(&error)
    );
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

/// The longest span that is written down: sums of two and a moment fit into the column.
const SPAN_MAX: u64 = i64::MAX as u64 / 4;

/// Rounded up, as everywhere: nothing ends earlier than was asked for.
pub(super) fn span(span: Duration) -> i64 {
    (Timestamp(0) + span).0.min(SPAN_MAX).cast_signed()
}

fn moment(moment: Timestamp) -> i64 {
    moment.0.min(i64::MAX as u64).cast_signed()
}

pub(super) fn credential(credential: Option<Credential>) -> Option<i64> {
    credential.map(|Credential(bytes)| i64::from_be_bytes(bytes))
}

/// New claims, column by column.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pub(super) ids: Vec<Id>,
    pub(super) fingerprints: Vec<Id>,
    pub(super) credentials: Vec<Option<i64>>,
    pub(super) nonces: Vec<i32>,
    pub(super) claimants: Vec<i64>,
    pub(super) guarantees: Vec<i16>,
    pub(super) attempts_max: Vec<i32>,
    pub(super) settle_after: Vec<i64>,
    pub(super) leases: Vec<i64>,
}

impl Claims {
    /// What its parameters are, for statements that are not prepared.
    pub(super) const TYPES: [Type; 9] = [
        Type::UUID_ARRAY,
        Type::UUID_ARRAY,
        Type::INT8_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::INT2_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
    ];

    pub(super) fn push(&mut self, claim: &Claim, nonce: u32) {
        self.ids.push(Id(claim.id.0));
        self.fingerprints.push(Id(claim.fingerprint.0));
        self.credentials.push(credential(claim.credential));
        self.nonces.push(nonce.cast_signed());
        self.claimants.push(claim.claimant.0.cast_signed());
        self.guarantees.push(guarantee_code(claim.guarantee));
        self.attempts_max.push(claim.attempts_max.into());
        self.settle_after.push(span(claim.settle_after));
        self.leases.push(span(claim.lease));
    }

    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 9] {
        [
            &self.ids,
            &self.fingerprints,
            &self.credentials,
            &self.nonces,
            &self.claimants,
            &self.guarantees,
            &self.attempts_max,
            &self.settle_after,
            &self.leases,
        ]
    }
}

/// Completions, column by column.
#[derive(Debug, Default)]
pub(super) struct Completions<'a> {
    pub(super) ids: Vec<Id>,
    epochs: Vec<i32>,
    counters: Vec<i64>,
    nonces: Vec<i32>,
    retentions: Vec<i64>,
    remembers: Vec<i64>,
    outcomes: Vec<&'a [u8]>,
}

impl<'a> Completions<'a> {
    /// What its parameters are, for statements that are not prepared.
    pub(super) const TYPES: [Type; 7] = [
        Type::UUID_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::BYTEA_ARRAY,
    ];

    pub(super) fn push(
        &mut self,
        id: RecordId,
        fence: Fence,
        outcome: &'a Outcome,
        retention: Duration,
        remember: Duration,
    ) {
        self.ids.push(Id(id.0));
        self.epochs.push(fence.epoch.cast_signed());
        self.counters.push(fence.counter.cast_signed());
        self.nonces.push(fence.nonce.cast_signed());
        self.retentions.push(span(retention));
        self.remembers.push(span(remember));
        self.outcomes.push(outcome.encoded());
    }

    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 7] {
        [
            &self.ids,
            &self.epochs,
            &self.counters,
            &self.nonces,
            &self.retentions,
            &self.remembers,
            &self.outcomes,
        ]
    }
}

/// Whole rows, column by column, in the order of `sql.rs`.
#[derive(Debug, Default)]
pub(super) struct Rows {
    ids: Vec<Id>,
    fingerprints: Vec<Id>,
    credentials: Vec<Option<i64>>,
    states: Vec<i16>,
    epochs: Vec<Option<i32>>,
    counters: Vec<Option<i64>>,
    nonces: Vec<Option<i32>>,
    claimants: Vec<Option<i64>>,
    guarantees: Vec<Option<i16>>,
    attempts: Vec<Option<i32>>,
    attempts_max: Vec<Option<i32>>,
    settle_after: Vec<Option<i64>>,
    settles: Vec<Option<i64>>,
    lease_ends: Vec<Option<i64>>,
    reasons: Vec<Option<i16>>,
    retention_ends: Vec<Option<i64>>,
    remember_ends: Vec<Option<i64>>,
    holders: Vec<Option<i64>>,
    waited: Vec<bool>,
    outcomes: Vec<Option<Vec<u8>>>,
}

impl Rows {
    /// What its parameters are, for statements that are not prepared.
    pub(super) const TYPES: [Type; 20] = [
        Type::UUID_ARRAY,
        Type::UUID_ARRAY,
        Type::INT8_ARRAY,
        Type::INT2_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::INT2_ARRAY,
        Type::INT4_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT2_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::BOOL_ARRAY,
        Type::BYTEA_ARRAY,
    ];

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub(super) fn push(&mut self, id: RecordId, held: &Held) {
        let Held {
            record,
            holder,
            waited,
        } = held;
        self.ids.push(Id(id.0));
        self.fingerprints.push(Id(record.fingerprint.0));
        self.credentials.push(credential(record.credential));
        let fence = record.fence();
        self.epochs
            .push(fence.map(|fence| fence.epoch.cast_signed()));
        self.counters
            .push(fence.map(|fence| fence.counter.cast_signed()));
        self.nonces
            .push(fence.map(|fence| fence.nonce.cast_signed()));
        let hold = match &record.state {
            State::InFlight { hold, .. } | State::Indeterminate { hold, .. } => Some(*hold),
            State::Completed { .. } | State::Tombstone { .. } => None,
        };
        self.push_hold(hold, *holder);
        self.waited.push(*waited);
        self.push_state(&record.state);
    }

    fn push_hold(&mut self, hold: Option<Hold>, holder: Option<i64>) {
        self.claimants
            .push(hold.map(|hold| hold.claimant.0.cast_signed()));
        self.guarantees
            .push(hold.map(|hold| guarantee_code(hold.guarantee)));
        self.attempts.push(hold.map(|hold| hold.attempts.into()));
        self.attempts_max
            .push(hold.map(|hold| hold.attempts_max.into()));
        self.settle_after
            .push(hold.map(|hold| span(hold.settle_after)));
        self.settles.push(hold.map(|hold| moment(hold.settles)));
        self.holders.push(holder.filter(|_| hold.is_some()));
    }

    fn push_state(&mut self, state: &State) {
        let (code, lease_ends, reason, retention_ends, remember_ends, outcome) = match state {
            State::InFlight { lease_ends, .. } => {
                (IN_FLIGHT, Some(*lease_ends), None, None, None, None)
            }
            State::Indeterminate { reason, .. } => {
                (INDETERMINATE, None, Some(*reason), None, None, None)
            }
            State::Completed {
                outcome,
                retention_ends,
                remember_ends,
                ..
            } => {
                let (retention_ends, remember_ends) = (Some(*retention_ends), Some(*remember_ends));
                let outcome = Some(outcome.encoded().to_vec());
                (
                    COMPLETED,
                    None,
                    None,
                    retention_ends,
                    remember_ends,
                    outcome,
                )
            }
            State::Tombstone { remember_ends } => {
                (TOMBSTONE, None, None, None, Some(*remember_ends), None)
            }
        };
        self.states.push(code);
        self.lease_ends.push(lease_ends.map(moment));
        self.reasons
            .push(reason.map(|reason| i16::from(reason as u8)));
        self.retention_ends.push(retention_ends.map(moment));
        self.remember_ends.push(remember_ends.map(moment));
        self.outcomes.push(outcome);
    }

    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 20] {
        [
            &self.ids,
            &self.fingerprints,
            &self.credentials,
            &self.states,
            &self.epochs,
            &self.counters,
            &self.nonces,
            &self.claimants,
            &self.guarantees,
            &self.attempts,
            &self.attempts_max,
            &self.settle_after,
            &self.settles,
            &self.lease_ends,
            &self.reasons,
            &self.retention_ends,
            &self.remember_ends,
            &self.holders,
            &self.waited,
            &self.outcomes,
        ]
    }
}
