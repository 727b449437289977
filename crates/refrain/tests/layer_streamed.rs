//! `reply = "streamed"`: a long response is forwarded while it is received, recorded at the same time, and followed
//! by duplicates. The test produces responses chunk by chunk, so it proves that clients get each chunk before the
//! end.

use std::time::Duration;

use refrain::{
    ErrorKind, Guarantee, Operation,
    engine::Count,
    record::{Reason, State},
    store::{Query, StateName, Store},
};

#[path = "support/scripted.rs"]
mod scripted;
#[path = "support/studio.rs"]
mod studio;
#[path = "support/wire.rs"]
mod wire;
use scripted::{Fault, Op, Scripted, states, until};
use studio::{Heard, KEY, Studio, studio, studio_on};

const SECOND: Duration = Duration::from_secs(1);

async fn seconds(count: u32) {
    tokio::time::sleep(SECOND * count).await;
}

fn start(studio: &Studio, headers: &[(&'static str, &'static str)]) -> Task {
    let (studio, headers) = (studio.clone(), headers.to_vec());
    tokio::spawn(async move { studio.send(&headers, "x").await })
}

type Task = tokio::task::JoinHandle<Heard>;

/// The code of a problem response.
async fn code(heard: Heard) -> String {
    let status = heard.status;
    let text = heard.rest().await;
    let json: serde_json::Value = serde_json::from_str(text.trim_end_matches('.')).unwrap();
    format!("{status} {}", json["code"].as_str().unwrap())
}

#[tokio::test(start_paused = true)]
async fn pieces_leave_as_they_come_and_are_recorded() {
    let studio = studio(|_| {});
    let mut first = studio.ask().await;
    let feed = studio.feed().await;
    assert_eq!((first.status, first.is_replay()), (200, false));
    assert_eq!(first.headers["set-cookie"], "session=secret");
    assert!(first.is_silent().await);
    for piece in ["one ", "two ", "three"] {
        feed.say(piece);
        assert_eq!(first.next().await, piece);
        assert_eq!(states(&studio.store).await, [StateName::InFlight]);
    }
    feed.end_with("x-sum", "11");
    assert_eq!(first.rest().await, " sum 11.");
    // The client gets the end only once the outcome is stored.
    assert_eq!(states(&studio.store).await, [StateName::Completed]);
    let again = studio.ask().await;
    assert!(again.is_replay());
    assert_eq!(again.rest().await, "one two three sum 11.");
    assert_eq!(studio.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn duplicates_follow_from_the_beginning() {
    // With `wait = 0`, too, a duplicate may follow the stream.
    for wait in [Duration::ZERO, SECOND * 10] {
        let studio = studio(|it| it.terms.wait = wait);
        let first = studio.ask().await;
        let feed = studio.feed().await;
        let mut followers = Vec::new();
        for piece in ["one ", "two ", "three"] {
            feed.say(piece);
            seconds(20).await;
            followers.push(studio.ask().await);
        }
        for follower in &followers {
            assert_eq!((follower.status, follower.is_replay()), (200, true));
            assert_eq!(follower.headers["cache-control"], "no-store");
            assert_eq!(follower.headers["content-type"], "text/event-stream");
            assert!(!follower.headers.contains_key("set-cookie"));
        }
        assert_eq!(followers[2].next().await, "one two three");
        assert!(followers[2].is_silent().await);
        feed.end_with("x-sum", "11");
        assert_eq!(followers.pop().unwrap().rest().await, " sum 11.");
        for heard in followers.into_iter().chain([first, studio.ask().await]) {
            assert_eq!(heard.rest().await, "one two three sum 11.");
        }
        assert_eq!(studio.engine.tally().get(Count::Followed), 3);
        assert_eq!(
            (studio.calls(), studio.engine.tally().waiting_now()),
            (1, 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn duplicate_that_waits_for_the_head_follows_the_stream() {
    let studio = studio(|_| {});
    let held = [KEY, ("hold", "it")];
    let tasks = [start(&studio, &held), start(&studio, &held)];
    until(|| studio.engine.tally().waiting_now() == 1).await;
    studio.gate.add_permits(1);
    let feed = studio.feed().await;
    let mut replays = 0;
    for task in tasks {
        let mut heard = task.await.unwrap();
        replays += usize::from(heard.is_replay());
        if heard.is_replay() {
            assert!(heard.is_silent().await);
        }
    }
    assert_eq!(replays, 1);
    drop(feed);
}

#[tokio::test(start_paused = true)]
async fn strangers_do_not_follow() {
    let studio = studio(|it| it.scope = vec!["none".parse().unwrap()]);
    let alice = [KEY, ("x-api-key", "alice")];
    let first = studio.send(&alice, "x").await;
    let feed = studio.feed().await;
    feed.say("secret");
    let bob = studio.send(&[KEY, ("x-api-key", "bob")], "x").await;
    assert_eq!(code(bob).await, "409 credential-changed");
    let other = studio.send(&alice, "y").await;
    assert_eq!(code(other).await, "422 key-reused");
    drop(feed);
    assert_eq!(first.rest().await, "secret.");
}

/// Another process on the same store cannot follow the stream: a duplicate there waits, then gets "in flight".
#[tokio::test(start_paused = true)]
async fn other_processes_wait_as_usual() {
    let store = Scripted::on_runtime_clock();
    let here = studio_on(store.clone(), |_| {});
    let there = studio_on(store, |_| {});
    let first = here.ask().await;
    let feed = here.feed().await;
    feed.say("x");
    assert_eq!(code(there.ask().await).await, "409 in-flight");
    let waiting = start(&there, &[KEY]);
    until(|| there.engine.tally().waiting_now() == 1).await;
    drop(feed);
    assert_eq!(first.rest().await, "x.");
    let waited = waiting.await.unwrap();
    assert!(waited.is_replay());
    assert_eq!((waited.rest().await, there.calls()), ("x.".into(), 0));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_off_is_cut_for_everybody_and_indeterminate() {
    type End = fn(studio::Feed);
    let ends: [(End, Reason); 2] = [
        (studio::Feed::cut, Reason::Truncated),
        (studio::Feed::panic, Reason::Panicked),
    ];
    for (end, reason) in ends {
        let studio = studio(|_| {});
        let first = studio.ask().await;
        let feed = studio.feed().await;
        feed.say("half");
        let follower = studio.ask().await;
        end(feed);
        assert_eq!(first.rest().await, "half CUT");
        assert_eq!(follower.rest().await, "half CUT");
        assert_eq!(studio.doubt().await, Some(reason));
        assert_eq!(code(studio.ask().await).await, "409 outcome-unknown");
        assert_eq!(studio.calls(), 1);
    }
}

/// In HTTP/1, ending before the last chunk is the only way to signal a truncated body.
#[tokio::test]
async fn a_cut_is_a_cut_on_the_wire() {
    let studio = studio(|_| {});
    let address = wire::serve(studio.app.clone()).await;
    let request = wire::request("POST", "/say", "idempotency-key: k-1\r\n", b"x");
    let mut clients = [
        wire::Wire::open(address).await,
        wire::Wire::open(address).await,
    ];
    clients[0].send(&request).await;
    let feed = studio.feed().await;
    feed.say("half");
    clients[1].send(&request).await;
    for (place, client) in clients.iter_mut().enumerate() {
        let (status, headers) = client.head().await.unwrap();
        let is_replay = headers
            .iter()
            .any(|(name, _)| name == "idempotent-replayed");
        assert_eq!((status, is_replay), (200, place == 1));
        assert_eq!(client.chunk().await.unwrap(), b"half");
    }
    feed.cut();
    for client in &mut clients {
        assert_eq!(client.exactly(1).await, None, "closed without a last chunk");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_stops_nothing() {
    for hangs_up_early in [true, false] {
        let studio = studio(|_| {});
        let first = start(&studio, &[KEY, ("hold", "it")]);
        until(|| studio.calls() == 1).await;
        if hangs_up_early {
            first.abort();
        }
        studio.gate.add_permits(1);
        let feed = studio.feed().await;
        feed.say("one ");
        if !hangs_up_early {
            drop(first.await.unwrap());
        }
        feed.say("two");
        until(|| feed.taken() == 7).await;
        drop(feed);
        let again = studio.ask().await;
        assert_eq!((again.rest().await, studio.calls()), ("one two.".into(), 1));
        assert_eq!(states(&studio.store).await, [StateName::Completed]);
    }
}

/// No client reads, and the response is recorded anyway, up to the cap.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_holds_up_nothing_below_the_cap() {
    let studio = studio(|_| {});
    let first = studio.ask().await;
    let feed = studio.feed().await;
    for _ in 0..40 {
        feed.say(vec![b'x'; 100_000]);
    }
    until(|| feed.taken() == 4_000_000).await;
    drop(feed);
    let (again, first) = (studio.ask().await.rest().await, first.rest().await);
    assert_eq!((again.len(), first.len()), (4_000_001, 4_000_001));
}

#[tokio::test(start_paused = true)]
async fn a_body_over_the_cap_is_passed_on_and_not_kept() {
    let studio = studio(|it| {
        it.outcome_bytes_max = 10;
        it.terms.wait = Duration::ZERO;
    });
    let first = studio.ask().await;
    let feed = studio.feed().await;
    feed.say("0123456789");
    let follower = studio.ask().await;
    assert!(follower.is_replay());
    feed.say("abc");
    until(|| feed.taken() == 13).await;
    // Its beginning is no longer buffered for new duplicates.
    assert_eq!(code(studio.ask().await).await, "409 in-flight");
    feed.end_with("x-sum", "13");
    assert_eq!(first.rest().await, "0123456789abc sum 13.");
    assert_eq!(follower.rest().await, "0123456789abc sum 13.");
    assert_eq!(code(studio.ask().await).await, "409 body-not-kept");
    assert_eq!(studio.calls(), 1);
}

const LONG: usize = 100 * 64 * 1024;

/// Sends more than the cap, all at once.
fn say_long(feed: &studio::Feed) {
    for number in 0..100_u8 {
        feed.say(vec![b'a' + number % 26; 64 * 1024]);
    }
}

#[tokio::test(start_paused = true)]
async fn above_the_cap_the_first_client_sets_the_pace() {
    let studio = studio(|it| it.outcome_bytes_max = 1_000_000);
    let mut first = studio.ask().await;
    let feed = studio.feed().await;
    let mut slow = studio.ask().await;
    // A fast duplicate does not set the pace; only the first client does.
    let eager = tokio::spawn(studio.ask().await.rest());
    say_long(&feed);
    seconds(1).await;
    let ahead = feed.taken();
    assert!((1_000_000..1_200_000).contains(&ahead), "{ahead}");
    // A client that keeps reading gets everything; one that stops loses the parts that are no longer buffered.
    let mut len = 0;
    while len < LONG / 2 {
        let piece = first.next().await;
        len += piece.len();
        seconds(1).await;
        assert!(feed.taken() < len + 1_200_000);
    }
    assert!(feed.taken() > ahead);
    drop(feed);
    let rest = first.rest().await;
    assert_eq!((len + rest.len() - 1, &rest[rest.len() - 1..]), (LONG, "."));
    let eager = eager.await.unwrap();
    assert_eq!((eager.len(), eager.ends_with('.')), (LONG + 1, true));
    assert!(slow.is_cut().await);
    assert_eq!(code(studio.ask().await).await, "409 body-not-kept");
}

/// Once the first client has disconnected, the fastest of the others sets the pace; without any client there is no
/// limit.
#[tokio::test(start_paused = true)]
async fn above_the_cap_those_who_are_left_go_on() {
    for has_follower in [true, false] {
        let studio = studio(|it| it.outcome_bytes_max = 1_000_000);
        let first = studio.ask().await;
        let feed = studio.feed().await;
        let follower = studio.ask().await;
        say_long(&feed);
        seconds(1).await;
        drop(first);
        seconds(1).await;
        assert!(feed.taken() < 1_200_000);
        if has_follower {
            drop(feed);
            let heard = follower.rest().await;
            assert_eq!((heard.len(), heard.ends_with('.')), (LONG + 1, true));
        } else {
            drop(follower);
            until(|| feed.taken() == LONG).await;
            drop(feed);
        }
        assert_eq!(code(studio.ask().await).await, "409 body-not-kept");
    }
}

/// The client neither reads nor disconnects: the operation ends without it.
#[tokio::test(start_paused = true)]
async fn a_client_that_stalls_above_the_cap_is_cut_off() {
    let studio = studio(|it| it.outcome_bytes_max = 1_000_000);
    let mut first = studio.ask().await;
    let feed = studio.feed().await;
    say_long(&feed);
    seconds(59).await;
    assert!(feed.taken() < 1_200_000);
    seconds(2).await;
    assert_eq!(feed.taken(), LONG);
    drop(feed);
    assert!(first.is_cut().await);
    assert_eq!(code(studio.ask().await).await, "409 body-not-kept");
}

#[tokio::test(start_paused = true)]
async fn released_responses_are_not_streamed() {
    for headers in [[KEY, ("want", "429")], [KEY, ("say", "release")]] {
        let studio = studio(|_| {});
        let first = start(&studio, &headers);
        let second = start(&studio, &headers);
        let feed = studio.feed().await;
        feed.say("refused");
        seconds(1).await;
        assert!(!first.is_finished() && !second.is_finished());
        drop(feed);
        for task in [first, second] {
            let heard = task.await.unwrap();
            assert!(!heard.is_replay());
            assert!(!heard.headers.contains_key("refrain-outcome"));
            assert_eq!(heard.rest().await, "refused.");
        }
        assert_eq!((states(&studio.store).await, studio.calls()), (vec![], 1));
    }
    // A response that would be released but is marked `keep` is streamed.
    let studio = studio(|_| {});
    let first = studio
        .send(&[KEY, ("want", "429"), ("say", "keep")], "x")
        .await;
    drop(studio.feed().await);
    assert_eq!((first.status, first.rest().await), (429, ".".into()));
    assert_eq!(states(&studio.store).await, [StateName::Completed]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_lasts_longer_than_the_timeout_and_the_lease() {
    let studio = studio(|_| {});
    let mut first = studio.ask().await;
    let feed = studio.feed().await;
    for _ in 0..20 {
        seconds(50).await;
        feed.say("tick ");
        assert_eq!(first.next().await, "tick ");
        assert_eq!(states(&studio.store).await, [StateName::InFlight]);
    }
    drop(feed);
    assert_eq!(first.rest().await, ".");
    assert_eq!(studio.ask().await.rest().await, "tick ".repeat(20) + ".");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_falls_silent_is_cut() {
    let studio = studio(|_| {});
    let first = studio.ask().await;
    let feed = studio.feed().await;
    feed.say("then nothing");
    seconds(59).await;
    assert_eq!(studio.doubt().await, None);
    assert_eq!(first.rest().await, "then nothing CUT");
    assert_eq!(studio.doubt().await, Some(Reason::Timeout));
    assert!(feed.is_dropped());
}

/// The lease cannot be renewed: the stream may continue until a probe could report that it never happened, and no
/// longer.
#[tokio::test(start_paused = true)]
async fn a_stream_ends_before_it_can_be_held_never_to_have_happened() {
    let studio = studio(|_| {});
    let mut first = studio.ask().await;
    let feed = studio.feed().await;
    let begun = tokio::time::Instant::now();
    seconds(40).await;
    feed.say("x");
    assert_eq!(first.next().await, "x");
    let down = Fault::Fails(ErrorKind::Unavailable);
    studio.store.set(Op::Renew, usize::MAX, down);
    for _ in 0..200 {
        feed.say("x");
        seconds(1).await;
        if feed.is_dropped() {
            break;
        }
    }
    // Counted from the last renewal: longer than the first attempt's timeout, and shorter than the store's hold.
    let lasted = begun.elapsed();
    assert!(lasted > SECOND * 120, "{lasted:?}");
    let page = studio.store.list(&Query::default()).await.unwrap();
    let State::Indeterminate { hold, .. } = page.readings[0].record.state else {
        panic!("{page:?}");
    };
    let left = hold.settles.left(page.readings[0].now);
    assert!(left < SECOND * 2, "{left:?}");
    assert!(first.rest().await.ends_with("x CUT"));
}

#[tokio::test(start_paused = true)]
async fn an_end_that_cannot_be_stored_is_not_heard_as_one() {
    let studio = studio(|_| {});
    let first = studio.ask().await;
    let feed = studio.feed().await;
    feed.say("all");
    let down = Fault::Fails(ErrorKind::Unavailable);
    studio.store.set(Op::Settle, 5, down);
    drop(feed);
    assert_eq!(first.rest().await, "all CUT");
    // The outcome is kept in memory, and stored as soon as possible.
    let again = studio.ask().await;
    assert_eq!((again.rest().await, studio.calls()), ("all.".into(), 1));
}

/// Another process took over meanwhile: its outcome counts.
#[tokio::test(start_paused = true)]
async fn an_overtaken_stream_is_cut() {
    let change = |it: &mut Operation| it.terms.guarantee = Guarantee::AtLeastOnce;
    let store = Scripted::on_runtime_clock();
    let (loser, winner) = (studio_on(store.clone(), change), studio_on(store, change));
    let first = loser.ask().await;
    let feed = loser.feed().await;
    feed.say("loser");
    let down = Fault::Fails(ErrorKind::Unavailable);
    loser.store.set(Op::Renew, usize::MAX, down);
    seconds(40).await;
    let second = winner.ask().await;
    let winners = winner.feed().await;
    winners.say("winner");
    drop(winners);
    assert_eq!(second.rest().await, "winner.");
    drop(feed);
    assert_eq!(first.rest().await, "loser CUT");
    assert_eq!(loser.ask().await.rest().await, "winner.");
}

/// The head arrived too late for its caller. The outcome is recorded anyway.
#[tokio::test(start_paused = true)]
async fn a_stream_that_begins_too_late_is_recorded() {
    let studio = studio(|_| {});
    let first = studio.send(&[KEY, ("hold", "it")], "x").await;
    assert_eq!(code(first).await, "504 outcome-unknown");
    studio.gate.add_permits(1);
    let feed = studio.feed().await;
    feed.say("late ");
    seconds(1).await;
    assert_eq!(code(studio.ask().await).await, "409 outcome-unknown");
    feed.say("truth");
    drop(feed);
    seconds(1).await;
    assert_eq!(studio.ask().await.rest().await, "late truth.");
}

/// The process ends while it streams.
#[test]
fn a_stream_that_ends_with_its_runtime_leaves_doubt() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let store = Scripted::new();
    let first = runtime();
    let (heard, feed, studio) = first.block_on(async {
        let studio = studio_on(store, |it| it.terms.lease = SECOND);
        let heard = studio.ask().await;
        let feed = studio.feed().await;
        feed.say("half");
        until(|| feed.taken() == 4).await;
        (heard, feed, studio)
    });
    drop(first);
    assert!(feed.is_dropped());
    runtime().block_on(async {
        assert_eq!(heard.rest().await, "half CUT");
        tokio::time::sleep(SECOND).await;
        assert!(studio.doubt().await.is_some());
    });
}

/// Duplicates that join at any time and read at any pace all get the same bytes.
#[tokio::test(start_paused = true)]
async fn all_followers_get_the_same_bytes() {
    for seed in 0..20_u64 {
        let studio = studio(|_| {});
        let mut said = String::new();
        let mut tasks = vec![listen(studio.ask().await, seed)];
        let feed = studio.feed().await;
        for number in 0..200_u64 {
            let piece = format!("{number}-{} ", "y".repeat((seed * number % 977) as usize));
            said += &piece;
            feed.say(piece);
            if (seed + number) % 7 == 0 {
                tokio::time::sleep(Duration::from_millis(seed % 3)).await;
            }
            if (seed + number) % 11 == 0 {
                tasks.push(listen(studio.ask().await, number));
            }
        }
        drop(feed);
        said += ".";
        for task in tasks {
            assert!(task.await.unwrap() == said, "seed {seed}");
        }
        assert_eq!(studio.ask().await.rest().await, said);
        assert_eq!(studio.calls(), 1);
    }
}

/// Reads a few chunks slowly, then the rest.
fn listen(mut heard: Heard, pause: u64) -> tokio::task::JoinHandle<String> {
    tokio::spawn(async move {
        let mut text = String::new();
        for _ in 0..pause % 5 {
            let Some(piece) = heard.maybe_next().await else {
                break;
            };
            text += &piece;
            tokio::time::sleep(Duration::from_millis(pause % 4)).await;
        }
        text + &heard.rest().await
    })
}
