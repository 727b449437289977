//! The data keys of scopes, if records are encrypted: one hash, `PREFIXscope-keys`, from scope to encrypted key.
//!
//! A script replaces a key, so that it is compared and written in one step. The hash never expires.

use ::redis::{Cmd, FromRedisValue as _, Value, cmd};
use bytes::Bytes;
use refrain::{Result, record::ScopeDigest, store::ScopeKeyPage};

use super::{RedisState, errors};

/// Scopes per `HSCAN` step.
const STEP: u32 = 1_000;

/// Arguments: scope, `1` if a key is expected, the expected key, the new key. Returns the key that is stored then.
const REPLACE: &str = "\
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local expected = ARGV[2] == '1' and ARGV[3]
if stored == expected then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
    return ARGV[4]
end
return stored";

impl RedisState {
    fn scope_keys_key(&self) -> String {
        format!("{}scope-keys", self.calls.prefix)
    }

    async fn ask(&self, command: &Cmd) -> Result<Value> {
        let answer = self.send_command(command).await;
        answer.map_err(|trouble| trouble.error(&self.shown))
    }

    pub(super) async fn scope_key(&self, scope: ScopeDigest) -> Result<Option<Bytes>> {
        let mut get = cmd("HGET");
        get.arg(self.scope_keys_key()).arg(&scope.0);
        let key = self.key(self.ask(&get).await?)?;
        if key.is_none() {
            // Distinguishes a new scope from a lost store.
            self.check_mark().await?;
        }
        Ok(key)
    }

    pub(super) async fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> Result<Option<Bytes>> {
        let mut call = cmd("EVAL");
        call.arg(REPLACE).arg(1).arg(self.scope_keys_key());
        call.arg(&scope.0)
            .arg(if expected.is_some() { "1" } else { "" })
            .arg(expected.as_deref().unwrap_or_default())
            .arg(&key[..]);
        let stored = self.ask(&call).await?;
        self.key(stored)
    }

    pub(super) async fn scope_keys(&self, cursor: Option<u64>) -> Result<ScopeKeyPage> {
        let mut scan = cmd("HSCAN");
        scan.arg(self.scope_keys_key())
            .arg(cursor.unwrap_or_default())
            .arg("COUNT")
            .arg(STEP);
        let page = <(u64, Vec<(Vec<u8>, Vec<u8>)>)>::from_redis_value(self.ask(&scan).await?);
        let (next, pairs) =
            page.map_err(|error| errors::convert_error(error.into(), &self.shown))?;
        let pair = |(scope, key): (Vec<u8>, Vec<u8>)| {
            Some((ScopeDigest(scope.try_into().ok()?), Bytes::from(key)))
        };
        Ok(ScopeKeyPage {
            keys: pairs.into_iter().filter_map(pair).collect(),
            next: Some(next).filter(|next| *next != 0),
        })
    }

    fn key(&self, value: Value) -> Result<Option<Bytes>> {
        let key = Option::<Vec<u8>>::from_redis_value(value);
        let key = key.map_err(|error| errors::convert_error(error.into(), &self.shown))?;
        Ok(key.map(Bytes::from))
    }
}
