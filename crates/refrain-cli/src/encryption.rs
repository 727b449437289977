//! The encryption of a store's records, for the commands that open stores.

use std::time::Duration;

use refrain::{ErrorKind, encryption::MasterKey, policy::Settings, store::AnyStore};

use crate::proxy::Failure;

/// How often the data keys of scopes are counted, and renewed if needed.
const RENEW_EVERY: Duration = Duration::from_hours(1);

/// Encrypts the records of a store if the settings have keys.
///
/// # Errors
/// If the store holds records that the settings have no key for.
pub(crate) async fn encrypted(store: AnyStore, settings: &Settings) -> Result<AnyStore, Failure> {
    let store = match &settings.encryption {
        Some(keys) => store.with_encryption(keys.clone()),
        None => store,
    };
    store
        .check_encryption()
        .await
        .map_err(|error| match error.kind() {
            ErrorKind::Invalid => Failure::Configuration(format!("refrain: {error}")),
            _ => error.into(),
        })?;
    if store.encryption().is_some() {
        tokio::spawn(renew(store.clone()));
    }
    Ok(store)
}

/// Encrypts data keys of previous keys again, under the current key, so that previous keys are needed no longer.
async fn renew(store: AnyStore) {
    loop {
        match store.renew_scope_keys().await {
            Ok(counts) => {
                let current = store.encryption().and_then(|keys| keys.current());
                let key = current.map(|key| MasterKey::id(key).to_string());
                let (renewed, scopes) = (counts.renewed, counts.total());
                if renewed > 0 {
                    tracing::warn!(
                        renewed,
                        scopes,
                        key,
                        "data keys of scopes were encrypted again, under the current key"
                    );
                }
                for missing in store
                    .encryption()
                    .into_iter()
                    .flat_map(|keys| counts.missing(keys))
                {
                    tracing::error!(key = %missing, "records are encrypted under a key that is not configured: add it to [encryption]");
                }
            }
            Err(error) => tracing::warn!(%error, "cannot check the data keys of scopes"),
        }
        tokio::time::sleep(RENEW_EVERY).await;
    }
}
