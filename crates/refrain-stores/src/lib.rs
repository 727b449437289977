//! Stores that need a server: PostgreSQL and Redis. One file per driver, so that `refrain` itself depends on none.
//!
//! [`open`] accepts every store address, including those of the library's own stores.
//! It returns an error for a store that this build does not support.
//! `CONTRIBUTING.md` describes how to add a store.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let store = refrain_stores::open("memory:").await?;
//! let engine = refrain::Engine::new(store);
//! # Ok::<(), refrain::Error>(())
//! # }).unwrap();
//! ```

use refrain::{
    Error, ErrorKind, Result,
    policy::{
        Address, redacted,
        schemes::{Backend, store_usage},
    },
    store::{AnyStore, embedded},
};

#[cfg(any(feature = "postgres", feature = "redis"))]
use refrain::policy::schemes::BackendId;

#[cfg(feature = "redis")]
use refrain::store::Tiered;

#[cfg(feature = "postgres")]
pub mod postgres;

#[cfg(feature = "postgres")]
pub mod receipts;

#[cfg(feature = "redis")]
pub mod redis;

/// Compiles the examples of `docs/postgres.md`.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/postgres.md")]
struct PostgresPage;

/// Compiles the examples of `docs/coding/transactional.md`.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/coding/transactional.md")]
struct TransactionalPage;

/// Compiles the examples of `docs/outbox.md`.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/outbox.md")]
struct OutboxPage;

/// Compiles the examples of `docs/inbox.md`.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/inbox.md")]
struct InboxPage;

/// Opens the store at an address of any [store scheme](refrain::policy::schemes), such as `file:DIR` or `postgres://…`.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if this build does not support the store, or the scheme is unknown.
/// Otherwise as [`AnyStore::open`].
///
/// # Cancellation
/// Safe to drop; a folder that is being opened is closed again.
pub async fn open(address: &str) -> Result<AnyStore> {
    open_with(address, embedded::Options::default()).await
}

/// Opens the store at an address like [`open`]; `options` apply to `file:DIR` only.
///
/// # Errors
/// As [`open`].
///
/// # Cancellation
/// As [`open`].
pub async fn open_with(address: &str, options: embedded::Options) -> Result<AnyStore> {
    let backend = Backend::named(Address::new(address).scheme());
    let Some((backend, store)) = backend.and_then(|it| Some((it, it.store?))) else {
        return Err(unsupported(address, "unknown scheme"));
    };
    let Some(feature) = store.feature else {
        return AnyStore::open_with(address, options).await;
    };
    Address::new(address).check()?;
    // Boxed: the drivers' futures are large, and would make every caller's future large.
    match backend.id {
        #[cfg(feature = "postgres")]
        BackendId::Postgres => Box::pin(postgres::open(address)).await,
        #[cfg(feature = "redis")]
        BackendId::Redis => Box::pin(redis::open(address)).await,
        _ => Err(unsupported(address, &missing(backend, feature))),
    }
}

fn missing(backend: &Backend, feature: &str) -> String {
    let title = backend.title;
    format!("built without {title} support, the feature `{feature}` of refrain-stores")
}

/// The error for an address that this build cannot open. Its password is redacted, because messages end up in logs.
fn unsupported(address: &str, why: &str) -> Error {
    let (address, usage) = (redacted(address), store_usage());
    let message = format!("unsupported store `{address}`: {why}; write {usage}");
    Error::new(ErrorKind::Unsupported, message)
}

/// Opens the stores of a `refrain.toml`: one store as [`open_with`] does, or a front and the store behind it.
///
/// With two addresses, the first is a `redis` address that [serves outcomes](refrain::store::Tiered).
/// The second store holds the claims and is authoritative. The front may be unavailable.
///
/// # Errors
/// As [`open_with`]; [`ErrorKind::Unsupported`] for zero or more than two addresses, or if the first cannot be a front.
///
/// # Cancellation
/// As [`open`].
pub async fn open_all(
    addresses: &[impl AsRef<str>],
    options: embedded::Options,
) -> Result<AnyStore> {
    match addresses {
        [store] => open_with(store.as_ref(), options).await,
        [front, store] => tiered(front.as_ref(), store.as_ref(), options).await,
        _ => {
            let count = addresses.len();
            let message =
                format!("{count} stores are named; name one, or a front and the store behind it");
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

#[cfg(feature = "redis")]
async fn tiered(front: &str, store: &str, options: embedded::Options) -> Result<AnyStore> {
    let front = redis::RedisFront::open(front)?;
    let store = open_with(store, options).await?;
    let losses = store.losses().to_owned();
    // The tiered store as a whole encrypts, so its parts pass encrypted outcomes on.
    let tiered = Tiered::new(front, store.as_stored());
    Ok(AnyStore::new(tiered).with_losses(losses))
}

#[cfg(not(feature = "redis"))]
async fn tiered(front: &str, _: &str, _: embedded::Options) -> Result<AnyStore> {
    let why = "built without Redis support, which a front needs";
    Err(unsupported(front, why))
}

#[cfg(test)]
mod tests {
    //! The error for an unsupported address names the address without its password.

    use super::*;

    async fn check(address: &str, words: &str) {
        let error = open(address).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{address}");
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
        assert!(text.contains("write memory:"), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }

    #[tokio::test]
    async fn what_cannot_be_opened_is_named_without_its_password() {
        for (address, words) in [
            #[cfg(not(feature = "postgres"))]
            ("postgres://app:secret@db/app", "the feature `postgres`"),
            #[cfg(not(feature = "redis"))]
            ("redis://:secret@cache", "the feature `redis`"),
            #[cfg(not(feature = "redis"))]
            ("rediss+cluster://:secret@cache", "without Redis support"),
            ("mysql://app:secret@db/app", "unknown scheme"),
            ("nats://app:secret@queue", "unknown scheme"),
            ("refrain-data", "unknown scheme"),
            ("", "unknown scheme"),
            ("memory:please", "memory:please"),
            ("file:", "`file:`"),
        ] {
            check(address, words).await;
        }
    }

    #[tokio::test]
    async fn the_librarys_own_stores_open() {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("file:{}", folder.path().display());
        let _held = open(&address).await.unwrap();
        assert_eq!(open(&address).await.unwrap_err().kind(), ErrorKind::Held);
        open("memory:").await.unwrap();
    }
}
