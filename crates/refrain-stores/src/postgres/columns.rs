//! Statement parameters in columnar form: one array for each column.

use std::time::Duration;

use refrain::{
    Claim, Credential, Fence, Outcome, RecordId,
    clock::Timestamp,
    record::{Hold, State},
};
use tokio_postgres::types::{ToSql, Type};

use super::rows::{COMPLETED, IN_FLIGHT, INDETERMINATE, Id, RecordRow, TOMBSTONE, guarantee_code};

/// Longest stored duration, in milliseconds: a timestamp plus two of them fits into `int8`.
const SPAN_MAX: u64 = i64::MAX as u64 / 4;

/// Rounds up, so that nothing ends earlier than requested.
fn span(span: Duration) -> i64 {
    (Timestamp(0) + span).0.min(SPAN_MAX).cast_signed()
}

fn moment(moment: Timestamp) -> i64 {
    moment.0.min(i64::MAX as u64).cast_signed()
}

fn credential(credential: Option<Credential>) -> Option<i64> {
    credential.map(|Credential(bytes)| i64::from_be_bytes(bytes))
}

/// New claims, one array for each column.
#[derive(Debug, Default)]
pub(super) struct Claims<'a> {
    pub(super) ids: Vec<Id>,
    pub(super) fingerprints: Vec<Id>,
    pub(super) credentials: Vec<Option<i64>>,
    pub(super) nonces: Vec<i32>,
    pub(super) claimants: Vec<i64>,
    pub(super) guarantees: Vec<i16>,
    pub(super) attempts_max: Vec<i32>,
    pub(super) settle_after: Vec<i64>,
    pub(super) leases: Vec<i64>,
    /// The origins: what precedes time and fence in the trace of a new record, and what follows them.
    heads: Vec<&'a [u8]>,
    tails: Vec<&'a [u8]>,
}

impl<'a> Claims<'a> {
    /// Parameter types, for statements that are not prepared.
    pub(super) const TYPES: [Type; 11] = [
        Type::UUID_ARRAY,
        Type::UUID_ARRAY,
        Type::INT8_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::INT2_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::BYTEA_ARRAY,
        Type::BYTEA_ARRAY,
    ];

    pub(super) fn push(&mut self, claim: &'a Claim, nonce: u32) {
        self.ids.push(Id(claim.id.0));
        self.fingerprints.push(Id(claim.fingerprint.0));
        self.credentials.push(credential(claim.credential));
        self.nonces.push(nonce.cast_signed());
        self.claimants.push(claim.claimant.0.cast_signed());
        self.guarantees.push(guarantee_code(claim.guarantee));
        self.attempts_max.push(claim.attempts_max.into());
        self.settle_after.push(span(claim.settle_after));
        self.leases.push(span(claim.lease));
        self.heads.push(claim.origin.head());
        self.tails.push(claim.origin.tail());
    }

    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 11] {
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
            &self.heads,
            &self.tails,
        ]
    }
}

/// Completions, one array for each column.
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
    /// Parameter types, for statements that are not prepared.
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

/// Whole rows, one array for each column, in the order of `sql.rs`.
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
    traces: Vec<Option<Vec<u8>>>,
}

impl Rows {
    /// Parameter types, for statements that are not prepared.
    pub(super) const TYPES: [Type; 21] = [
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
        Type::BYTEA_ARRAY,
    ];

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub(super) fn push(&mut self, id: RecordId, held: &RecordRow) {
        let RecordRow {
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
        let trace = record.trace.as_bytes();
        self.traces
            .push((!trace.is_empty()).then(|| trace.to_vec()));
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

    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 21] {
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
            &self.traces,
        ]
    }
}
