//! The file of the data keys: an acknowledged key survives a power failure at any change to the disk, a replaced key is
//! gone from the file at once, and a damaged file is never taken for a file without a key.

use bytes::Bytes;
use refrain::{ErrorKind, Store, record::ScopeDigest, store::embedded::Embedded};
use refrain_testkit::disk::{Dice, End, Fault, Operation, Rule};

use crate::common::{Site, wait};

const SLOT_LEN: usize = 128;

fn scope(number: u8) -> ScopeDigest {
    ScopeDigest([number; 8])
}

fn key(number: u8) -> Bytes {
    vec![number; 85].into()
}

fn put(store: &Embedded, scope: ScopeDigest, old: Option<u8>, new: u8) -> refrain::Result<()> {
    let put = wait(store.replace_scope_key(scope, old.map(key), key(new)))?;
    assert_eq!(put, Some(key(new)));
    Ok(())
}

fn get(store: &Embedded, scope: ScopeDigest) -> Option<Bytes> {
    wait(store.scope_key(scope)).unwrap()
}

/// Adds and replaces keys until the disk ends; returns the last acknowledged key of each scope, and the one in progress.
fn write_until_the_end(store: &Embedded) -> (Vec<Option<u8>>, Option<(usize, u8)>) {
    let mut kept = vec![None; 6];
    for step in 0..18_u8 {
        let at = usize::from(step * 5 % 6);
        if put(store, scope(at as u8), kept[at], step + 1).is_err() {
            return (kept, Some((at, step + 1)));
        }
        kept[at] = Some(step + 1);
    }
    (kept, None)
}

#[test]
fn acknowledged_keys_survive_whenever_the_end_comes() {
    let mut dice = Dice::new(7);
    for end in [End::Power, End::Kill] {
        for changes in 1..80 {
            let site = Site::new(4 << 10);
            let disk = site.disk();
            let store = site.open_on(&disk);
            disk.end_after(disk.changes() + changes, end);
            let (kept, lost) = write_until_the_end(&store);
            drop(store);
            let site = match end {
                End::Power => site.crashed(&disk, dice.throw()),
                End::Kill => {
                    disk.revive();
                    site
                }
            };
            let store = site.open();
            for (at, kept) in kept.iter().enumerate() {
                let found = get(&store, scope(at as u8));
                let may_be_new =
                    lost.is_some_and(|(place, new)| place == at && found == Some(key(new)));
                assert!(
                    found == kept.map(key) || may_be_new,
                    "{end:?} at {changes}: scope {at}"
                );
            }
            put(&store, scope(9), None, 99).unwrap();
        }
    }
}

#[test]
fn a_replaced_key_is_gone_from_the_file() {
    let site = Site::new(4 << 10);
    let store = site.open();
    for number in 1..=5 {
        put(&store, scope(number), None, number).unwrap();
    }
    let has = |number: u8| {
        site.read("scope-keys")
            .windows(85)
            .any(|it| it == key(number))
    };
    assert!(has(3));
    let erased = Bytes::from_static(b"gone");
    let put = wait(store.replace_scope_key(scope(3), Some(key(3)), erased.clone()));
    assert_eq!(put.unwrap(), Some(erased.clone()));
    assert!(!has(3) && has(2) && has(4));
    assert_eq!(site.read("scope-keys").len(), 5 * SLOT_LEN);
    drop(store);
    assert_eq!(get(&site.open(), scope(3)), Some(erased));
}

#[test]
fn no_file_is_made_before_the_first_key() {
    let site = Site::new(4 << 10);
    let store = site.open();
    assert_eq!(get(&store, scope(1)), None);
    assert!(!site.files().contains_key("scope-keys"));
}

#[test]
fn a_damaged_key_is_not_absent() {
    let site = Site::new(4 << 10);
    let store = site.open();
    for number in 1..=3 {
        put(&store, scope(number), None, number).unwrap();
    }
    drop(store);
    let bytes = site.read("scope-keys");
    for at in SLOT_LEN..2 * SLOT_LEN {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let store = site.killed_with("scope-keys", &damaged).open();
        let error = wait(store.scope_key(scope(2))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}");
        let error = wait(store.replace_scope_key(scope(2), None, key(9))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}");
        assert_eq!(get(&store, scope(3)), Some(key(3)), "byte {at}");
        assert!(wait(store.scope_keys(None)).is_err());
    }
}

#[test]
fn a_full_disk_refuses_a_key_and_a_failed_sync_shuts_the_store() {
    let site = Site::new(4 << 10);
    let disk = site.disk();
    let store = site.open_on(&disk);
    put(&store, scope(1), None, 1).unwrap();
    disk.fail(Rule::once(Operation::Write, "scope-keys", Fault::ENOSPC));
    let error = put(&store, scope(2), None, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    put(&store, scope(2), None, 2).unwrap();
    disk.fail(Rule::once(Operation::Sync, "scope-keys", Fault::EIO));
    assert!(put(&store, scope(3), None, 3).is_err());
    assert!(
        put(&store, scope(4), None, 4).is_err(),
        "the content of the disk is unknown"
    );
}
