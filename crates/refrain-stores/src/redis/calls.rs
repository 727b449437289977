//! The commands that call the scripts; what they take is told in `lua/*.lua`.

use std::{io, sync::Arc, time::Duration};

use ::redis::{Cmd, RedisWrite as _};
use refrain::{Claim, Fence, RecordId, Settlement};

use super::{
    TestClock,
    codec::{fence_bytes, guarantee_byte},
    millis,
    reception::Known,
    scripts::Name,
};

/// What a record in flight begins with, before its identity.
const IN_FLIGHT: &[u8] = b"\x01I";
/// About what a claim takes, keys included.
const CLAIM_BYTES: usize = 192;

/// What every call is made from.
pub(super) struct Calls {
    pub(super) prefix: String,
    pub(super) clock: Option<TestClock>,
    pub(super) known: Arc<Known>,
    /// In a cluster the mark lies in another slot than the records, and nobody could be told of every settlement.
    pub(super) is_cluster: bool,
}

/// How a claim is to end.
pub(super) struct Ending {
    pub(super) id: RecordId,
    pub(super) fence: Fence,
    /// Sealed.
    pub(super) end: Settlement,
}

impl Ending {
    /// How much it brings along.
    pub(super) fn bytes(&self) -> usize {
        self.outcome().len()
    }

    fn outcome(&self) -> &[u8] {
        match &self.end {
            Settlement::Complete { outcome, .. } => outcome.encoded(),
            _ => &[],
        }
    }
}

impl Calls {
    /// The call of a script for one record; its own arguments follow.
    pub(super) fn one(&self, name: Name, id: RecordId) -> Cmd {
        let mut call = self.call(name, 2, 8, 256);
        self.key(&mut call, id, b"");
        self.key(&mut call, id, b"o");
        self.moment(&mut call);
        call.arg(&id.0[..]);
        call
    }

    /// The call that asks for all of these claims; as many answers come.
    pub(super) fn claims<'a>(
        &self,
        claims: impl ExactSizeIterator<Item = &'a Claim> + Clone,
    ) -> Cmd {
        let count = claims.len();
        let keys = 2 * count + usize::from(!self.is_cluster);
        let mut call = self.call(Name::Claims, keys, 3, count * CLAIM_BYTES);
        for claim in claims.clone() {
            self.key(&mut call, claim.id, b"");
        }
        if !self.is_cluster {
            call.arg(&self.known.mark.key);
        }
        for claim in claims.clone() {
            self.key(&mut call, claim.id, b"o");
        }
        self.moment(&mut call);
        call.arg(if self.is_cluster { "" } else { "1" });
        // Fences of one moment differ by this.
        let first: u32 = rand::random();
        let mut argument = call.writer_for_next_arg();
        for (nonce, claim) in (0_u32..).zip(claims) {
            put_claim(&mut argument, claim, first.wrapping_add(nonce));
        }
        drop(argument);
        call
    }

    /// The call that ends all of these; as many answers come.
    pub(super) fn settlements<'a>(
        &self,
        endings: impl ExactSizeIterator<Item = &'a Ending> + Clone,
    ) -> Cmd {
        let count = endings.len();
        let bytes: usize = endings.clone().map(Ending::bytes).sum();
        let bytes = bytes + count * CLAIM_BYTES;
        let mut call = self.call(Name::Settlements, 2 * count, count + 2, bytes);
        for ending in endings.clone() {
            self.key(&mut call, ending.id, b"");
        }
        for ending in endings.clone() {
            self.key(&mut call, ending.id, b"o");
        }
        self.moment(&mut call);
        let mut argument = call.writer_for_next_arg();
        for ending in endings.clone() {
            put_terms(&mut argument, ending);
        }
        drop(argument);
        for ending in endings {
            let parts = [&fence_bytes(ending.fence), ending.outcome()];
            put(&mut call.writer_for_next_arg(), &parts);
        }
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

    /// The key of a record as the next argument, with something behind it.
    pub(super) fn key(&self, call: &mut Cmd, id: RecordId, behind: &[u8]) {
        let parts = [self.prefix.as_bytes(), b"{", &hex(id), b"}", behind];
        put(&mut call.writer_for_next_arg(), &parts);
    }
}

fn put_claim(argument: &mut impl io::Write, claim: &Claim, nonce: u32) {
    let (has_credential, credential) = match claim.credential {
        Some(credential) => (1, credential.0),
        None => (0, [0; 8]),
    };
    put(
        argument,
        &[
            &claim.id.0,
            &claim.fingerprint.0,
            &[has_credential],
            &credential,
            &claim.claimant.0.to_be_bytes(),
            &[guarantee_byte(claim.guarantee)],
            &1_u16.to_be_bytes(),
            &claim.attempts_max.to_be_bytes(),
            &span(claim.settle_after),
            &span(claim.lease),
            &nonce.to_be_bytes(),
            &claim.overtakes.map_or([0; 16], fence_bytes),
        ],
    );
}

fn put_terms(argument: &mut impl io::Write, ending: &Ending) {
    let mut how = [0; 17];
    how[0] = match &ending.end {
        Settlement::Complete {
            retention,
            remember,
            ..
        } => {
            how[1..9].copy_from_slice(&span(*retention));
            how[9..].copy_from_slice(&span(*remember));
            b'C'
        }
        Settlement::Release => b'R',
        Settlement::Doubt { reason } => {
            how[1] = *reason as u8;
            b'D'
        }
        Settlement::NeverHappened => b'N',
    };
    put(argument, &[IN_FLIGHT, &ending.id.0, &how]);
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
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (pair, byte) in text.chunks_exact_mut(2).zip(id.0) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
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
