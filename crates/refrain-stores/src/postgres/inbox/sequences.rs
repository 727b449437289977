//! Position of each consumer in each aggregate: one row, which the handler's transaction advances.

use refrain::{
    Result,
    consume::{Gap, Sequence},
};
use tokio_postgres::{
    Transaction,
    types::{ToSql, Type},
};

use super::super::{connect::PostgresContext, errors::StatementError};

/// Maximum number of skipped events that are remembered for an aggregate.
const MISSING_MAX: usize = 1_000;

/// Decision about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SequenceDecision {
    /// Its predecessor was handled, or the event was skipped before and arrives late.
    Next,
    /// Its predecessor was not handled, and the sequence allows gaps.
    Passed,
    /// It was handled before.
    Seen,
    /// Its predecessor was not handled.
    Gap,
}

/// Position of an aggregate: the last number, and the skipped ones before it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Progress {
    last: i64,
    missing: Vec<i64>,
}

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Decides about an event and advances the position. It takes effect when the transaction commits; until then,
/// transactions with an event of the same aggregate wait.
pub(super) async fn advance(
    transaction: &Transaction<'_>,
    place: &PostgresContext,
    sequence: &Sequence,
    (consumer, aggregate, number): (&str, &str, u64),
) -> Result<SequenceDecision> {
    let failed = |error| StatementError::from(error).into_error();
    let schema = place.address.quoted_schema();
    let named: [Parameter<'_>; 2] = [(&consumer, Type::TEXT), (&aggregate, Type::TEXT)];
    let before_first = signed(sequence.first()) - 1;
    let insert = format!(
        "INSERT INTO {schema}.sequences (consumer, aggregate, last) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
    );
    let mut new = named.to_vec();
    new.push((&before_first, Type::INT8));
    transaction
        .execute_typed(&insert, &new)
        .await
        .map_err(failed)?;
    let hold = format!(
        "SELECT last, missing FROM {schema}.sequences WHERE consumer = $1 AND aggregate = $2 FOR UPDATE"
    );
    let row = transaction
        .query_typed_one(&hold, &named)
        .await
        .map_err(failed)?;
    let progress = Progress {
        last: row.try_get(0).map_err(failed)?,
        missing: row.try_get(1).map_err(failed)?,
    };
    let (turn, progress) = decide(progress, signed(number), sequence.gap());
    if matches!(turn, SequenceDecision::Next | SequenceDecision::Passed) {
        let update = format!(
            "UPDATE {schema}.sequences SET last = $3, missing = $4 WHERE consumer = $1 AND aggregate = $2"
        );
        let mut moved = named.to_vec();
        moved.extend([
            (&progress.last as &(dyn ToSql + Sync), Type::INT8),
            (&progress.missing, Type::INT8_ARRAY),
        ]);
        transaction
            .execute_typed(&update, &moved)
            .await
            .map_err(failed)?;
    }
    Ok(turn)
}

/// Saturates: no sequence gets that far.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn decide(mut progress: Progress, number: i64, gap: Gap) -> (SequenceDecision, Progress) {
    let next = progress.last.saturating_add(1);
    if number < next {
        let late = progress
            .missing
            .iter()
            .position(|missing| *missing == number);
        let turn = late.map_or(SequenceDecision::Seen, |at| {
            progress.missing.swap_remove(at);
            SequenceDecision::Next
        });
        return (turn, progress);
    }
    if number == next {
        progress.last = number;
        return (SequenceDecision::Next, progress);
    }
    let passed_over = usize::try_from(number - next).unwrap_or(usize::MAX);
    let fits = progress.missing.len().saturating_add(passed_over) <= MISSING_MAX;
    if gap == Gap::Hold || !fits {
        return (SequenceDecision::Gap, progress);
    }
    progress.missing.extend(next..number);
    progress.last = number;
    (SequenceDecision::Passed, progress)
}

#[cfg(test)]
mod tests {
    //! A late event that was never handled must not count as a duplicate, nor a duplicate as a late event.

    use super::*;

    fn check(gap: Gap, numbers: &[i64], turns: &[SequenceDecision]) {
        let mut progress = Progress {
            last: 0,
            missing: Vec::new(),
        };
        let mut found = Vec::new();
        for number in numbers {
            let (turn, moved) = decide(progress, *number, gap);
            found.push(turn);
            progress = moved;
        }
        assert_eq!(found, turns, "{gap:?} {numbers:?}");
    }

    #[test]
    fn each_event_is_taken_once_and_in_its_turn() {
        use SequenceDecision::{Gap as Held, Next, Passed, Seen};
        check(Gap::Hold, &[1, 2, 2, 1, 3], &[Next, Next, Seen, Seen, Next]);
        check(Gap::Hold, &[2, 1, 2, 3], &[Held, Next, Next, Next]);
        check(
            Gap::Pass,
            &[1, 4, 2, 2, 4, 3, 5],
            &[Next, Passed, Next, Seen, Seen, Next, Next],
        );
        // More skipped events than are remembered: the event is held.
        check(Gap::Pass, &[5_000, 1], &[Held, Next]);
        check(Gap::Hold, &[i64::MAX], &[Held]);
    }
}
