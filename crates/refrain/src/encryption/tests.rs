//! Keys as operators write them, and data keys as stores keep them.

use super::*;
use crate::record::ScopeDigest;

const SCOPE: ScopeDigest = ScopeDigest([5; 8]);

fn master(byte: u8) -> MasterKey {
    MasterKey::new([byte; KEY_LEN])
}

#[test]
fn a_key_is_32_bytes_in_hexadecimal_or_base64() {
    let hex = "0a".repeat(32);
    let base64 = BASE64_STANDARD.encode([10; 32]);
    for text in [hex.clone(), hex.to_uppercase(), base64, format!(" {hex}\n")] {
        assert_eq!(
            MasterKey::parse(&text).unwrap().id(),
            master(10).id(),
            "{text}"
        );
    }
    let generated = MasterKey::generate();
    assert_ne!(generated, MasterKey::generate());
    assert!(MasterKey::parse(&generated).is_ok());
    for text in [
        "",
        "secret!",
        "0a0a",
        &"0a".repeat(31),
        &"0a".repeat(33),
        &hex[1..],
    ] {
        let error = MasterKey::parse(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        let message = error.to_string();
        assert!(message.contains("generate-key"), "{message}");
        assert!(text.is_empty() || !message.contains(text), "{message}");
    }
}

#[test]
fn a_data_key_opens_under_its_master_key_and_scope_only() {
    let stored = generate(SCOPE, 4, &master(1)).unwrap();
    let key = StoredKey::read(SCOPE, &stored).unwrap();
    let opened = key.open(SCOPE, &Encryption::new(master(1))).unwrap();
    assert_eq!(opened.unwrap().generation, 4);
    let rotated = Encryption::new(master(2)).with_previous([master(1)]);
    assert!(key.open(SCOPE, &rotated).unwrap().is_some());
    let error = key.open(SCOPE, &Encryption::new(master(2))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let id = master(1).id().to_string();
    assert!(error.to_string().contains(&id), "{error}");
    let moved = key.open(ScopeDigest([6; 8]), &Encryption::new(master(1)));
    assert_eq!(moved.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn no_changed_byte_of_a_data_key_opens() {
    let stored = generate(SCOPE, 4, &master(1)).unwrap();
    let keys = Encryption::new(master(1));
    for at in 0..stored.len() {
        let mut changed = stored.clone();
        changed[at] ^= 1;
        let opened = StoredKey::read(SCOPE, &changed).and_then(|key| key.open(SCOPE, &keys));
        assert!(opened.is_err(), "byte {at}");
    }
    for len in 0..stored.len() {
        let opened = StoredKey::read(SCOPE, &stored[..len]).and_then(|key| key.open(SCOPE, &keys));
        // The first bytes alone are an erased key.
        assert_eq!(opened.is_ok(), len == 5, "{len} bytes");
        assert!(!opened.is_ok_and(|key| key.is_some()), "{len} bytes");
    }
}

#[test]
fn a_rewrapped_key_decrypts_what_it_encrypted() {
    let stored = generate(SCOPE, 0, &master(1)).unwrap();
    let rotated = Encryption::new(master(2)).with_previous([master(1)]);
    let key = StoredKey::read(SCOPE, &stored).unwrap();
    let first = key.open(SCOPE, &rotated).unwrap().unwrap();
    let moved = key.rewrap(SCOPE, &rotated, &master(2)).unwrap().unwrap();
    let key = StoredKey::read(SCOPE, &moved).unwrap();
    let second = key
        .open(SCOPE, &Encryption::new(master(2)))
        .unwrap()
        .unwrap();
    let mut sealed = Vec::new();
    first
        .cipher
        .encrypt(b"context", b"text", &mut sealed)
        .unwrap();
    assert_eq!(second.cipher.decrypt(b"context", &sealed).unwrap(), b"text");
    assert_eq!(second.cipher.decrypt(b"other", &sealed), None);
}

#[test]
fn an_erased_key_keeps_its_generation() {
    let stored = StoredKey::erased(7);
    let key = StoredKey::read(SCOPE, &stored).unwrap();
    assert_eq!(key, StoredKey::Erased { generation: 7 });
    let keys = Encryption::new(master(1));
    assert!(key.open(SCOPE, &keys).unwrap().is_none());
    assert!(key.rewrap(SCOPE, &keys, &master(1)).unwrap().is_none());
}
