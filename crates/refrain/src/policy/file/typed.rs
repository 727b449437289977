//! The tables of `refrain.toml` as written in the file.
//! Serde checks names and types here; the resolving modules check the values.

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
    tls::ClientAuth,
};
use crate::{
    Guarantee,
    consume::{Gap, OnRefusal},
    key::{Sender, Syntax},
    policy::{Class, Duplicates, KeysKept, Mode, OnStoreFailure, Paths, ReplayTo, Reply},
};

mod jwt;
pub(super) use jwt::Jwt;

/// Process settings, at the top of the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Server {
    /// Address and port that the proxy listens on. Default: 127.0.0.1:8377.
    #[schemars(with = "Option<schema::Address>")]
    pub(super) listen: Option<String>,
    /// Address and port of the admin listener: API, metrics and health probes. Default: 127.0.0.1:8378.
    #[schemars(with = "Option<schema::Address>")]
    pub(super) admin: Option<String>,
    /// Further host names of the admin listener on a loopback address, such as that of a TLS proxy in front of it;
    /// they need an admin token. Default: none.
    #[schemars(with = "Option<schema::OneOrMore<schema::HostName>>")]
    pub(super) admin_hosts: Option<List>,
    /// URL of the upstream service: scheme, host and port, such as `http://127.0.0.1:3000`, and a path that requests are
    /// sent below, if there is one.
    #[schemars(with = "Option<schema::Upstream>")]
    pub(super) upstream: Option<String>,
    /// Store for the records. With two (a list, or separated by a comma), the first is a cache of outcomes
    /// in front of the second. Default: file:refrain-data.
    #[schemars(with = "Option<schema::OneOrMore<schema::StoreUrl>>")]
    pub(super) store: Option<List>,
    /// Environment variable with the address of the store, or `NAME_FILE` with the path of a file that holds it.
    /// Separate two addresses with a comma. Use instead of `store`.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) store_env: Option<String>,
    /// File with the address of the store; separate two addresses with a comma. Use instead of `store`.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) store_file: Option<String>,
    /// When a `file:` store acknowledges a write. Default: full.
    #[schemars(with = "Option<Durability>")]
    pub(super) durability: Option<String>,
    /// Directory of the audit log. Default: `audit` inside the directory of a `file:` store, else refrain-audit.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) audit_log: Option<String>,
    /// URL prefix of the `type` of problem responses. Default: /.well-known/refrain/problems/.
    #[schemars(with = "Option<schema::ProblemBase>")]
    pub(super) problems: Option<String>,
}

/// Keys that encrypt the records of the store. A key is 32 bytes, as 64 hexadecimal digits or as base64.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Encryption {
    /// Environment variable with the key, or `NAME_FILE` with the path of a file that holds it. Without a key, new
    /// records are not encrypted.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) key_env: Option<String>,
    /// File with the key. Use instead of `key_env`.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) key_file: Option<String>,
    /// Environment variables with keys that only decrypt, as for `key_env`. Default: none.
    #[schemars(with = "Option<schema::OneOrMore<schema::VariableName>>")]
    pub(super) previous_key_envs: Option<List>,
    /// Files with keys that only decrypt. Default: none.
    #[schemars(with = "Option<schema::OneOrMore<schema::PathText>>")]
    pub(super) previous_key_files: Option<List>,
}

/// Limits and timeouts of the proxy.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Proxy {
    /// Number of threads that serve requests, up to 1024. Default: 0, one per processor.
    #[schemars(with = "Option<usize>")]
    pub(super) threads: Option<Scalar>,
    /// Maximum concurrent client connections; further ones wait to be accepted. Default: 10000.
    #[schemars(with = "Option<usize>")]
    pub(super) connections_max: Option<Scalar>,
    /// Maximum size of a request or response head: 8KiB to 1MiB. Default: 64KiB.
    #[schemars(with = "Option<schema::Size>")]
    pub(super) head_bytes_max: Option<Scalar>,
    /// Maximum number of header fields in one head: 10 to 10000. Default: 100.
    #[schemars(with = "Option<usize>")]
    pub(super) headers_max: Option<Scalar>,
    /// Maximum memory for buffered bodies of guarded requests and their responses, in total: 1MiB to 1024GiB.
    /// A request that would exceed it gets 503. Default: 256MiB.
    #[schemars(with = "Option<schema::Size>")]
    pub(super) buffered_bytes_max: Option<Scalar>,
    /// Maximum time for a client to send a request head. Default: 30s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) head_timeout: Option<Scalar>,
    /// Maximum time without progress while reading a request body or writing a response. Default: 60s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) client_timeout: Option<Scalar>,
    /// Maximum idle time of a client connection. Default: 75s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) keep_alive: Option<Scalar>,
    /// Maximum time to connect to the upstream. Default: 5s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) connect_timeout: Option<Scalar>,
    /// Maximum time for the upstream to start its response to an unguarded request, and maximum time without
    /// progress of that response. Default: 5m.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) read_timeout: Option<Scalar>,
    /// Maximum idle time of an upstream connection; keep it below the idle timeout of the upstream. Default: 4s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) upstream_idle: Option<Scalar>,
    /// Maximum number of idle upstream connections per thread. Default: 256.
    #[schemars(with = "Option<usize>")]
    pub(super) upstream_idle_max: Option<Scalar>,
    /// Maximum time for running requests to finish at shutdown. Default: 30s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) drain: Option<Scalar>,
    /// `Host` header that the upstream receives. Default: client.
    #[schemars(with = "Option<HostHeader>")]
    pub(super) host: Option<String>,
    /// Networks and addresses of proxies in front of this one, whose `X-Forwarded-*` and `Forwarded` are believed. From all
    /// other clients these headers are replaced. Default: none.
    #[schemars(with = "Option<schema::OneOrMore<schema::NetworkText>>")]
    pub(super) trusted_proxies: Option<List>,
    /// Accept a response to a guarded request that ends with its connection, as in HTTP/1.0. If false, the outcome
    /// of such a request is unknown, because the response may be truncated. Default: false.
    pub(super) http10_upstream: Option<bool>,
    /// File of the access log, or `stdout`: one JSON line for each request. Default: no access log.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) access_log: Option<String>,
    /// Maximum size of a file of the access log: 1MiB to 1024GiB; then the next one is started. Default: 100MiB.
    #[schemars(with = "Option<schema::Size>")]
    pub(super) access_log_bytes_max: Option<Scalar>,
    /// Maximum number of files of the access log, with the current one; the oldest is deleted: 1 to 1000. Default: 10.
    #[schemars(with = "Option<usize>")]
    pub(super) access_log_files_max: Option<Scalar>,
    /// URL of an OpenTelemetry collector that receives traces over OTLP/HTTP, such as `http://127.0.0.1:4318`; `/v1/traces`
    /// is appended to a URL without a path. Needs a build with the feature `otel`. Default: no traces.
    #[schemars(with = "Option<schema::OtlpUrl>")]
    pub(super) otlp_endpoint: Option<String>,
    /// Part of the requests without a `traceparent` that are traced: 0.0 to 1.0. Default: 1.0.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub(super) otlp_sample_ratio: Option<f64>,
}

/// TLS of a listener: its certificate and key, and the certificates of its clients.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    /// PEM file with the server's certificate, then the intermediate ones. It is read again when it changes.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) certificate: Option<String>,
    /// PEM file with the private key of the certificate, without a passphrase. It is read again when it changes.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) key: Option<String>,
    /// PEM file with the authorities that may issue certificates of clients. Default: clients are not asked for one.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) client_ca: Option<String>,
    /// Whether a client without a certificate is rejected. Default: required.
    #[schemars(with = "Option<ClientAuth>")]
    pub(super) client_auth: Option<String>,
    /// Maximum time for a TLS handshake. Default: 10s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) handshake_timeout: Option<Scalar>,
    /// Maximum number of unfinished TLS handshakes; a further one ends the oldest: 1 to 100000. Default: 1000.
    #[schemars(with = "Option<usize>")]
    pub(super) handshakes_max: Option<Scalar>,
}

/// Settings that `[policy]` and every `[[operation]]` share.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    /// Sources of the idempotency key, tried in order; the first one present is used. Default: header:Idempotency-Key.
    #[schemars(with = "Option<schema::OneOrMore<schema::KeySource>>")]
    pub(super) key: Option<List>,
    /// Accepted syntax of the key header. Default: both.
    #[schemars(with = "Option<Syntax>")]
    pub(super) syntax: Option<String>,
    /// Reject requests without a key; if false, they pass through unguarded. Default: false.
    pub(super) required: Option<bool>,
    /// Case sensitivity of path matching. Default: case-insensitive.
    #[schemars(with = "Option<Paths>")]
    pub(super) paths: Option<String>,
    /// Namespace in which keys are unique. Default: credential.
    #[schemars(with = "Option<schema::OneOrMore<schema::ScopeText>>")]
    pub(super) scope: Option<List>,
    /// Headers and cookies that identify the caller. Default: the headers Authorization, X-Api-Key and Cookie.
    #[schemars(with = "Option<schema::OneOrMore<schema::CredentialText>>")]
    pub(super) credential: Option<List>,
    /// Callers that may receive a replay. Default: same-credential.
    #[schemars(with = "Option<ReplayTo>")]
    pub(super) replay_to: Option<String>,
    /// Request that asks the upstream before a replay whether the caller may see it, such as `GET /me`: 2xx allows it,
    /// 401 and 403 refuse it. Default: none.
    #[schemars(with = "Option<schema::ReplayProbeText>")]
    pub(super) replay_probe: Option<String>,
    /// Parts of the request that a retry must repeat unchanged, besides the host.
    /// To exclude the host, set `fingerprint.host = false`. Default: method, path, query and body.
    #[schemars(with = "Option<schema::FingerprintForm>")]
    pub(super) fingerprint: Option<Fingerprint>,
    /// Delivery guarantee: how often the operation may take effect. Default: at-most-once.
    #[schemars(with = "Option<Guarantee>")]
    pub(super) guarantee: Option<String>,
    /// Database with the receipts of exactly-once operations, such as `postgres://app@db/app`. Default: none.
    #[schemars(with = "Option<schema::ReceiptsUrl>")]
    pub(super) receipts: Option<String>,
    /// Environment variable with that address, or `NAME_FILE` with the path of a file that holds it.
    /// Use instead of `receipts`.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) receipts_env: Option<String>,
    /// File with that address. Use instead of `receipts`.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) receipts_file: Option<String>,
    /// Maximum number of attempts per key under at-least-once and exactly-once: 1 to 1000. Default: 10.
    #[schemars(with = "Option<schema::Attempts>")]
    pub(super) attempts_max: Option<Scalar>,
    /// Maximum time that a duplicate waits for the request in flight: up to 5m. Default: 10s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) wait: Option<Scalar>,
    /// Maximum number of duplicates of one key that wait; further ones get 409 at once: 1 to 1000000. Default: 5000.
    #[schemars(with = "Option<usize>")]
    pub(super) waiting_max: Option<Scalar>,
    /// Lease of a claim, renewed while the operation runs: 1s to 1h. Default: 30s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) lease: Option<Scalar>,
    /// Retention: time for which an outcome is kept and replayed, 1s to ten years. Default: 24h.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) retention: Option<Scalar>,
    /// Time after retention for which the key is rejected instead of executed again. Default: 7d.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) remember: Option<Scalar>,
    /// Maximum time for the operation to respond: up to 1d. Default: 60s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) timeout: Option<Scalar>,
    /// Time after its last dispatch or lease renewal for which an attempt may still take effect;
    /// at least `timeout`. Default: `timeout` plus `lease`.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) settle_after: Option<Scalar>,
    /// Response statuses to keep and replay, overriding the guarantee's table.
    /// An operation that sets `keep` or `release` replaces both lists of `[policy]`.
    #[schemars(with = "Option<schema::OneOrMore<schema::StatusText>>")]
    pub(super) keep: Option<List>,
    /// Response statuses that free the key for a new attempt, overriding the guarantee's table.
    #[schemars(with = "Option<schema::OneOrMore<schema::StatusText>>")]
    pub(super) release: Option<List>,
    /// Response headers to replay, in addition to the built-in list.
    #[schemars(with = "Option<schema::OneOrMore<schema::HeaderName>>")]
    pub(super) replay_headers: Option<List>,
    /// Maximum size of a request body: up to 64MiB. Default: 8MiB.
    #[schemars(with = "Option<schema::Size>")]
    pub(super) request_bytes_max: Option<Scalar>,
    /// Maximum size of a response body that is stored with its outcome: up to 64MiB. Default: 8MiB.
    #[schemars(with = "Option<schema::Size>")]
    pub(super) outcome_bytes_max: Option<Scalar>,
    /// When a response is sent to the client. Default: auto, which streams responses of the type `text/event-stream`.
    #[schemars(with = "Option<Reply>")]
    pub(super) reply: Option<String>,
    /// Enforce the policy, or only observe. Default: enforce.
    #[schemars(with = "Option<Mode>")]
    pub(super) mode: Option<String>,
    /// Response to a duplicate of a completed request whose outcome cannot be replayed. Default: explain.
    #[schemars(with = "Option<Duplicates>")]
    pub(super) duplicates: Option<String>,
    /// Behaviour while the store is unavailable. Default: refuse.
    #[schemars(with = "Option<OnStoreFailure>")]
    pub(super) on_store_failure: Option<String>,
    /// Allow at-most-once claims in a store that may lose acknowledged writes. Default: false.
    pub(super) accept_lossy_claims: Option<bool>,
    /// How keys are kept with their records. Default: digest.
    #[schemars(with = "Option<KeysKept>")]
    pub(super) records_keys: Option<String>,
    /// Keep the query of a request with its record, beside its method and path. Default: false.
    pub(super) records_query: Option<bool>,
    /// Let clients look up the state of their own keys at `/.well-known/idempotency/KEY`. Default: false.
    pub(super) lookup: Option<bool>,
    /// Write every attempt and its result to the audit log; if the log is not writable, nothing is executed.
    /// With `required`, the process does not start without the log, and no operation can turn it off. Default: false.
    #[schemars(with = "Option<schema::AuditForm>")]
    pub(super) audit: Option<Audit>,
}

/// Settings that only an `[[operation]]` has.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OperationHead {
    /// Methods and path pattern, such as `POST /v1/payments/{id}/capture` or `POST|PUT /hooks/*`.
    #[serde(rename = "match")]
    #[schemars(with = "Option<schema::PatternText>")]
    pub(super) pattern: Option<String>,
    /// Class of the operation, which presets other settings.
    #[schemars(with = "Option<Class>")]
    pub(super) class: Option<String>,
    /// Sender of the webhooks that the operation receives, which presets other settings.
    #[schemars(with = "Option<Sender>")]
    pub(super) webhook: Option<String>,
    /// Request that resolves an unknown outcome: 2xx is the outcome, 404 means that the operation did not happen.
    #[schemars(with = "Option<schema::ProbeText>")]
    pub(super) probe: Option<String>,
}

/// Outbox, and the broker that its messages are published to.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Relay {
    /// Name of the relay in logs and reports. Default: relay.
    pub(super) name: Option<String>,
    /// Database with the table `refrain_outbox`, such as `postgres://app@db/app`.
    #[schemars(with = "Option<schema::ReceiptsUrl>")]
    pub(super) outbox: Option<String>,
    /// Environment variable with that address, or `NAME_FILE` with the path of a file that holds it.
    /// Use instead of `outbox`.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) outbox_env: Option<String>,
    /// File with that address. Use instead of `outbox`.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) outbox_file: Option<String>,
    /// Address of the broker, such as `nats://127.0.0.1:4222`.
    #[schemars(with = "Option<schema::BrokerUrl>")]
    pub(super) to: Option<String>,
    /// Environment variable with that address, or `NAME_FILE` with the path of a file that holds it.
    /// Use instead of `to`.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) to_env: Option<String>,
    /// File with that address. Use instead of `to`.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) to_file: Option<String>,
    /// Maximum number of messages held at a time: 1 to 10000. Default: 256.
    #[schemars(with = "Option<usize>")]
    pub(super) in_flight_max: Option<Scalar>,
    /// Lease of held messages: another relay takes them over after it lapses; at least 1s. Default: 30s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) lease: Option<Scalar>,
    /// Interval between polls of the outbox while no notification arrives. Default: 1s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) poll: Option<Scalar>,
    /// Maximum time for the broker to confirm one message. Default: 10s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) timeout: Option<Scalar>,
    /// Number of refusals by the broker after which a message is given up: 1 to 1000. Default: 5.
    #[schemars(with = "Option<schema::Attempts>")]
    pub(super) attempts: Option<Scalar>,
    /// What happens to the other messages of its group then. Default: hold.
    #[schemars(with = "Option<OnRefusal>")]
    pub(super) on_refusal: Option<String>,
    /// Maximum time to finish at shutdown. Default: 30s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) drain: Option<Scalar>,
}

/// Signature verification of an operation's requests.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Signed {
    /// Signature scheme, by sender. Default: the operation's `webhook`.
    #[schemars(with = "Option<Sender>")]
    pub(super) scheme: Option<String>,
    /// Environment variables that hold the secrets; each may be given as `NAME_FILE` with the path of a file.
    #[schemars(with = "Option<schema::OneOrMore<schema::VariableName>>")]
    pub(super) secret_env: Option<List>,
    /// Files that hold one secret each.
    #[schemars(with = "Option<schema::OneOrMore<schema::PathText>>")]
    pub(super) secret_file: Option<List>,
    /// Maximum age and maximum clock skew of a signed timestamp, if the sender signs one: 1s to 1d. Default: 5m.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) tolerance: Option<Scalar>,
}

/// Credential that Refrain sends in the header `Authorization`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Authorization {
    /// Authentication scheme of the `Authorization` header. Default: bearer.
    #[schemars(with = "Option<AuthorizationScheme>")]
    pub(super) scheme: Option<String>,
    /// User name, for basic.
    pub(super) user: Option<String>,
    /// Environment variable with the token or password, or `NAME_FILE` with the path of a file that holds it.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) secret_env: Option<String>,
    /// File with the token or password.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) secret_file: Option<String>,
}

/// Queue, and the service that its messages are delivered to.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Worker {
    /// Consumer name: the scope of its keys, and its name at the broker.
    pub(super) name: Option<String>,
    /// Address of the broker, such as `redis://127.0.0.1:6379`.
    /// One of `source`, `source_env` and `source_file` is required. Default: none.
    #[schemars(with = "Option<schema::BrokerUrl>")]
    pub(super) source: Option<String>,
    /// Environment variable with that address, or `NAME_FILE` with the path of a file that holds it.
    /// Use instead of `source`.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) source_env: Option<String>,
    /// File with that address. Use instead of `source`.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) source_file: Option<String>,
    /// Stream, queue or topic to consume.
    pub(super) queue: Option<String>,
    /// URL that each message is delivered to, by POST.
    #[schemars(with = "Option<schema::DeliverUrl>")]
    pub(super) deliver: Option<String>,
    /// Sources of a message's key, tried in order; the first one present is used. Default: cloudevents, id, position.
    #[schemars(with = "Option<schema::OneOrMore<schema::MessageKey>>")]
    pub(super) key: Option<List>,
    /// Send a message with a known key but another payload to the dead letters. Default: true.
    pub(super) compare: Option<bool>,
    /// Write every attempt and its result to the audit log; without the log, nothing is delivered. Default: false.
    #[schemars(with = "Option<schema::AuditForm>")]
    pub(super) audit: Option<Audit>,
    /// Allow at-most-once claims in a store that may lose acknowledged writes. Default: false.
    pub(super) accept_lossy_claims: Option<bool>,
    /// Delivery guarantee: how often a message may take effect. Default: at-least-once.
    #[schemars(with = "Option<Guarantee>")]
    pub(super) guarantee: Option<String>,
    /// Database with the receipts of exactly-once targets, such as `postgres://app@db/app`. Default: none.
    #[schemars(with = "Option<schema::ReceiptsUrl>")]
    pub(super) receipts: Option<String>,
    /// Environment variable with that address, or `NAME_FILE` with the path of a file that holds it.
    /// Use instead of `receipts`.
    #[schemars(with = "Option<schema::VariableName>")]
    pub(super) receipts_env: Option<String>,
    /// File with that address. Use instead of `receipts`.
    #[schemars(with = "Option<schema::PathText>")]
    pub(super) receipts_file: Option<String>,
    /// Maximum number of attempts before a message goes to the dead letters: 1 to 1000. Default: 10.
    #[schemars(with = "Option<schema::Attempts>")]
    pub(super) attempts: Option<Scalar>,
    /// Dead-letter queue. Without one, a message that cannot be handled stays in its queue and is retried
    /// every `backoff_max`.
    pub(super) dead_letter: Option<String>,
    /// Maximum number of messages handled at a time: 1 to 10000. Default: 16.
    #[schemars(with = "Option<usize>")]
    pub(super) concurrency: Option<Scalar>,
    /// Maximum time for the target to respond. Default: 60s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) timeout: Option<Scalar>,
    /// Pause after the first failure; it doubles after each further one. Default: 1s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) backoff: Option<Scalar>,
    /// Maximum pause between attempts. Default: 5m.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) backoff_max: Option<Scalar>,
    /// Time without acknowledgement or progress report until the broker redelivers, if configurable. Default: 30s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) ack_wait: Option<Scalar>,
    /// Maximum time after which a message may be redelivered, if the broker does not report it.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) redelivery: Option<Scalar>,
    /// Field that identifies the aggregate of an event: `header:NAME` or `body:/pointer`. Requires `sequence`.
    #[schemars(with = "Option<schema::FieldText>")]
    pub(super) aggregate: Option<String>,
    /// Field with the event's number in its aggregate, starting at 1. Requires `aggregate`.
    #[schemars(with = "Option<schema::FieldText>")]
    pub(super) sequence: Option<String>,
    /// What happens to an event whose predecessor has not been handled. Default: hold.
    #[schemars(with = "Option<Gap>")]
    pub(super) on_gap: Option<String>,
    /// Lease of a claim, renewed while the message is handled. Default: 30s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) lease: Option<Scalar>,
    /// Retention: time for which a handled message is recognised as a duplicate. Default: 7d.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) retention: Option<Scalar>,
    /// Time after retention for which the key is rejected instead of handled again. Default: 30d.
    #[schemars(with = "Option<schema::Duration>")]
    pub(super) remember: Option<Scalar>,
}

/// A string or a whole number, kept as text.
#[derive(Debug)]
pub(super) struct Scalar(pub(super) String);

/// One string or a list of strings. A member of a list carries its byte range in the file.
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
    /// Reads the members of a list with their byte ranges.
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
        f.write_str("a string or a whole number")
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
        f.write_str("a string or a list of strings")
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
