//! The shared test server, key prefixes for each test, and private servers.

use std::time::Duration;

use futures_util::future::join_all;
use refrain::{
    Claim, Fingerprint, Outcome, RecordId, Result, Settlement, Store, Verdict, record::Grant,
};
use refrain_stores::redis::{Options, Redis};
use refrain_testkit::servers::redis_url;

pub(crate) const RETENTION: Duration = Duration::from_secs(3_600);
pub(crate) const REMEMBER: Duration = Duration::from_secs(86_400);

/// Unique key prefix on a server; its keys are deleted at the end.
pub(crate) struct Prefix {
    pub(crate) address: String,
    pub(crate) server: String,
    prefix: String,
}

/// Gives a busy server more time.
pub(crate) fn patient(mut options: Options) -> Options {
    options.connect_timeout = Duration::from_secs(20);
    options.answer_timeout = Duration::from_secs(20);
    options
}

impl Prefix {
    /// On the server that all tests share.
    pub(crate) fn new() -> Self {
        Self::on(&redis_url())
    }

    pub(crate) fn on(server: &str) -> Self {
        let prefix = format!("test:{:016x}:", rand::random::<u64>());
        let address = format!("{}/?prefix={prefix}", server.trim_end_matches('/'));
        Self {
            address,
            server: server.into(),
            prefix,
        }
    }

    /// Opens the store with limits that the syncs of other tests on the shared server do not exceed.
    pub(crate) async fn open(&self, options: Options) -> Result<Redis> {
        Redis::open_with(&self.address, patient(options)).await
    }

    /// Key of a record, with a suffix.
    pub(crate) fn key(&self, id: RecordId, behind: &str) -> String {
        format!("{}{{{id}}}{behind}", self.prefix)
    }

    /// Keys of all outcomes that exist for a record.
    pub(crate) fn outcome_keys(&self, id: RecordId) -> Vec<String> {
        let pattern = self.key(id, "o*");
        ask(&self.server, &words(&format!("KEYS {pattern}")))
    }

    /// Key of the outcome of a completed record.
    pub(crate) fn outcome_key(&self, id: RecordId) -> String {
        let mut keys = self.outcome_keys(id);
        assert_eq!(keys.len(), 1, "a completed record has one outcome");
        keys.remove(0)
    }

    pub(crate) fn mark(&self) -> String {
        format!("{}store", self.prefix)
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        let script =
            "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end";
        let pattern = format!("{}*", self.prefix);
        let mut sweep = redis::cmd("EVAL");
        sweep.arg(script).arg(0).arg(pattern);
        let _: redis::Value = ask(&self.server, &sweep);
    }
}

/// Sends a command directly to a server.
pub(crate) fn ask<T: redis::FromRedisValue>(url: &str, command: &redis::Cmd) -> T {
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_connection().unwrap();
    command.query(&mut connection).unwrap()
}

/// Builds a command from words.
pub(crate) fn words(line: &str) -> redis::Cmd {
    let mut words = line.split_whitespace();
    let mut command = redis::cmd(words.next().unwrap());
    for word in words {
        command.arg(word);
    }
    command
}

pub(crate) fn id(number: u64) -> RecordId {
    RecordId((u128::from(number) << 64 | 7).to_be_bytes())
}

pub(crate) fn claim(number: u64) -> Claim {
    Claim::new(id(number), Fingerprint([1; 16]))
}

pub(crate) fn completion(body: &str) -> Settlement {
    Settlement::Complete {
        outcome: Outcome::new(200, body),
        retention: RETENTION,
        remember: REMEMBER,
    }
}

/// Sends one claim.
pub(crate) async fn verdict(store: &impl Store, claim: &Claim) -> Result<Verdict> {
    store.claim(claim.clone()).await
}

/// Sends claims concurrently; the verdicts have the same order.
pub(crate) async fn verdicts(store: &impl Store, claims: &[Claim]) -> Vec<Result<Verdict>> {
    join_all(claims.iter().map(|claim| store.claim(claim.clone()))).await
}

pub(crate) async fn granted(store: &impl Store, claim: &Claim) -> Grant {
    match verdict(store, claim).await.unwrap() {
        Verdict::Granted(grant) => grant,
        other => panic!("expected a grant, got {other:?}"),
    }
}

/// Body of the replayed outcome.
pub(crate) async fn replayed(store: &impl Store, number: u64) -> String {
    match verdict(store, &claim(number)).await.unwrap() {
        Verdict::Replay(outcome) => String::from_utf8(outcome.body().to_vec()).unwrap(),
        other => panic!("expected a replay, got {other:?}"),
    }
}

/// Claims a key and completes it.
pub(crate) async fn complete(store: &impl Store, number: u64, body: &str) {
    let fence = granted(store, &claim(number)).await.fence;
    let settled = store.settle(id(number), fence, completion(body)).await;
    assert_eq!(settled.unwrap(), refrain::Settled::Applied);
}
