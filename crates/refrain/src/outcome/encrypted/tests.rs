//! An attacker with access to the store's bytes, but not to the key, moves and changes encrypted outcomes.

use super::*;
use crate::encryption::Cipher;

const ID: RecordId = RecordId([7; 16]);
const FENCE: Fence = Fence {
    epoch: 1,
    counter: 42,
    nonce: 9,
};

fn key(scope: u8) -> DataKey {
    DataKey {
        scope: ScopeDigest([scope; 8]),
        generation: 3,
        cipher: Cipher::new(&[scope; 32]),
    }
}

fn plain() -> Outcome {
    Outcome::new(201, "canary").sealed(ID)
}

/// The same bytes under another identity, with a valid checksum.
fn moved(outcome: &Outcome, change: impl FnOnce(&mut [u8]), id: RecordId) -> Option<Outcome> {
    let mut bytes = outcome.encoded().to_vec();
    change(&mut bytes);
    seal(&mut bytes, id);
    Outcome::decode(bytes.into(), id).ok()
}

#[test]
fn an_encrypted_outcome_shows_nothing_and_decrypts_to_the_byte() {
    let encrypted = plain().encrypted(ID, FENCE, &key(1)).unwrap();
    let stored = Outcome::decode(encrypted.encoded().clone(), ID).unwrap();
    assert!(stored.is_encrypted() && stored.fits(FENCE));
    assert_eq!((stored.status(), stored.body()), (0, Bytes::new()));
    assert_eq!(
        (stored.headers().count(), stored.trailers().count()),
        (0, 0)
    );
    assert!(!stored.is_body_kept());
    let text = String::from_utf8_lossy(stored.encoded());
    assert!(!text.contains("canary"), "{text}");
    assert_eq!(stored.decrypted(ID, &key(1)).unwrap(), plain());
    let again = plain().encrypted(ID, FENCE, &key(1)).unwrap();
    assert_ne!(again, encrypted, "nonces are random");
}

#[test]
fn no_changed_byte_decrypts() {
    let encrypted = plain().encrypted(ID, FENCE, &key(1)).unwrap();
    let len = encrypted.encoded().len() - SUM_LEN;
    for at in 0..len {
        let Some(changed) = moved(&encrypted, |bytes| bytes[at] ^= 1, ID) else {
            assert_eq!(at, 0, "only another version cannot be decoded");
            continue;
        };
        // The identity is written again by `moved`, so those bytes are unchanged.
        let is_id = super::ID.contains(&at);
        assert_eq!(changed.decrypted(ID, &key(1)).is_ok(), is_id, "byte {at}");
    }
    for len in 0..len {
        let bytes = encrypted.encoded().slice(..len);
        assert!(Outcome::decode(bytes, ID).is_err(), "{len} bytes");
    }
}

#[test]
fn an_outcome_of_another_record_scope_or_fence_does_not_decrypt() {
    let other = RecordId([8; 16]);
    let encrypted = plain().encrypted(ID, FENCE, &key(1)).unwrap();
    let of_other = moved(&encrypted, |_| (), other).unwrap();
    assert!(of_other.decrypted(other, &key(1)).is_err());
    assert!(encrypted.decrypted(ID, &key(2)).is_err());
    let later = Fence {
        counter: 43,
        ..FENCE
    };
    assert!(!encrypted.fits(later));
    let of_later = moved(
        &encrypted,
        |bytes| bytes[super::FENCE].copy_from_slice(&fence_bytes(later)),
        ID,
    );
    let of_later = of_later.unwrap();
    assert!(of_later.fits(later));
    assert!(of_later.decrypted(ID, &key(1)).is_err());
}
