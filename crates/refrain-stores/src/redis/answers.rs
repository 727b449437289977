//! Converts the answers of the scripts to the library's types.

use refrain::{
    Outcome, RecordId, Result, Settled, Verdict,
    clock::Timestamp,
    record::{Command, Doubt, Grant, Reason, State, step},
    store::Reading,
};

use super::{
    codec::{self, ScriptReply},
    errors,
};

/// Verdict on a claim of this record with this nonce.
pub(super) fn verdict(mut answer: ScriptReply, id: RecordId, nonce: u32) -> Result<Verdict> {
    let verdict = match answer.letter {
        // The script already checked that the outcome belongs to the record.
        b'R' => return codec::replay(answer.into_text(), id).map(Verdict::Replay),
        b'G' => granted(&mut answer, nonce).map(Verdict::Granted),
        b'I' => answer
            .millis()
            .map(|lease_left| Verdict::InFlight { lease_left }),
        b'D' => doubt(&mut answer).map(Verdict::Indeterminate),
        b'O' => Some(Verdict::OtherCredential),
        b'M' => Some(Verdict::Mismatch),
        b'X' => Some(Verdict::Expired),
        _ => None,
    };
    verdict.ok_or_else(|| errors::undecodable_reply(id))
}

fn granted(answer: &mut ScriptReply, nonce: u32) -> Option<Grant> {
    // Short form of the answer to a first claim.
    if let Some(fence) = codec::fence_of_new(answer.rest(), nonce) {
        return Some(Grant { fence, attempt: 1 });
    }
    Some(Grant {
        fence: codec::fence(&answer.bytes()?)?,
        attempt: answer.number()?,
    })
}

fn doubt(answer: &mut ScriptReply) -> Option<Doubt> {
    Some(Doubt {
        fence: codec::fence(&answer.bytes()?)?,
        reason: Reason::from_code(answer.number()?)?,
        settle_left: answer.millis()?,
    })
}

pub(super) fn settled(mut answer: ScriptReply, id: RecordId) -> Result<Settled> {
    let settled = match answer.letter {
        b'A' => Some(Settled::Applied),
        b'F' => Some(Settled::Fenced),
        b'E' => answer.millis().map(|left| Settled::TooEarly { left }),
        _ => None,
    };
    settled.ok_or_else(|| errors::undecodable_reply(id))
}

/// Record, after [`Command::Age`] is applied.
pub(super) fn reading(mut answer: ScriptReply, id: RecordId) -> Result<Option<Reading>> {
    if answer.letter == b'N' {
        return Ok(None);
    }
    let parts = (answer.bytes(), answer.bytes(), answer.bytes());
    let (Some(now), Some(record), Some(kept)) = parts else {
        return Err(errors::undecodable_reply(id));
    };
    let now = std::str::from_utf8(&now)
        .ok()
        .and_then(|now| now.parse().ok());
    let now = Timestamp(now.ok_or_else(|| errors::undecodable_reply(id))?);
    let record =
        codec::record(&record, id).ok_or_else(|| errors::script_error(b"damaged", id, ""))?;
    let Some(record) = step(Some(record), Command::Age, now).record else {
        return Ok(None);
    };
    let outcome = match (&record.state, record.fence()) {
        (State::Completed { .. }, Some(fence)) => Some(codec::outcome(kept, fence, id)?),
        _ => None,
    };
    // Only a completed record has an outcome; the others get a placeholder.
    let record = match outcome {
        Some(outcome) => record.map(|()| outcome),
        None => record.map(|()| Outcome::new(0, [])),
    };
    Ok(Some(Reading { id, record, now }))
}
