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
const fn shown(case: Case) -> Case {
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
        "A request is sent, answered, and sent again with the same key. It has to take effect once, and the duplicate has to get the first answer.",
        "The key is ignored or not remembered: every retry runs again.",
        "Keep the answer under the key before it is sent, and answer duplicates with it.",
    ),
    case(
        "same-body-other-key",
        "The same body with another key",
        "Two requests with the same body and different keys are two intended effects; both have to run.",
        "Requests are compared across keys: one customer's order is refused because it equals another one.",
        "Compare the request only with the one that was sent under the same key.",
    ),
    case(
        "concurrent-duplicates",
        "Many duplicates at once",
        "The last bytes of many duplicates leave at the same moment, three times over. One may run; the others wait for its answer or are told to come back.",
        "No claim, or check-then-act: duplicates that come at once all run.",
        "Claim the key in one atomic step (INSERT … ON CONFLICT, SET NX, compare-and-set) before running.",
    ),
    case(
        "lost-answer",
        "A duplicate after the answer was lost",
        "The service runs the request and answers, the answer is lost on the way, and the client retries. It has to get the answer of the first run.",
        "The retry after a lost answer runs again, which is what keys are there to prevent.",
        "Keep the answer durably before it leaves, and replay it.",
    ),
    case(
        "duplicate-in-flight",
        "A duplicate while the first one runs",
        "A duplicate comes at several moments of the first one's run, comes back if it is told to, and once overtakes it. It has to wait or be told to come back (409), and later gets the first answer.",
        "Between reading and claiming the key there is a gap in which a duplicate runs too, or a duplicate that gives up clears away the claim of the one that runs.",
        "Claim first, or read once more under the claim; answer 409 with Retry-After, or wait; let nobody but its holder end a claim.",
    ),
    case(
        "client-hangs-up",
        "The client hangs up, then retries",
        "The client closes its connection as soon as the request is sent, and retries. The effect has to happen once, and the retry has to come to an end.",
        "A client that goes away cancels the run or its recording: the key stays locked, or the retry runs again.",
        "Let run and recording go on when the client is gone; release the claim when a run is really cancelled.",
    ),
    case(
        "answers-kept-apart",
        "Others come behind clients that hang up",
        "Clients hang up at many moments of their requests, and other clients come right behind them; then all who hung up retry. Nobody may get an answer to somebody else's request.",
        "What was on its way for a client that hung up stays in a pooled connection, to the store or to another service, and the next one who uses it reads it as its own.",
        "Close a pooled connection, or read it to its end, when whoever used it went away in the middle.",
    ),
    case(
        "other-body",
        "The same key with another body",
        "A second request with the same key and another body has to be refused (422, 409 or 400), and must neither run nor be answered with the first one's answer.",
        "The request is not compared: another order is answered with the first one's answer, or runs under a key that stands for something else.",
        "Keep a fingerprint of method, path, query and body with the key, and answer 422 where it differs.",
    ),
    case(
        "other-path",
        "The same key on another path",
        "The same key comes on another path. It may be refused, not be found, or run as something of its own; it must not get the first one's answer.",
        "The path is not part of the comparison: one endpoint answers for another.",
        "Put method and path into the fingerprint or into the scope of the key.",
    ),
    case(
        "other-query",
        "The same key with another query",
        "The same key comes with another query. It may be refused or run as something of its own; the first one's answer is wrong where queries mean something.",
        "The query is not part of the comparison: `?amount=999` is answered with `?amount=1`.",
        "Put the query into the fingerprint.",
    ),
    case(
        "other-method",
        "The same key with another method",
        "The same key comes with another method. It may be refused, not be allowed, or run as something of its own; it must not get the first one's answer.",
        "The method is not part of the comparison.",
        "Put the method into the fingerprint or into the scope of the key.",
    ),
    case(
        "member-order",
        "JSON members in another order",
        "The duplicate says the same with its JSON members in another order. It should be taken for the duplicate that it is, and must not run.",
        "The body is compared byte for byte: a client whose serialiser orders members anew is refused, or runs again.",
        "Bring JSON into a canonical form before it is compared.",
    ),
    case(
        "white-space",
        "JSON with other white space",
        "The duplicate says the same with other white space. It should be taken for the duplicate that it is, and must not run.",
        "The body is compared byte for byte: a client that formats anew is refused, or runs again.",
        "Bring JSON into a canonical form before it is compared.",
    ),
    case(
        "other-credential",
        "The same key from somebody else",
        "Somebody else uses the same key. They may be refused or run on their own; they must not get the first caller's answer, nor be swallowed.",
        "Keys are not bound to the caller: who guesses or repeats a key gets somebody else's answer, cookies among it.",
        "Put the caller into the scope of the key, and compare the credential before a replay.",
    ),
    case(
        "rotated-credential",
        "The same caller with a new credential",
        "The duplicate comes with a refreshed credential of the same caller. It may be replayed or refused; it must not run again.",
        "The credential is part of the lookup: a retry after a token refresh runs again.",
        "Scope keys by who the caller is (subject, account), not by the credential's text.",
    ),
    case(
        "key-missing",
        "No key",
        "Two different requests come without a key. Both are refused (400), or both run; the second must not get the first one's answer.",
        "All requests without a key share one.",
        "Refuse a missing key where it is required; do not guard where there is none.",
    ),
    case(
        "key-empty",
        "An empty key",
        "Two different requests come with an empty key. Both are refused (400), or both run as if they had none; the second must not get the first one's answer.",
        "The empty key is a key that everybody shares.",
        "Refuse an empty key.",
    ),
    case(
        "key-too-long",
        "A key of 300 bytes",
        "Two long keys differ in their last byte alone. They may be refused; where one is accepted, its duplicate is replayed and the other key is another one.",
        "Long keys are cut to fit, so that two of them collide, or are accepted and not kept.",
        "Refuse keys that are longer than what is stored (400).",
    ),
    case(
        "key-non-ascii",
        "A key that is not ASCII",
        "Two keys differ in one letter that is not ASCII. They may be refused; where one is accepted, its duplicate is replayed and the other key is another one.",
        "Letters that cannot be decoded become the same replacement, so that keys collide, or such keys are accepted and not kept.",
        "Refuse keys that are not visible ASCII (400).",
    ),
    case(
        "key-doubled",
        "Two key headers",
        "The key header stands twice, with two keys. It may be refused (best); where it is accepted, the exact duplicate must not run again.",
        "Which of two keys counts is not settled: the duplicate runs again.",
        "Refuse a request with two key headers (400).",
    ),
    case(
        "key-quoted",
        "A key in quotes",
        "The key comes in quotes, as the IETF draft writes it, twice, then bare. Duplicates must not run again; quoted and bare should be the same key.",
        "Quoted keys are accepted and not kept, or a client that starts to quote runs again.",
        "Take the quoted and the bare form for the same key, or accept one of them alone.",
    ),
    case(
        "error-4xx-then-retry",
        "A refused request, then a corrected one",
        "A bad body is refused with 4xx, twice; then the corrected body comes with the same key. It may run (the key is free again) or be told to take a new key (422, 409); the old error is no answer to it.",
        "The error is replayed to a corrected request, and the client cannot know why; or the error's duplicate says success.",
        "Release the key when nothing ran, or answer 422 to another body; keep the status with the answer.",
    ),
    case(
        "error-5xx-then-retry",
        "A failed request, then a retry",
        "A request fails with 5xx and is retried with the same key. It may run again as long as it takes effect once, or get the same error, marked as a replay where the cause may be gone; it must not be in flight for ever.",
        "A failed run is repeated though it took effect, leaves its claim behind, is replayed as a success, or is kept for ever and nothing says so.",
        "Settle the claim on every way out: release it when nothing took effect, else keep the failure with its status, and mark its replay.",
    ),
    case(
        "large-body",
        "A large body",
        "A request of 1 MiB is sent twice. It may be refused for its size; where it is accepted, its duplicate must not run again and has to get the same bytes.",
        "What is too large to be kept is not guarded: the duplicate runs again.",
        "Refuse what cannot be kept before it runs, or keep that it ran.",
    ),
    shown(case(
        "binary-body",
        "A binary body",
        "All 256 bytes are sent twice as application/octet-stream. Where it is accepted, the replay has to equal the first answer to the byte, and an echo has to equal what was sent.",
        "Bodies go through text on their way and come out changed, even for the first caller.",
        "Keep and send bodies as bytes.",
    )),
    shown(case(
        "set-cookie",
        "Cookies are not replayed",
        "Where the first answer sets a cookie, the replay must not set it again.",
        "Set-Cookie is stored and replayed: an old session comes back, or goes to somebody else.",
        "Replay an allow-list of headers; never Set-Cookie.",
    )),
    shown(case(
        "location",
        "Location is kept",
        "Where the first answer has a Location, the replay needs the same one.",
        "The replay lost its Location: the client cannot find what it created.",
        "Keep Location (and Content-Type, ETag, Link) with the answer.",
    )),
    shown(case(
        "replay-marked",
        "A replay says that it is one",
        "A replay should be marked, commonly with `Idempotent-Replayed: true`, and a first answer should not.",
        "Clients and logs cannot tell a replay from a run.",
        "Add `Idempotent-Replayed: true` to replays.",
    )),
    shown(case(
        "next-on-connection",
        "The next request after a replay",
        "A duplicate is sent and replayed, and another request follows on the same connection. It has to get its own answer, or the connection has to be closed.",
        "The replay left the request's body unread, so that it is taken for the next request: request smuggling.",
        "Read the body to its end before a replay, or close the connection after it.",
    )),
    case(
        "late-duplicate",
        "A duplicate after a while",
        "The duplicate comes some seconds later (--late). It has to get the first answer and must not run.",
        "Answers are kept for a moment only: a patient client runs it again.",
        "Keep answers for at least as long as clients retry; a day is usual.",
    ),
    case(
        "retention",
        "A duplicate shortly before retention ends",
        "With --retention, the duplicate comes when four fifths of that time are over. It has to get the first answer.",
        "Answers are dropped before the promised time.",
        "Count retention from the end of the run, on one clock, and do not evict under memory pressure.",
    ),
    case(
        "paused-past-lease",
        "The service stands still past its lease",
        "The service is stopped in the middle of a run for longer than a claim stands, meanwhile a duplicate arrives, and it goes on. It has to take effect once.",
        "A lease without a fence: the slow holder and the new one both act.",
        "Give each claim a fence and check it with every write, or commit effect and record together.",
    ),
    case(
        "kill-mid-request",
        "The service is killed in the middle of a run",
        "The service is killed (-9) while a request runs, started again, and the client retries. It may run if it had not taken effect, be replayed, or be refused as unknown; it must not take effect twice, nor be in flight for ever.",
        "A crash between effect and record runs it again, or leaves the key locked for as long as answers are kept.",
        "Commit effect and record in one transaction; give claims a lease that is shorter than retention.",
    ),
    case(
        "kill-after-answer",
        "The service is killed after it answered",
        "A request is answered, the service is killed (-9) and started again, and the duplicate comes. It has to get the first answer and must not run.",
        "Records live in memory, or are written later: a restart forgets keys, and every retry runs again.",
        "Keep the answer where it survives the process, before it leaves.",
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
        other => Err(Stop::Skip(format!("there is no case {other}"))),
    }
}
