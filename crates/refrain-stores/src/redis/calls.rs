//! Builds the commands that call the scripts. `lua/*.lua` document the arguments.

use std::{io, sync::Arc, time::Duration};

use ::redis::{Cmd, Pipeline, RedisWrite as _};
use refrain::{Claim, Fence, Outcome, RecordId, Settlement};

use super::{
    TestClock,
    codec::{self, digest, fence_bytes, guarantee_byte},
    millis,
    reception::OpenedServer,
    scripts::Name,
};

/// First bytes of a record in flight, before its fence and its identity.
const IN_FLIGHT: &[u8] = &[codec::VERSION, b'I'];
/// Approximate bytes of a claim, keys included.
const CLAIM_BYTES: usize = 192;
/// Bytes of a settlement without its keys and its outcome.
const TERM_BYTES: usize = 36;
/// How long an outcome key outlives its retention; equal to `GRACE` in the scripts.
const GRACE: Duration = Duration::from_secs(60);
/// Suffix of outcome keys in a cluster, where a script must declare all of its keys.
const PLACE_IN_CLUSTER: OutcomeKeySuffix = OutcomeKeySuffix(*b"utcome--");

/// State that is needed to build calls.
pub(super) struct Calls {
    pub(super) prefix: String,
    pub(super) clock: Option<TestClock>,
    pub(super) known: Arc<OpenedServer>,
    /// In a cluster the mark is in another slot than the records, and settlements are not published.
    pub(super) is_cluster: bool,
}

/// Claim with its nonce.
pub(super) struct Asking {
    pub(super) claim: Claim,
    /// Distinguishes fences that are granted at the same time.
    pub(super) nonce: u32,
}

/// Settlement of a record.
pub(super) struct SettleCall {
    pub(super) id: RecordId,
    pub(super) fence: Fence,
    /// The outcome is sealed.
    pub(super) end: Settlement,
}

/// Call of a script.
pub(super) struct Call {
    /// The call alone, or a transaction whose last command it is.
    pub(super) commands: Pipeline,
    pub(super) is_transaction: bool,
}

impl From<Cmd> for Call {
    fn from(call: Cmd) -> Self {
        let mut commands = Pipeline::with_capacity(1);
        commands.add_command(call);
        Self {
            commands,
            is_transaction: false,
        }
    }
}

/// Suffix of the outcome keys of one call; random, so that no other call uses it.
#[derive(Debug, Clone, Copy)]
struct OutcomeKeySuffix([u8; 8]);

impl OutcomeKeySuffix {
    fn new() -> Self {
        const SIGNS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let dice: [u8; 8] = rand::random();
        Self(dice.map(|die| SIGNS[usize::from(die & 63)]))
    }

    /// Suffix after the record's key.
    fn key_suffix(self) -> [u8; 9] {
        let mut suffix = [b'o'; 9];
        suffix[1..].copy_from_slice(&self.0);
        suffix
    }
}

impl SettleCall {
    /// Size of the outcome in bytes.
    pub(super) fn bytes(&self) -> usize {
        match &self.end {
            Settlement::Complete { outcome, .. } => outcome.encoded().len(),
            _ => 0,
        }
    }
}

impl Calls {
    /// Builds the call of a script for one record; the caller appends further arguments.
    pub(super) fn one(&self, name: Name, id: RecordId) -> Cmd {
        let keys = 1 + usize::from(self.is_cluster);
        let mut call = self.call(name, keys, 8, 256);
        self.key(&mut call, id, b"");
        self.key_in_cluster(&mut call, id);
        self.moment(&mut call);
        call.arg(&id.0[..]);
        call
    }

    /// Builds one call for all of these claims; it returns one answer for each.
    pub(super) fn claims<'a>(
        &self,
        asked: impl ExactSizeIterator<Item = &'a Asking> + Clone,
    ) -> Cmd {
        let count = asked.len();
        // One more key: the mark, or in a cluster, where each claim is sent alone, the outcome.
        let keys = count + 1;
        let mut call = self.call(Name::Claims, keys, 6, count * CLAIM_BYTES);
        for Asking { claim, .. } in asked.clone() {
            self.key(&mut call, claim.id, b"");
        }
        if !self.is_cluster {
            call.arg(&self.known.mark.key);
        }
        for Asking { claim, .. } in asked.clone() {
            self.key_in_cluster(&mut call, claim.id);
        }
        self.moment(&mut call);
        call.arg(if self.is_cluster { "" } else { "1" });
        let mut spans = Spans::default();
        let mut claims = Vec::with_capacity(count * CLAIM_BYTES);
        let mut origins = Vec::with_capacity(count * CLAIM_BYTES);
        for asking in asked {
            let which = spans.find(asking.claim.settle_after, asking.claim.lease);
            put_claim(&mut claims, asking, which);
            put_origin(&mut origins, asking);
        }
        call.arg(spans.0.as_flattened()).arg(claims).arg(origins);
        if !self.is_cluster {
            call.arg(&self.known.mark.text);
        }
        call
    }

    /// Builds one call that settles all of these and contains their outcomes. It returns one answer for each, or one
    /// for all.
    pub(super) fn settlements<'a>(
        &self,
        endings: impl ExactSizeIterator<Item = &'a SettleCall> + Clone,
    ) -> Cmd {
        let bytes: usize = endings.clone().map(SettleCall::bytes).sum();
        let place = match self.is_cluster {
            true => PLACE_IN_CLUSTER,
            false => OutcomeKeySuffix::new(),
        };
        let mut call = self.terms(endings.clone(), place, true, bytes);
        for ending in endings {
            let mut argument = call.writer_for_next_arg();
            if let Settlement::Complete { outcome, .. } = &ending.end {
                put_outcome(&mut argument, ending.fence, outcome);
            }
        }
        call
    }

    /// As `settlements`, but the outcomes are written by commands before the call. No record may occur twice.
    pub(super) fn settlement_transaction<'a>(
        &self,
        endings: impl ExactSizeIterator<Item = &'a SettleCall> + Clone,
    ) -> Call {
        let place = OutcomeKeySuffix::new();
        // In a transaction: a server that is out of memory for one command runs none.
        let mut commands = Pipeline::with_capacity(endings.len() + 3);
        commands.cmd("MULTI");
        for ending in endings.clone() {
            if let Settlement::Complete {
                outcome, retention, ..
            } = &ending.end
            {
                commands
                    .add_command(self.write_outcome_command(ending, outcome, *retention, place));
            }
        }
        commands.add_command(self.terms(endings, place, false, 0));
        commands.cmd("EXEC");
        Call {
            commands,
            is_transaction: true,
        }
    }

    /// Writes an outcome, to which no record points yet.
    fn write_outcome_command(
        &self,
        ending: &SettleCall,
        outcome: &Outcome,
        retention: Duration,
        place: OutcomeKeySuffix,
    ) -> Cmd {
        let mut command = Cmd::with_capacity(4, outcome.encoded().len() + CLAIM_BYTES);
        // With a test clock, keys must not expire.
        let is_tested = self.clock.is_some();
        command.arg(if is_tested { "SET" } else { "PSETEX" });
        self.key(&mut command, ending.id, &place.key_suffix());
        if !is_tested {
            command.arg(millis(retention) + millis(GRACE));
        }
        put_outcome(&mut command.writer_for_next_arg(), ending.fence, outcome);
        command
    }

    /// Builds the call that settles all of these, without the outcomes.
    fn terms<'a>(
        &self,
        endings: impl ExactSizeIterator<Item = &'a SettleCall> + Clone,
        place: OutcomeKeySuffix,
        is_carried: bool,
        bytes: usize,
    ) -> Cmd {
        let count = endings.len();
        let bytes = bytes + count * CLAIM_BYTES;
        let keys = if is_carried { 2 * count } else { count };
        let mut call = self.call(Name::Settlements, keys, count + 5, bytes);
        for ending in endings.clone() {
            self.key(&mut call, ending.id, b"");
        }
        if is_carried {
            for ending in endings.clone() {
                self.key(&mut call, ending.id, &place.key_suffix());
            }
        }
        self.moment(&mut call);
        let mut spans = Spans::default();
        let mut terms = Vec::with_capacity(count * TERM_BYTES);
        for ending in endings {
            put_term(&mut terms, ending, &mut spans);
        }
        call.arg(spans.0.as_flattened())
            .arg(terms)
            .arg(&place.0[..])
            .arg(if is_carried { "1" } else { "" });
        call
    }

    fn call(&self, name: Name, keys: usize, arguments: usize, bytes: usize) -> Cmd {
        let mut call = Cmd::with_capacity(keys + arguments + 3, bytes + 64);
        call.arg("EVALSHA")
            .arg(self.known.scripts.digest(name))
            .arg(keys);
        call
    }

    fn moment(&self, call: &mut Cmd) {
        match &self.clock {
            Some(now) => call.arg(now().0),
            None => call.arg(""),
        };
    }

    /// Declares the outcome key: a cluster must know all keys of a script, to redirect the call if a slot has moved.
    fn key_in_cluster(&self, call: &mut Cmd, id: RecordId) {
        if self.is_cluster {
            self.key(call, id, &PLACE_IN_CLUSTER.key_suffix());
        }
    }

    /// Appends the key of a record, with a suffix.
    pub(super) fn key(&self, call: &mut Cmd, id: RecordId, behind: &[u8]) {
        let parts = [self.prefix.as_bytes(), b"{", &hex(id), b"}", behind];
        put(&mut call.writer_for_next_arg(), &parts);
    }
}

/// Distinct pairs of durations in a call; at most as many as claims in a call.
#[derive(Default)]
struct Spans(Vec<[u8; 16]>);

impl Spans {
    /// Number of this pair, starting at 1.
    fn find(&mut self, one: Duration, two: Duration) -> u8 {
        let mut pair = [0; 16];
        pair[..8].copy_from_slice(&span(one));
        pair[8..].copy_from_slice(&span(two));
        let at = self.0.iter().position(|known| *known == pair);
        let at = at.unwrap_or_else(|| {
            self.0.push(pair);
            self.0.len() - 1
        });
        u8::try_from(at + 1).expect("a call takes fewer than 256")
    }
}

fn put_claim(to: &mut Vec<u8>, asking: &Asking, which: u8) {
    let Asking { claim, nonce } = asking;
    let (has_credential, credential) = match claim.credential {
        Some(credential) => (1, credential.0),
        None => (0, [0; 8]),
    };
    let from = to.len();
    put(
        to,
        &[
            &nonce.to_be_bytes(),
            &claim.id.0,
            &claim.fingerprint.0,
            &[has_credential],
            &credential,
            &claim.claimant.0.to_be_bytes(),
            &[guarantee_byte(claim.guarantee)],
            &1_u16.to_be_bytes(),
            &claim.attempts_max.to_be_bytes(),
            &span(claim.settle_after),
        ],
    );
    let digest = digest(&to[from..]);
    let overtakes = claim.overtakes.map_or([0; 16], fence_bytes);
    put(to, &[&digest, &[which], &overtakes]);
}

/// The tail begins with the nonce and the number of a first attempt, which the trace has before it.
fn put_origin(to: &mut Vec<u8>, asking: &Asking) {
    let Asking { claim, nonce } = asking;
    let (head, tail) = (claim.origin.head(), claim.origin.tail());
    let lens = [head.len() as u16, (6 + tail.len()) as u16].map(u16::to_be_bytes);
    let tail_len = &lens[1][1..];
    let (nonce, number) = (nonce.to_be_bytes(), 1_u16.to_be_bytes());
    put(to, &[&lens[0], tail_len, head, &nonce, &number, tail]);
}

fn put_term(to: &mut Vec<u8>, ending: &SettleCall, spans: &mut Spans) {
    let how = match &ending.end {
        Settlement::Complete {
            retention,
            remember,
            ..
        } => [b'C', spans.find(*retention, *remember)],
        Settlement::Release => [b'R', 0],
        Settlement::Doubt { reason } => [b'D', *reason as u8],
        Settlement::NeverHappened => [b'N', 0],
    };
    let fence = fence_bytes(ending.fence);
    put(to, &[IN_FLIGHT, &fence, &ending.id.0, &how]);
}

/// Writes an outcome in the stored form, which is also the form of a replay answer.
fn put_outcome(argument: &mut impl io::Write, fence: Fence, outcome: &Outcome) {
    let parts: [&[u8]; 3] = [b"R", &fence_bytes(fence), outcome.encoded()];
    put(argument, &parts);
}

fn span(span: Duration) -> [u8; 8] {
    millis(span).to_be_bytes()
}

/// Writes the parts of an argument.
fn put(argument: &mut impl io::Write, parts: &[&[u8]]) {
    for part in parts {
        // Writes to memory, which cannot fail.
        let _ = argument.write_all(part);
    }
}

fn hex(id: RecordId) -> [u8; 32] {
    let mut text = [0; 32];
    for (pair, byte) in text.chunks_exact_mut(2).zip(id.0) {
        pair.copy_from_slice(&codec::hex(byte));
    }
    text
}

#[cfg(test)]
mod tests {
    //! The listing and the listener format keys differently, and must find the same keys.

    use super::*;

    #[test]
    fn an_identity_in_a_key_reads_as_it_is_shown() {
        let id = RecordId(std::array::from_fn(|at| at as u8 * 17));
        assert_eq!(hex(id), id.to_string().as_bytes());
    }
}
