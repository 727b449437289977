//! The cases: what each does, the bug it reveals, and the fix.

use super::stage::{Stage, Stop};

mod answers;
mod callers;
mod connections;
mod duplicates;
mod errors;
mod in_flight;
mod judge;
mod keys;
mod processes;
mod requests;

pub(super) use judge::MOMENT;

/// This case runs before all others, because they depend on its result.
pub(super) const SAME_BODY: &str = "same-body-other-key";

/// A test case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Case {
    /// Stable identifier for programs.
    pub id: &'static str,
    /// Title for people.
    pub title: &'static str,
    /// What the case does, and what it expects.
    pub explanation: &'static str,
    /// The bug that a failure reveals.
    pub hole: &'static str,
    /// How to fix it.
    pub fix: &'static str,
    /// Whether the case is meaningless when runs cannot be counted.
    pub(super) needs_count: bool,
}

pub(super) const fn case(
    id: &'static str,
    title: &'static str,
    explanation: &'static str,
    hole: &'static str,
    fix: &'static str,
) -> Case {
    Case {
        id,
        title,
        explanation,
        hole,
        fix,
        needs_count: true,
    }
}

/// A case that checks only responses.
const fn without_count(case: Case) -> Case {
    Case {
        needs_count: false,
        ..case
    }
}

/// All cases, in the order in which they run.
pub const CASES: [Case; 34] = [
    case(
        "sequential-duplicate",
        "The same request again",
        "The test sends a request, gets its response, and sends the request again with the same key. The request must take effect once, and the duplicate must get the first response.",
        "The service ignores or forgets the key: every retry executes again.",
        "Store the response under the key before sending it, and replay it to duplicates.",
    ),
    case(
        "same-body-other-key",
        "The same body with another key",
        "Two requests with the same body and different keys are two intended effects; both must execute.",
        "The service compares requests across keys: it rejects one customer's order because it equals another order.",
        "Compare a request only with the request stored under the same key.",
    ),
    case(
        "concurrent-duplicates",
        "Many duplicates at once",
        "The test sends the last bytes of many duplicates at the same moment, in three rounds. One may execute; the others must wait for its response or get a response to retry later.",
        "No claim, or check-then-act: concurrent duplicates all execute.",
        "Claim the key in one atomic step (INSERT … ON CONFLICT, SET NX, compare-and-set) before execution.",
    ),
    case(
        "lost-answer",
        "A retry after the response was lost",
        "The service executes the request and responds, the response is lost, and the client retries. The retry must get the response of the first execution.",
        "A retry after a lost response executes again: the failure that keys exist to prevent.",
        "Store the response durably before sending it, and replay it.",
    ),
    case(
        "duplicate-in-flight",
        "A duplicate while the first request runs",
        "A duplicate arrives at several moments while the first request runs, retries if told to, and once overtakes it. The duplicate must wait or get \"in flight\" (409), and must later get the first response.",
        "A duplicate executes in the gap between reading and claiming the key, or a waiter that gives up deletes the claim of the running request.",
        "Claim first, or read again under the claim; return 409 with Retry-After, or wait; let only the holder end a claim.",
    ),
    case(
        "client-hangs-up",
        "The client disconnects, then retries",
        "The client closes its connection directly after sending the request, and retries. The request must take effect once, and the retry must complete.",
        "A client disconnect cancels the execution or its recording: the key stays locked, or the retry executes again.",
        "Continue execution and recording after a disconnect; release the claim only if the execution is really cancelled.",
    ),
    case(
        "answers-kept-apart",
        "Other requests directly after client disconnects",
        "Clients disconnect at many moments of their requests, and other clients send requests directly after them; then all disconnected clients retry. No client may get the response to another client's request.",
        "Data for a disconnected client stays in a pooled connection to the store or to another service, and the next request reads it as its own response.",
        "Close a pooled connection, or read it to its end, when its user disconnects in the middle.",
    ),
    case(
        "other-body",
        "The same key with another body",
        "A second request with the same key and another body must be rejected (422, 409 or 400). It must neither execute nor get the first response.",
        "The service does not compare requests: it replays the first response to another order, or executes the order under a used key.",
        "Store a fingerprint of method, path, query and body with the key, and return 422 if it differs.",
    ),
    case(
        "other-path",
        "The same key on another path",
        "A request with the same key arrives on another path. It may be rejected, get 404, or execute as a separate operation; it must not get the first response.",
        "The path is not compared: one endpoint replays the response of another.",
        "Put method and path into the fingerprint or into the scope of the key.",
    ),
    case(
        "other-query",
        "The same key with another query",
        "A request with the same key arrives with another query. It may be rejected or execute as a separate operation; the first response is wrong if the query has a meaning.",
        "The query is not compared: `?amount=999` gets the response for `?amount=1`.",
        "Put the query into the fingerprint.",
    ),
    case(
        "other-method",
        "The same key with another method",
        "A request with the same key arrives with another method. It may be rejected, get 405, or execute as a separate operation; it must not get the first response.",
        "The method is not compared.",
        "Put the method into the fingerprint or into the scope of the key.",
    ),
    case(
        "member-order",
        "JSON members in another order",
        "The duplicate has the same JSON members in another order. It should be recognised as a duplicate, and must not execute.",
        "Bodies are compared byte for byte: a client whose serialiser reorders members is rejected, or executes again.",
        "Canonicalise JSON before comparing it.",
    ),
    case(
        "white-space",
        "JSON with other white space",
        "The duplicate has the same JSON with other white space. It should be recognised as a duplicate, and must not execute.",
        "Bodies are compared byte for byte: a client that reformats the body is rejected, or executes again.",
        "Canonicalise JSON before comparing it.",
    ),
    case(
        "other-credential",
        "The same key from another caller",
        "Another caller uses the same key. The request may be rejected or execute separately; the caller must not get the first caller's response, and the request must not be dropped.",
        "Keys are not bound to the caller: a client that guesses or repeats a key gets another client's response, including its cookies.",
        "Put the caller into the scope of the key, and compare the credential before a replay.",
    ),
    case(
        "rotated-credential",
        "The same caller with a new credential",
        "The duplicate has a refreshed credential of the same caller. It may be replayed or rejected; it must not execute again.",
        "The credential is part of the lookup: a retry after a token refresh executes again.",
        "Scope keys by the caller's identity (subject, account), not by the text of the credential.",
    ),
    case(
        "key-missing",
        "No key",
        "Two different requests arrive without a key. Both are rejected (400), or both execute; the second must not get the first response.",
        "All requests without a key share one key.",
        "Reject a missing key where it is required; otherwise do not deduplicate requests without a key.",
    ),
    case(
        "key-empty",
        "An empty key",
        "Two different requests arrive with an empty key. Both are rejected (400), or both execute as requests without a key; the second must not get the first response.",
        "All clients share the empty key.",
        "Reject an empty key.",
    ),
    case(
        "key-too-long",
        "A key of 300 bytes",
        "Two long keys differ only in the last byte. They may be rejected; if one is accepted, its duplicate must be replayed, and the other key must be a different key.",
        "Long keys are truncated, so two keys collide; or they are accepted and not stored.",
        "Reject keys that are longer than the stored length (400).",
    ),
    case(
        "key-non-ascii",
        "A key that is not ASCII",
        "Two keys differ in one letter that is not ASCII. They may be rejected; if one is accepted, its duplicate must be replayed, and the other key must be a different key.",
        "Undecodable letters become the same replacement character, so keys collide; or such keys are accepted and not stored.",
        "Reject keys that are not visible ASCII (400).",
    ),
    case(
        "key-doubled",
        "Two key headers",
        "A request has two key headers with different keys. It should be rejected; if it is accepted, its exact duplicate must not execute again.",
        "It is undefined which of the two keys counts: the duplicate executes again.",
        "Reject a request with two key headers (400).",
    ),
    case(
        "key-quoted",
        "A key in quotes",
        "The key arrives in quotes, as in the IETF draft, twice, then without quotes. Duplicates must not execute again; the quoted and the bare form should be the same key.",
        "Quoted keys are accepted and not stored, or a client that starts to quote its keys executes again.",
        "Treat the quoted and the bare form as the same key, or accept only one of them.",
    ),
    case(
        "error-4xx-then-retry",
        "A rejected request, then a corrected one",
        "A bad body is rejected with 4xx, twice; then the corrected body arrives with the same key. It may execute (the key is free again) or be rejected because it needs a new key (422, 409); it must not get the old error.",
        "The service replays the error to the corrected request and the client cannot learn why; or the duplicate of a rejected request reports success.",
        "Release the key if nothing executed, or return 422 to another body; store the status with the response.",
    ),
    case(
        "error-5xx-then-retry",
        "A failed request, then a retry",
        "A request fails with 5xx and is retried with the same key. It may execute again if it takes effect only once, or get the same error, marked as a replay if the cause may be gone; it must not stay in flight for ever.",
        "A failed request executes again although it took effect, leaves its claim behind, is replayed as a success, or is stored for ever without a mark.",
        "Settle (complete or release) the claim on every exit path: release it if nothing took effect, otherwise store the failure with its status and mark its replay.",
    ),
    case(
        "large-body",
        "A large body",
        "The test sends a request of 1 MiB twice. It may be rejected because of its size; if it is accepted, its duplicate must not execute again and must get the same bytes.",
        "Requests that are too large to store are not protected: the duplicate executes again.",
        "Reject such a request before it executes, or store the fact that it executed.",
    ),
    without_count(case(
        "binary-body",
        "A binary body",
        "The test sends all 256 byte values twice as application/octet-stream. If the body is accepted, the replay must equal the first response byte for byte, and an echo must equal the sent bytes.",
        "Bodies are converted to text and come back changed, even for the first caller.",
        "Store and send bodies as bytes.",
    )),
    without_count(case(
        "set-cookie",
        "Cookies are not replayed",
        "If the first response sets a cookie, the replay must not set it again.",
        "Set-Cookie is stored and replayed: an old session returns, or reaches another user.",
        "Replay an allow-list of headers; never Set-Cookie.",
    )),
    without_count(case(
        "location",
        "Location is kept",
        "If the first response has a Location, the replay must have the same Location.",
        "The replay lost its Location: the client cannot find the resource that it created.",
        "Store Location (and Content-Type, ETag, Link) with the response.",
    )),
    without_count(case(
        "replay-marked",
        "A replay is marked",
        "A replay should be marked, usually with `Idempotent-Replayed: true`; a first response should not.",
        "Clients and logs cannot tell a replay from an execution.",
        "Add `Idempotent-Replayed: true` to replays.",
    )),
    without_count(case(
        "next-on-connection",
        "The next request after a replay",
        "The test sends a duplicate, gets a replay, and sends another request on the same connection. That request must get its own response, or the connection must be closed.",
        "The replay left the request body unread, so the server parses it as the next request: request smuggling.",
        "Read the body to its end before a replay, or close the connection after it.",
    )),
    case(
        "late-duplicate",
        "A late duplicate",
        "The duplicate arrives some seconds later (--late). It must get the first response and must not execute.",
        "Responses are stored for too short a time: a client that waits executes again.",
        "Store responses for at least as long as clients retry; one day is usual.",
    ),
    case(
        "retention",
        "A duplicate shortly before retention ends",
        "With --retention, the duplicate arrives after four fifths of that time. It must get the first response.",
        "Responses are dropped before the promised time.",
        "Count retention from the end of the execution, on one clock, and do not evict under memory pressure.",
    ),
    case(
        "paused-past-lease",
        "The service is paused past its lease",
        "The service is paused during a request for longer than its lease, a duplicate arrives, and the service resumes. The request must take effect once.",
        "A lease without a fence (fencing token): the slow holder and the new holder both act.",
        "Give each claim a fence and check it with every write, or commit effect and record together.",
    ),
    case(
        "kill-mid-request",
        "The service is killed while a request runs",
        "The service is killed (kill -9) while a request runs and is restarted, and the client retries. The retry may execute if the request had not taken effect, be replayed, or get unknown outcome; the request must not take effect twice, and must not stay in flight for ever.",
        "After a crash between effect and record, the retry executes again, or the key stays locked for the whole retention.",
        "Commit effect and record in one transaction; give claims a lease that is shorter than retention.",
    ),
    case(
        "kill-after-answer",
        "The service is killed after it responded",
        "The service responds to a request, is killed (kill -9) and restarted, and the duplicate arrives. The duplicate must get the first response and must not execute.",
        "Records are only in memory, or are written later: a restart forgets keys, and every retry executes again.",
        "Store the response durably before sending it.",
    ),
];

/// Runs the case with this id.
pub(super) async fn run(id: &str, stage: &mut Stage<'_>) -> Result<(), Stop> {
    match id {
        "sequential-duplicate" => duplicates::sequential(stage).await,
        "concurrent-duplicates" => in_flight::concurrent(stage).await,
        "lost-answer" => duplicates::lost_answer(stage).await,
        "duplicate-in-flight" => in_flight::in_flight(stage).await,
        "client-hangs-up" => in_flight::hangs_up(stage).await,
        "answers-kept-apart" => connections::apart(stage).await,
        "other-body" => requests::other_body(stage).await,
        "other-path" => requests::other_path(stage).await,
        "other-query" => requests::other_query(stage).await,
        "other-method" => requests::other_method(stage).await,
        "member-order" => requests::member_order(stage).await,
        "white-space" => requests::white_space(stage).await,
        "other-credential" => callers::other(stage).await,
        "rotated-credential" => callers::rotated(stage).await,
        "key-missing" => keys::missing(stage).await,
        "key-empty" => keys::empty(stage).await,
        "key-too-long" => keys::too_long(stage).await,
        "key-non-ascii" => keys::non_ascii(stage).await,
        "key-doubled" => keys::doubled(stage).await,
        "key-quoted" => keys::quoted(stage).await,
        "error-4xx-then-retry" => errors::refused(stage).await,
        "error-5xx-then-retry" => errors::failed(stage).await,
        "large-body" => answers::large(stage).await,
        "binary-body" => answers::binary(stage).await,
        "set-cookie" => answers::set_cookie(stage).await,
        "location" => answers::location(stage).await,
        "replay-marked" => answers::marked(stage).await,
        "next-on-connection" => connections::next(stage).await,
        "late-duplicate" => duplicates::late(stage).await,
        "retention" => duplicates::retention(stage).await,
        "paused-past-lease" => processes::paused(stage).await,
        "kill-mid-request" => processes::killed(stage).await,
        "kill-after-answer" => processes::killed_after(stage).await,
        other => Err(Stop::Skip(format!("unknown case {other}"))),
    }
}
