//! The commands that call the scripts; what they take is told in `lua/*.lua`.

use std::{io, sync::Arc, time::Duration};

use ::redis::{Cmd, Pipeline, RedisWrite as _};
use refrain::{Claim, Fence, Outcome, RecordId, Settlement};

use super::{
    TestClock,
    codec::{self, digest, fence_bytes, guarantee_byte},
    millis,
    reception::Known,
    scripts::Name,
};

/// What a record in flight begins with, before its fence and its identity.
const IN_FLIGHT: &[u8] = &[codec::VERSION, b'I'];
/// About what a claim takes, keys included.
const CLAIM_BYTES: usize = 192;
/// What a settlement takes beside its keys and its outcome.
const TERM_BYTES: usize = 36;
/// An outcome outlives its retention by this; the scripts say the same.
const GRACE: Duration = Duration::from_secs(60);
/// Where outcomes lie in a cluster, whose nodes want to be told every key beforehand.
const PLACE_IN_CLUSTER: Place = Place(*b"utcome--");

/// What every call is made from.
pub(super) struct Calls {
    pub(super) prefix: String,
    pub(super) clock: Option<TestClock>,
    pub(super) known: Arc<Known>,
    /// In a cluster the mark lies in another slot than the records, and nobody could be told of every settlement.
    pub(super) is_cluster: bool,
}

/// A claim as it is asked for.
pub(super) struct Asking {
    pub(super) claim: Claim,
    /// Fences of one moment differ by this.
    pub(super) nonce: u32,
}

/// How a claim is to end.
pub(super) struct Ending {
    pub(super) id: RecordId,
    pub(super) fence: Fence,
    /// Sealed.
    pub(super) end: Settlement,
}

/// A script's call.
pub(super) struct Call {
    /// The call alone; or a transaction, in which it is the last command.
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

/// What the keys of outcomes end with. Those of one call share it, and no other call has it.
#[derive(Debug, Clone, Copy)]
struct Place([u8; 8]);

impl Place {
    fn new() -> Self {
        const SIGNS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let dice: [u8; 8] = rand::random();
        Self(dice.map(|die| SIGNS[usize::from(die & 63)]))
    }

    /// What stands behind the record's key.
    fn behind(self) -> [u8; 9] {
        let mut behind = [b'o'; 9];
        behind[1..].copy_from_slice(&self.0);
        behind
    }
}

impl Ending {
    /// How much it brings along.
    pub(super) fn bytes(&self) -> usize {
        match &self.end {
            Settlement::Complete { outcome, .. } => outcome.encoded().len(),
            _ => 0,
        }
    }
}

impl Calls {
    /// The call of a script for one record; its own arguments follow.
    pub(super) fn one(&self, name: Name, id: RecordId) -> Cmd {
        let keys = 1 + usize::from(self.is_cluster);
        let mut call = self.call(name, keys, 8, 256);
        self.key(&mut call, id, b"");
        self.key_in_cluster(&mut call, id);
        self.moment(&mut call);
        call.arg(&id.0[..]);
        call
    }

    /// The call that asks for all of these claims; as many answers come.
    pub(super) fn claims<'a>(
        &self,
        asked: impl ExactSizeIterator<Item = &'a Asking> + Clone,
    ) -> Cmd {
        let count = asked.len();
        // The mark; or, in a cluster, where each goes alone, the outcome.
        let keys = count + 1;
        let mut call = self.call(Name::Claims, keys, 5, count * CLAIM_BYTES);
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
        for asking in asked {
            let which = spans.find(asking.claim.settle_after, asking.claim.lease);
            put_claim(&mut claims, asking, which);
        }
        call.arg(spans.0.as_flattened()).arg(claims);
        if !self.is_cluster {
            call.arg(&self.known.mark.text);
        }
        call
    }

    /// The call that ends all of these and carries their outcomes; as many answers come, or one that stands for all.
    pub(super) fn settlements<'a>(
        &self,
        endings: impl ExactSizeIterator<Item = &'a Ending> + Clone,
    ) -> Cmd {
        let bytes: usize = endings.clone().map(Ending::bytes).sum();
        let place = match self.is_cluster {
            true => PLACE_IN_CLUSTER,
            false => Place::new(),
        };
        let mut call = self.terms(endings.clone(), place, true, bytes);
        for ending in endings {
            let mut argument = call.writer_for_next_arg();
            if let Settlement::Complete { outcome, .. } = &ending.end {
                put_kept(&mut argument, ending.fence, outcome);
            }
        }
        call
    }

    /// The same with the outcomes ahead of the call. No record may be among them twice.
    pub(super) fn settlements_behind<'a>(
        &self,
        endings: impl ExactSizeIterator<Item = &'a Ending> + Clone,
    ) -> Call {
        let place = Place::new();
        // Whole or not at all: a server that has no room for one of them runs nothing.
        let mut commands = Pipeline::with_capacity(endings.len() + 3);
        commands.cmd("MULTI");
        for ending in endings.clone() {
            if let Settlement::Complete {
                outcome, retention, ..
            } = &ending.end
            {
                commands.add_command(self.bring(ending, outcome, *retention, place));
            }
        }
        commands.add_command(self.terms(endings, place, false, 0));
        commands.cmd("EXEC");
        Call {
            commands,
            is_transaction: true,
        }
    }

    /// Leaves an outcome where no record points to yet.
    fn bring(&self, ending: &Ending, outcome: &Outcome, retention: Duration, place: Place) -> Cmd {
        let mut bring = Cmd::with_capacity(4, outcome.encoded().len() + CLAIM_BYTES);
        // Under a test's clock the server forgets nothing by itself.
        let is_tested = self.clock.is_some();
        bring.arg(if is_tested { "SET" } else { "PSETEX" });
        self.key(&mut bring, ending.id, &place.behind());
        if !is_tested {
            bring.arg(millis(retention) + millis(GRACE));
        }
        put_kept(&mut bring.writer_for_next_arg(), ending.fence, outcome);
        bring
    }

    /// The call that ends all of these, without the outcomes that it carries.
    fn terms<'a>(
        &self,
        endings: impl ExactSizeIterator<Item = &'a Ending> + Clone,
        place: Place,
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
                self.key(&mut call, ending.id, &place.behind());
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

    /// A cluster is told beforehand of every key that a script may want, so that it can say when one has moved.
    fn key_in_cluster(&self, call: &mut Cmd, id: RecordId) {
        if self.is_cluster {
            self.key(call, id, &PLACE_IN_CLUSTER.behind());
        }
    }

    /// The key of a record as the next argument, with something behind it.
    pub(super) fn key(&self, call: &mut Cmd, id: RecordId, behind: &[u8]) {
        let parts = [self.prefix.as_bytes(), b"{", &hex(id), b"}", behind];
        put(&mut call.writer_for_next_arg(), &parts);
    }
}

/// The pairs of spans in a call, each of them once; there are no more than a call takes claims.
#[derive(Default)]
struct Spans(Vec<[u8; 16]>);

impl Spans {
    /// Which of them this pair is, counted from 1.
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

fn put_term(to: &mut Vec<u8>, ending: &Ending, spans: &mut Spans) {
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

/// An outcome as it is kept, and given back.
fn put_kept(argument: &mut impl io::Write, fence: Fence, outcome: &Outcome) {
    let parts: [&[u8]; 3] = [b"R", &fence_bytes(fence), outcome.encoded()];
    put(argument, &parts);
}

fn span(span: Duration) -> [u8; 8] {
    millis(span).to_be_bytes()
}

/// Writes the parts of an argument one behind the other.
fn put(argument: &mut impl io::Write, parts: &[&[u8]]) {
    for part in parts {
        // Into memory, which does not fail.
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
    //! Keys are found again by listing and by whoever waits, who write them in another way.

    use super::*;

    #[test]
    fn an_identity_in_a_key_reads_as_it_is_shown() {
        let id = RecordId(std::array::from_fn(|at| at as u8 * 17));
        assert_eq!(hex(id), id.to_string().as_bytes());
    }
}
