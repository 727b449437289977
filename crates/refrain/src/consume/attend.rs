//! The life of one delivery: waiting for its turn, attempts, acknowledgement.

use std::{sync::Arc, time::Duration};

use tokio::{sync::SemaphorePermit, time::sleep};

use super::{
    Count, DeadReason, Delivery, Message, Task, Ticket, Worked,
    dead::{self, LetterHistory, redrive_of, restored, text_of},
    key,
    pull::LanePosition,
    sequence::{Before, Gap, SequencePosition},
    shared::{ConsumerState, KnownAttempts},
    work,
};
use crate::{
    Error, Fingerprint, Key, RecordId, Result, Scope,
    failure::brief,
    fingerprint::RequestView,
    record::{OriginFields, State},
    store::Store,
};

/// Maximum number of attempts to publish a dead letter before its message is returned to the broker.
const PUBLISHES_MAX: u32 = 3;
/// Minimum pause for a message that is in flight elsewhere, because its holder may be about to finish.
const IN_FLIGHT_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Maximum redelivery delay, because brokers limit it.
const DELAY_MAX: Duration = Duration::from_hours(12);

/// One delivery in progress.
pub(super) struct AttendedDelivery {
    shared: Arc<ConsumerState>,
    message: Arc<Message>,
    /// The broker's delivery count, if it counts and the records do not.
    delivered: Option<u32>,
    ticket: Box<dyn Ticket>,
}

/// Identity under which a message is handled.
struct NamedMessage {
    scope: Scope,
    key: Key,
    fingerprint: Fingerprint,
    redrive: u32,
    place: Option<SequencePosition>,
}

/// Result of one round.
enum Round {
    Ended(Count),
    /// Publish the message as a dead letter. The number is how often its handler was started, as far as known here.
    Dead(DeadReason, String, u32),
    Again {
        why: Count,
        delay: Duration,
        /// Whether it waits for a message that may be after it in the queue. Then it is returned even if the broker
        /// orders.
        lets_pass: bool,
    },
}

impl AttendedDelivery {
    pub(super) fn new(shared: Arc<ConsumerState>, delivery: Delivery) -> Self {
        let counts = shared.guarantees.counts_attempts && !shared.records_count_attempts;
        Self {
            message: Arc::new(restored(delivery.message)),
            delivered: counts.then_some(delivery.attempt),
            ticket: delivery.ticket,
            shared,
        }
    }

    /// Processes the delivery to its end. `turn` is its place in its group, if the broker orders.
    pub(super) async fn attend(self, turn: Option<LanePosition>) {
        let mut turn = turn;
        if let Some(turn) = &mut turn {
            tokio::select! {
                () = self.shared.stopping() => {}
                () = self.extended(turn.wait_turn()) => {}
            }
        }
        let named = self.name();
        let id = named.as_ref().ok().map(|named| named.id(&self.shared));
        loop {
            let Some(round) = self.round(&named).await else {
                return self.give_back(Duration::ZERO, Count::GivenBack).await;
            };
            let (why, delay, lets_pass) = match round {
                Round::Ended(count) => return self.acknowledge(count, id).await,
                Round::Dead(reason, failure, attempts) => {
                    let named = named.as_ref().ok();
                    match self
                        .publish_dead_letter(named, reason, &failure, attempts)
                        .await
                    {
                        true => return self.acknowledge(Count::DeadLettered, id).await,
                        false => {
                            let longest = self.shared.settings.backoff.max;
                            (Count::Undeliverable, longest, false)
                        }
                    }
                }
                Round::Again {
                    why,
                    delay,
                    lets_pass,
                } => (why, delay, lets_pass),
            };
            let delay = delay.min(DELAY_MAX);
            if lets_pass || !self.shared.guarantees.is_ordered {
                return self.give_back(delay, why).await;
            }
            // If returned, the next message of its group would overtake it, so it waits in place.
            self.shared.tally.count(why);
            tokio::select! {
                () = self.shared.stopping() => {
                    return self.give_back(delay, Count::GivenBack).await;
                }
                () = self.extended(sleep(delay)) => {}
            }
        }
    }

    /// Derives the identity of the message, or the reason why it has none.
    fn name(&self) -> Result<NamedMessage, (DeadReason, String)> {
        let (settings, message) = (&self.shared.settings, &*self.message);
        let is_ours = text_of(message, dead::DEAD_CONSUMER) == Some(&*settings.name);
        // A message redriven for another consumer counts as not redriven here.
        let redrive = if is_ours { redrive_of(message) } else { 0 };
        let place = settings.sequence.as_ref();
        let place = place.map(|sequence| sequence.position(&self.shared.scope, message));
        let place = place
            .transpose()
            .map_err(|error| (DeadReason::SequenceInvalid, error.to_string()))?;
        let (scope, key) = match &place {
            Some(place) => (place.scope.clone(), place.key.clone()),
            None => (self.shared.scope.clone(), self.key()?),
        };
        // The media type may have changed in the dead-letter queue, so the original fingerprint is used.
        let told = text_of(message, dead::DEAD_FINGERPRINT).filter(|_| redrive > 0);
        let told = told.and_then(|text| text.parse::<RecordId>().ok());
        Ok(NamedMessage {
            scope,
            key,
            fingerprint: told.map_or_else(|| self.fingerprint(), |RecordId(it)| Fingerprint(it)),
            redrive,
            place,
        })
    }

    fn key(&self) -> Result<Key, (DeadReason, String)> {
        match key::find_key(&self.shared.settings.keys, &self.message) {
            Ok(Some(key)) => Ok(key),
            Ok(None) => {
                let failure = "the message has none of the key sources";
                Err((DeadReason::KeyMissing, failure.into()))
            }
            Err(error) => Err((DeadReason::KeyInvalid, error.to_string())),
        }
    }

    fn fingerprint(&self) -> Fingerprint {
        let content = key::content(&self.message);
        let view = RequestView {
            method: "",
            path: &self.message.subject,
            query: None,
            host: None,
            headers: &*self.message,
            content: &content,
        };
        let parts = &self.shared.settings.fingerprint;
        Fingerprint::of(self.shared.engine.secret(), parts, &view)
    }

    /// Makes one attempt; `None` if the consumer stops before it starts.
    async fn round(&self, named: &Result<NamedMessage, (DeadReason, String)>) -> Option<Round> {
        let shared = &self.shared;
        let named = match named {
            Ok(named) => named,
            Err((reason, failure)) => return Some(Round::Dead(*reason, failure.clone(), 0)),
        };
        let permit = self.permit().await?;
        let handled = shared.tally.handle();
        let id = named.id(shared);
        let known = shared.attempts.get(id);
        let working = async {
            if let Some(round) = self.check_predecessor(named, &known, id).await {
                return round;
            }
            let attempt = known.attempt(self.delivered);
            if self.is_killer(attempt) {
                let failure = format!(
                    "it was delivered {} times without a recorded result",
                    attempt - 1
                );
                return Round::Dead(DeadReason::AttemptsUsedUp, failure, known.failed);
            }
            let task = self.task(named, attempt);
            let worked = shared.worker.work(&task).await;
            self.judge(worked, &known, &task, id)
        };
        let round = self.extended(working).await;
        drop((permit, handled));
        Some(round)
    }

    /// Acquires a permit to run; `None` if the consumer stops first.
    async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        let shared = &self.shared;
        if shared.is_stopping() {
            return None;
        }
        if let Ok(permit) = shared.running.try_acquire() {
            return Some(permit);
        }
        tokio::select! {
            biased;
            () = shared.stopping() => None,
            permit = self.extended(shared.running.acquire()) => permit.ok(),
        }
    }

    /// Whether the delivery count exceeds the attempts, as with a message that crashes the process.
    /// A store that does not survive its process cannot count takeovers, so the broker's count decides.
    fn is_killer(&self, attempt: u32) -> bool {
        let forgets = !self.shared.engine.store().guarantees().survives_process;
        let attempts_max = u32::from(self.shared.settings.terms.attempts_max);
        forgets && self.delivered.is_some() && attempt > attempts_max
    }

    fn task(&self, named: &NamedMessage, attempt: u32) -> Task {
        let settings = &self.shared.settings;
        Task {
            message: self.message.clone(),
            scope: named.scope.clone(),
            key: named.key.clone(),
            fingerprint: named.fingerprint,
            terms: settings.terms,
            probe: settings.probe.clone(),
            receipts: settings.receipts.clone(),
            audit: settings.is_audited.then(|| settings.name.clone()),
            origin: self.shared.engine.origin(
                &named.scope,
                &named.key,
                &OriginFields {
                    operation: &settings.name,
                    ..OriginFields::default()
                },
            ),
            redrive: named.redrive,
            attempt,
            started: Arc::default(),
        }
    }

    /// Checks the predecessor in the sequence; returns a round if the message has to wait.
    async fn check_predecessor(
        &self,
        named: &NamedMessage,
        known: &KnownAttempts,
        id: RecordId,
    ) -> Option<Round> {
        let (shared, settings) = (&self.shared, &self.shared.settings);
        let (sequence, place) = (settings.sequence.as_ref()?, named.place.as_ref()?);
        match place
            .predecessor_state(shared.engine.store(), &named.ids(shared))
            .await
        {
            Err(error) => Some(self.unavailable(&error, known, id)),
            Ok(Before::Handled) => None,
            Ok(Before::InFlight) => {
                shared.attempts.note(id, |known| known.spared += 1);
                Some(Round::Again {
                    why: Count::InFlight,
                    delay: settings.backoff.pause(1),
                    lets_pass: true,
                })
            }
            Ok(Before::Missing) if sequence.gap() == Gap::Pass => {
                tracing::warn!(record = %id, consumer = &*settings.name, "an event is handled before its predecessor");
                shared.tally.count(Count::GapPassed);
                None
            }
            Ok(Before::Missing) => Some(self.hold_for_predecessor(known, id)),
        }
    }

    fn hold_for_predecessor(&self, known: &KnownAttempts, id: RecordId) -> Round {
        let (shared, settings) = (&self.shared, &self.shared.settings);
        let held = known.held + 1;
        if held >= u32::from(settings.terms.attempts_max) {
            let failure = format!("its predecessor did not arrive within {held} attempts");
            return Round::Dead(DeadReason::SequenceGap, failure, known.failed);
        }
        tracing::warn!(record = %id, consumer = &*settings.name, held, "an event waits for its predecessor");
        shared.attempts.note(id, |known| {
            known.held += 1;
            known.spared += 1;
        });
        Round::Again {
            why: Count::Held,
            delay: settings.backoff.pause(held),
            lets_pass: true,
        }
    }

    /// Turns the result of the work into the next round.
    fn judge(&self, worked: Worked, known: &KnownAttempts, task: &Task, id: RecordId) -> Round {
        let shared = &self.shared;
        let attempt = task.started().max(task.attempt);
        let (why, delay, failure) = match worked {
            Worked::Unavailable(error) => return self.unavailable(&error, known, id),
            Worked::Done(count) => {
                shared.pause.end();
                return Round::Ended(count);
            }
            Worked::Dead { reason, failure } => {
                shared.pause.end();
                return Round::Dead(reason, failure, task.started().max(known.failed));
            }
            Worked::Again {
                why: Count::Held, ..
            } => {
                shared.pause.end();
                return self.hold_for_predecessor(known, id);
            }
            Worked::Again {
                why,
                delay,
                failure,
            } => (why, delay, failure),
        };
        match why {
            Count::Unsettled => shared.pause.begin(&shared.settings.backoff),
            _ => shared.pause.end(),
        }
        let is_attempt = matches!(why, Count::Retried | Count::Panicked);
        shared.attempts.note(id, |known| match is_attempt {
            true => {
                known.failed = attempt.max(known.failed + 1);
                known.first_failure.get_or_insert_with(|| brief(&failure));
            }
            false => known.spared += 1,
        });
        tracing::debug!(record = %id, consumer = &*shared.settings.name, why = why.name(), attempt, "retrying a message");
        let pause = || shared.settings.backoff.pause(attempt);
        let delay = match why {
            Count::InFlight => delay.map_or_else(pause, |left| left.max(IN_FLIGHT_PAUSE_MIN)),
            _ => delay.unwrap_or_else(pause),
        };
        Round::Again {
            why,
            delay,
            lets_pass: false,
        }
    }

    fn unavailable(&self, error: &Error, known: &KnownAttempts, id: RecordId) -> Round {
        let shared = &self.shared;
        let backoff = &shared.settings.backoff;
        crate::log_rarely!(warn, by = shared.settings.name, consumer = &*shared.settings.name, %error, "the store is unavailable: messages are returned to the broker");
        shared.pause.begin(backoff);
        shared.attempts.note(id, |known| known.spared += 1);
        Round::Again {
            why: Count::Unavailable,
            delay: backoff.pause(known.spared + 1),
            lets_pass: false,
        }
    }

    /// Publishes the message as a dead letter; returns whether that succeeded.
    async fn publish_dead_letter(
        &self,
        named: Option<&NamedMessage>,
        reason: DeadReason,
        failure: &str,
        attempts: u32,
    ) -> bool {
        let (shared, settings) = (&self.shared, &self.shared.settings);
        let known = named.map(|named| shared.attempts.get(named.id(shared)));
        let known = known.unwrap_or_default();
        let records = named.map(|named| named.ids(shared)).unwrap_or_default();
        let attempts = match (reason, records.last()) {
            // Include the attempts of other processes.
            (DeadReason::OutcomeUnknown, Some(id)) => {
                attempts.max(self.recorded_attempts(*id).await)
            }
            _ => attempts,
        };
        let story = LetterHistory {
            consumer: &settings.name,
            reason,
            failure,
            attempts,
            known: &known,
            key: named.map(|named| &named.key),
            records: &records,
            fingerprint: named.map_or_else(|| self.fingerprint(), |named| named.fingerprint),
        };
        let record = records.last().map(RecordId::to_string).unwrap_or_default();
        let Some((publisher, destination)) = &settings.dead_letter else {
            tracing::error!(
                record,
                consumer = &*settings.name,
                reason = reason.name(),
                "a message can never be handled, and no dead-letter destination is set: it is returned to the broker"
            );
            return false;
        };
        let letter = dead::letter(&self.message, &story);
        for attempt in 1..=PUBLISHES_MAX {
            let publishing = publisher.publish(destination, &letter);
            match self.extended(publishing).await {
                Ok(()) => {
                    tracing::warn!(
                        record,
                        consumer = &*settings.name,
                        reason = reason.name(),
                        "a message was sent to the dead letters"
                    );
                    return true;
                }
                Err(error) => {
                    crate::log_rarely!(error, by = settings.name, record, consumer = &*settings.name, %error, "cannot publish a dead letter");
                }
            }
            self.extended(sleep(settings.backoff.pause(attempt))).await;
        }
        false
    }

    /// Number of attempts in an in-flight or indeterminate record; 0 if the store cannot be read.
    async fn recorded_attempts(&self, id: RecordId) -> u32 {
        let found = self.extended(self.shared.engine.store().read(id)).await;
        match found.ok().flatten().map(|found| found.record.state) {
            Some(State::InFlight { hold, .. } | State::Indeterminate { hold, .. }) => {
                hold.attempts.into()
            }
            _ => 0,
        }
    }

    async fn acknowledge(self, count: Count, id: Option<RecordId>) {
        let shared = self.shared.clone();
        if let Some(id) = id {
            shared.attempts.forget(id);
        }
        shared.tally.count(count);
        if let Err(error) = self.ticket.ack().await {
            crate::log_rarely!(warn, by = shared.settings.name, consumer = &*shared.settings.name, %error, "cannot acknowledge a message: the broker redelivers it");
            shared.tally.count(Count::Unacknowledged);
        }
    }

    async fn give_back(self, delay: Duration, count: Count) {
        let shared = self.shared.clone();
        shared.tally.count(count);
        if let Err(error) = self.ticket.nack(delay).await {
            crate::log_rarely!(warn, by = shared.settings.name, consumer = &*shared.settings.name, %error, "cannot return a message: the broker redelivers it after its acknowledgement timeout");
        }
    }

    /// Runs `work`, and meanwhile extends the delivery at every third of its acknowledgement timeout.
    async fn extended<T>(&self, work: impl Future<Output = T>) -> T {
        let Some(ack_wait) = self.shared.guarantees.ack_wait else {
            return work.await;
        };
        let extending = async {
            loop {
                sleep(ack_wait / 3).await;
                if let Err(error) = self.ticket.extend().await {
                    tracing::debug!(consumer = &*self.shared.settings.name, %error, "cannot extend the acknowledgement timeout of a message");
                }
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = extending => unreachable!("extending never ends"),
        }
    }
}

impl NamedMessage {
    /// Returns the record of the latest redrive.
    fn id(&self, shared: &ConsumerState) -> RecordId {
        self.id_at(shared, self.redrive)
    }

    fn ids(&self, shared: &ConsumerState) -> Vec<RecordId> {
        let each = 0..=self.redrive;
        each.map(|redrive| self.id_at(shared, redrive)).collect()
    }

    fn id_at(&self, shared: &ConsumerState, redrive: u32) -> RecordId {
        let scope = work::redriven(&self.scope, redrive);
        RecordId::derive(shared.engine.secret(), &scope, &self.key)
    }
}
