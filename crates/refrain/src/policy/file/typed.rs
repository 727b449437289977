//! The file as typed: names and kinds of values are checked by serde, what they say is checked when they are resolved.

use std::{fmt, ops::Range};

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor},
};
use toml::Spanned;

use super::{
    Durability,
    authorization::AuthorizationScheme,
    forms::{Audit, Fingerprint},
    proxy::HostHeader,
    schema,
};
use crate::{
    Guarantee,
    consume::{Gap, OnRefusal},
    key::{Sender, Syntax},
    policy::{Class, Duplicates, Mode, OnStoreFailure, Paths, ReplayTo, Reply},
};

/// The settings of the process, at the top of the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Server {
    /// Where the proxy listens. Default: 127.0.0.1:8377.
    #[schemars(with = "Option<schema::Address>")]
    pub(super) listen: Option<String>,
    /// Where API, metrics and probes are served. Default: 127.0.0.1:8378.
    #[schemars(with = "Option<schema::Address>")]
    pub(super) admin: Option<String>,
    /// The service behind the proxy, such as `http://127.0.0.1:3000`.
    #[schemars(with = "Option<schema::Upstream>")]
    pub(super) upstream: Option<String>,
    /// Where records live. Of two, in a list or with a comma between them, the first serves outcomes in front of the second. Default: file:refrain-data.
    #[schemars(with = "Option<schema::OneOrMore<schema::StoreUrl>>")]
    pub(super) store: Option<List>,
    /// The variable of the environment that holds the address of the store, or both with a comma between them; or that with `_FILE` behind its name, for a file. Instead of `store`.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) store_env: Option<String>,
    /// The file that holds the address of the store, or both with a comma between them. Instead of `store`.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) store_file: Option<String>,
    /// What an acknowledged record survives. Default: full.
    #[schemars(with = "Option<Durability>")]
    pub(super) durability: Option<String>,
    /// The folder of the audit log. Default: `audit` in the folder of a `file:` store, else refrain-audit.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) audit_log: Option<String>,
    /// What the `type` of a problem starts with. Default: /.well-known/refrain/problems/.
    #[schemars(with = "Option<schema::ProblemBase>")]
    pub(super) problems: Option<String>,
}

/// Limits and times of the proxy itself.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Proxy {
    /// Threads that serve requests. Default: 0, one per processor.
    #[schemars(with = "Option<usize>")]
    pub(super) threads: Option<Scalar>,
    /// Connections from clients at a time; more wait to be accepted. Default: 10000.
    #[schemars(with = "Option<usize>")]
    pub(super) connections_max: Option<Scalar>,
    /// The largest head of a request or an answer: 8KiB to 1MiB. Default: 64KiB.
    #[schemars(with = "Option<schema::Size>")]
    pub(super) head_bytes_max: Option<Scalar>,
    /// The most header fields in one head: 10 to 10000. Default: 100.
    #[schemars(with = "Option<usize>")]
    pub(super) headers_max: Option<Scalar>,
    /// How much memory the bodies of guarded requests and their answers may take together, 1MiB to 1024GiB; requests beyond it are refused with 503. Default: 256MiB.
    #[schemars(with = "Option<schema::Size>")]
    pub(super) buffered_bytes_max: Option<Scalar>,
    /// How long a client may take for a request's head. Default: 30s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) head_timeout: Option<Scalar>,
    /// How long a client's body, or the sending of an answer to it, may stand still. Default: 60s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) client_timeout: Option<Scalar>,
    /// How long an idle connection of a client is kept. Default: 75s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) keep_alive: Option<Scalar>,
    /// How long connecting to the upstream may take. Default: 5s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) connect_timeout: Option<Scalar>,
    /// How long the upstream may take to begin its answer to an unguarded request, and how long that answer may stand still. Default: 5m.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) read_timeout: Option<Scalar>,
    /// How long an idle connection to the upstream is kept; stay below the upstream's own idle time. Default: 4s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) upstream_idle: Option<Scalar>,
    /// The most idle connections to the upstream, in each thread. Default: 256.
    #[schemars(with = "Option<usize>")]
    pub(super) upstream_idle_max: Option<Scalar>,
    /// How long running requests may take to end once the proxy is told to stop. Default: 30s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) drain: Option<Scalar>,
    /// Which `Host` the upstream sees. Default: client.
    #[schemars(with = "Option<HostHeader>")]
    pub(super) host: Option<String>,
    /// Whether the answer to a guarded request may end with its connection, as HTTP/1.0 allows it; otherwise its outcome is unknown, for it may have been cut. Default: false.
    pub(super) http10_upstream: Option<bool>,
}

/// The settings that `[policy]` and every `[[operation]]` share.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    /// Where the key comes from; the first that is found counts. Default: header:Idempotency-Key.
    #[schemars(with = "Option<schema::OneOrMore<schema::KeySource>>")]
    pub(super) key: Option<List>,
    /// How a key header is written. Default: both.
    #[schemars(with = "Option<Syntax>")]
    pub(super) syntax: Option<String>,
    /// Whether a request without a key is refused; otherwise it is let through unguarded. Default: false.
    pub(super) required: Option<bool>,
    /// Whether the case of a path counts when it is matched. Default: case-insensitive.
    #[schemars(with = "Option<Paths>")]
    pub(super) paths: Option<String>,
    /// The namespace in which keys are unique. Default: credential.
    #[schemars(with = "Option<schema::OneOrMore<schema::ScopeText>>")]
    pub(super) scope: Option<List>,
    /// What tells callers apart. Default: the headers Authorization, X-Api-Key and Cookie.
    #[schemars(with = "Option<schema::OneOrMore<schema::CredentialText>>")]
    pub(super) credential: Option<List>,
    /// Who may see a replay. Default: same-credential.
    #[schemars(with = "Option<ReplayTo>")]
    pub(super) replay_to: Option<String>,
    /// What tells a retry from another request under the same key: these parts and, unless `fingerprint.host = false`, the host. Default: method, path, query and body.
    #[schemars(with = "Option<schema::FingerprintForm>")]
    pub(super) fingerprint: Option<Fingerprint>,
    /// What is promised about how often the operation takes effect. Default: at-most-once.
    #[schemars(with = "Option<Guarantee>")]
    pub(super) guarantee: Option<String>,
    /// Where exactly-once operations commit their receipts, such as `postgres://app@db/app`. Default: none.
    #[schemars(with = "Option<schema::ReceiptsUrl>")]
    pub(super) receipts: Option<String>,
    /// The variable of the environment that holds that address; or that with `_FILE` behind its name, for a file. Instead of `receipts`.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) receipts_env: Option<String>,
    /// The file that holds that address. Instead of `receipts`.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) receipts_file: Option<String>,
    /// How often a claim may be granted in all, under at-least-once and exactly-once: 1 to 1000. Default: 10.
    #[schemars(with = "Option<schema::Attempts>")]
    pub(super) attempts_max: Option<Scalar>,
    /// How long a duplicate waits for the outcome of the one in flight: up to 5m. Default: 10s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) wait: Option<Scalar>,
    /// How long a claim stands unrenewed: 1s to 1h. Default: 30s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) lease: Option<Scalar>,
    /// How long an outcome is kept: 1s to ten years. Default: 24h.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) retention: Option<Scalar>,
    /// How long after the end of retention the key is refused instead of run again. Default: 7d.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) remember: Option<Scalar>,
    /// How long the operation may take to answer: up to 1d. Default: 60s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) timeout: Option<Scalar>,
    /// How long after its last sign of life an attempt may still act; not shorter than `timeout`. Default: `timeout` and `lease` together.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) settle_after: Option<Scalar>,
    /// Answers that are kept, against the table. An operation that writes `keep` or `release` replaces both lists of `[policy]`.
    #[schemars(with = "Option<schema::OneOrMore<schema::StatusText>>")]
    pub(super) keep: Option<List>,
    /// Answers that free the key again, against the table.
    #[schemars(with = "Option<schema::OneOrMore<schema::StatusText>>")]
    pub(super) release: Option<List>,
    /// Headers that are replayed on top of the usual ones.
    #[schemars(with = "Option<schema::OneOrMore<schema::HeaderName>>")]
    pub(super) replay_headers: Option<List>,
    /// The largest request body that is taken: up to 64MiB. Default: 8MiB.
    #[schemars(with = "Option<schema::Size>")]
    pub(super) request_bytes_max: Option<Scalar>,
    /// The largest body that is kept with an outcome: up to 64MiB. Default: 8MiB.
    #[schemars(with = "Option<schema::Size>")]
    pub(super) outcome_bytes_max: Option<Scalar>,
    /// When a reply leaves. Default: stored.
    #[schemars(with = "Option<Reply>")]
    pub(super) reply: Option<String>,
    /// Whether the guard acts or only watches. Default: enforce.
    #[schemars(with = "Option<Mode>")]
    pub(super) mode: Option<String>,
    /// What is answered to duplicates of what is done, where its outcome cannot be replayed. Default: explain.
    #[schemars(with = "Option<Duplicates>")]
    pub(super) duplicates: Option<String>,
    /// What happens while the store cannot be reached. Default: refuse.
    #[schemars(with = "Option<OnStoreFailure>")]
    pub(super) on_store_failure: Option<String>,
    /// Whether at-most-once claims may lie in a store that may lose what it acknowledged. Default: false.
    pub(super) accept_lossy_claims: Option<bool>,
    /// Whether every attempt and its end is written into the audit log; while that cannot be written nothing runs. With `required` nothing starts without a log, and no operation can turn it off. Default: false.
    #[schemars(with = "Option<schema::AuditForm>")]
    pub(super) audit: Option<Audit>,
}

/// What an `[[operation]]` has besides.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    /// Methods and a path pattern, such as `POST /v1/payments/{id}/capture` or `POST|PUT /hooks/*`.
    #[serde(rename = "match")]
    #[schemars(with = "Option<schema::PatternText>")]
    pub(super) pattern: Option<String>,
    /// What kind of operation it is, and the settings that go with it.
    #[schemars(with = "Option<Class>")]
    pub(super) class: Option<String>,
    /// Whose webhooks it takes in, and the settings that go with that.
    #[schemars(with = "Option<Sender>")]
    pub(super) webhook: Option<String>,
    /// Learns what became of an indeterminate one: 2xx is its outcome, 404 means that it never happened.
    #[schemars(with = "Option<schema::ProbeText>")]
    pub(super) probe: Option<String>,
}

/// An outbox, and the broker that its messages are published to.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Relay {
    /// What reports call it. Default: relay.
    pub(super) name: Option<String>,
    /// The database with the table `refrain_outbox`, such as `postgres://app@db/app`.
    #[schemars(with = "Option<schema::ReceiptsUrl>")]
    pub(super) outbox: Option<String>,
    /// The variable of the environment that holds that address; or that with `_FILE` behind its name, for a file. Instead of `outbox`.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) outbox_env: Option<String>,
    /// The file that holds that address. Instead of `outbox`.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) outbox_file: Option<String>,
    /// The broker, such as `nats://127.0.0.1:4222`.
    #[schemars(with = "Option<schema::BrokerUrl>")]
    pub(super) to: Option<String>,
    /// The variable of the environment that holds that address; or that with `_FILE` behind its name, for a file. Instead of `to`.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) to_env: Option<String>,
    /// The file that holds that address. Instead of `to`.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) to_file: Option<String>,
    /// How many messages are held at once: 1 to 10000. Default: 256.
    #[schemars(with = "Option<usize>")]
    pub(super) in_flight_max: Option<Scalar>,
    /// How long what a dead relay held is left to it: at least 1s. Default: 30s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) lease: Option<Scalar>,
    /// How often the outbox is looked into while nothing wakes the relay. Default: 1s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) poll: Option<Scalar>,
    /// How long the broker may take to confirm one message. Default: 10s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) timeout: Option<Scalar>,
    /// After how many refusals a message is not tried any more: 1 to 1000. Default: 5.
    #[schemars(with = "Option<schema::Attempts>")]
    pub(super) attempts: Option<Scalar>,
    /// What happens to its group then. Default: hold.
    #[schemars(with = "Option<OnRefusal>")]
    pub(super) on_refusal: Option<String>,
    /// How long the relay takes at the longest to end once it is told to. Default: 30s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) drain: Option<Scalar>,
}

/// How the requests of an operation are signed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Signed {
    /// Whose way of signing it is. Default: the operation's `webhook`.
    #[schemars(with = "Option<Sender>")]
    pub(super) scheme: Option<String>,
    /// Variables of the environment that hold the secrets; of each, or of the same name with `_FILE` behind it for a file.
    #[schemars(with = "Option<schema::OneOrMore<schema::VariableName>>")]
    pub(super) secret_env: Option<List>,
    /// Files that hold one secret each.
    #[schemars(with = "Option<schema::OneOrMore<schema::PathText>>")]
    pub(super) secret_file: Option<List>,
    /// How old or how far ahead a signature may be, where the sender signs the time: 1s to 1d. Default: 5m.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) tolerance: Option<Scalar>,
}

/// What the target of a worker is shown with each message.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Authorization {
    /// How the secret is presented in the header `Authorization`. Default: bearer.
    #[schemars(with = "Option<AuthorizationScheme>")]
    pub(super) scheme: Option<String>,
    /// The user name, for basic.
    pub(super) user: Option<String>,
    /// The variable of the environment that holds the token or the password; or that with `_FILE` behind its name, for a file.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) secret_env: Option<String>,
    /// The file that holds the token or the password.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) secret_file: Option<String>,
}

/// A queue, and the service that its messages are delivered to.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Worker {
    /// The consumer's name: the scope of its keys, and what it is called at the broker.
    pub(super) name: Option<String>,
    /// The broker, such as `redis://127.0.0.1:6379`. Default: none; this, `source_env` or `source_file` is required.
    #[schemars(with = "Option<schema::BrokerUrl>")]
    pub(super) source: Option<String>,
    /// The variable of the environment that holds that address; or that with `_FILE` behind its name, for a file. Instead of `source`.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) source_env: Option<String>,
    /// The file that holds that address. Instead of `source`.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) source_file: Option<String>,
    /// The stream, queue or topic.
    pub(super) queue: Option<String>,
    /// Where messages are delivered to, by POST.
    #[schemars(with = "Option<schema::DeliverUrl>")]
    pub(super) deliver: Option<String>,
    /// Where a message's key comes from; the first that is found counts. Default: cloudevents, id, position.
    #[schemars(with = "Option<schema::OneOrMore<schema::MessageKey>>")]
    pub(super) key: Option<List>,
    /// Whether another payload under the same key is told apart, and goes to the dead letters. Default: true.
    pub(super) compare: Option<bool>,
    /// Whether every attempt and its end is written into the audit log; without it nothing is delivered. Default: false.
    #[schemars(with = "Option<schema::AuditForm>")]
    pub(super) audit: Option<Audit>,
    /// Whether at-most-once claims may be kept in a store that may lose acknowledged writes. Default: false.
    pub(super) accept_lossy_claims: Option<bool>,
    /// What is promised about how often a message takes effect. Default: at-least-once.
    #[schemars(with = "Option<Guarantee>")]
    pub(super) guarantee: Option<String>,
    /// Where exactly-once targets commit their receipts, such as `postgres://app@db/app`. Default: none.
    #[schemars(with = "Option<schema::ReceiptsUrl>")]
    pub(super) receipts: Option<String>,
    /// The variable of the environment that holds that address; or that with `_FILE` behind its name, for a file. Instead of `receipts`.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) receipts_env: Option<String>,
    /// The file that holds that address. Instead of `receipts`.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) receipts_file: Option<String>,
    /// How often a message is tried before it goes to the dead letters: 1 to 1000. Default: 10.
    #[schemars(with = "Option<schema::Attempts>")]
    pub(super) attempts: Option<Scalar>,
    /// The queue for what could not be handled. Without one it stays where it is, and is tried at `backoff_max`.
    pub(super) dead_letter: Option<String>,
    /// How many messages are handled at a time: 1 to 10000. Default: 16.
    #[schemars(with = "Option<usize>")]
    pub(super) concurrency: Option<Scalar>,
    /// How long the target may take to answer. Default: 60s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) timeout: Option<Scalar>,
    /// The pause behind the first failure; each one behind is twice as long. Default: 1s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) backoff: Option<Scalar>,
    /// The longest pause. Default: 5m.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) backoff_max: Option<Scalar>,
    /// How long the broker waits for a sign of life before it delivers again, where it lets that be chosen. Default: 30s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) ack_wait: Option<Scalar>,
    /// The longest time after which a message may come again, where the broker cannot tell.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) redelivery: Option<Scalar>,
    /// Where events name the aggregate whose order they keep: `header:NAME` or `body:/pointer`. Needs `sequence`.
    #[schemars(with = "Option<schema::FieldText>")]
    pub(super) aggregate: Option<String>,
    /// Where events say their number in it, counted from 1. Needs `aggregate`.
    #[schemars(with = "Option<schema::FieldText>")]
    pub(super) sequence: Option<String>,
    /// What becomes of an event whose predecessor has not been handled. Default: hold.
    #[schemars(with = "Option<Gap>")]
    pub(super) on_gap: Option<String>,
    /// How long a claim stands unrenewed. Default: 30s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) lease: Option<Scalar>,
    /// How long it is known that a message was handled. Default: 7d.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) retention: Option<Scalar>,
    /// How much longer the key is refused instead of run again. Default: 30d.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) remember: Option<Scalar>,
}

/// Text or a number, as text.
#[derive(Debug)]
pub(super) struct Scalar(pub(super) String);

/// One text or several, each with its place where the file has one for it alone.
#[derive(Debug)]
pub(super) struct List(pub(super) Vec<(String, Option<Range<usize>>)>);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListVisitor)
    }
}

impl List {
    /// The members of a list, with their places.
    pub(super) fn of<'de, A: SeqAccess<'de>>(mut members: A) -> Result<Self, A::Error> {
        let mut list = Vec::new();
        while let Some(member) = members.next_element::<Spanned<Scalar>>()? {
            let place = member.span();
            list.push((member.into_inner().0, Some(place)));
        }
        Ok(Self(list))
    }
}

struct ScalarVisitor;

impl Visitor<'_> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or a whole number")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar(text.into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar(number.to_string()))
    }
}

struct ListVisitor;

impl<'de> Visitor<'de> for ListVisitor {
    type Value = List;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or a list of texts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<List, E> {
        Ok(List(vec![(text.into(), None)]))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<List, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, members: A) -> Result<List, A::Error> {
        List::of(members)
    }
}
