//! Tests [`ManualClock`]: which of its clocks each method moves.

use std::time::Duration;

use refrain::clock::{Clock, Timestamp};
use refrain_testkit::ManualClock;

/// Moves a new clock; checks by how many milliseconds wall and steady clock moved, and whether the boot id changed.
fn check(turn: impl FnOnce(&ManualClock), want: (i64, i64, bool)) {
    let clock = ManualClock::new();
    let (wall, steady) = (clock.wall(), clock.steady());
    turn(&clock.clone());
    let moved = |from: u64, to: u64| to as i64 - from as i64;
    let got = (
        moved(wall.0, clock.wall().0),
        moved(steady.millis, clock.steady().millis),
        steady.boot != clock.steady().boot,
    );
    assert_eq!(got, want);
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn stands_still_by_itself() {
    check(|_| (), (0, 0, false));
}

#[test]
fn advancing_moves_both() {
    check(|clock| clock.advance(SECOND), (1_000, 1_000, false));
}

#[test]
fn parts_of_a_millisecond_add_up() {
    let half = Duration::from_micros(500);
    check(
        |clock| {
            clock.advance(half);
            clock.advance(half);
        },
        (1, 1, false),
    );
}

#[test]
fn jumping_moves_the_wall_alone() {
    check(|clock| clock.jump(SECOND), (1_000, 0, false));
    check(|clock| clock.jump_back(SECOND), (-1_000, 0, false));
    let now = ManualClock::new().wall();
    check(|clock| clock.set_wall(Timestamp(now.0 + 7)), (7, 0, false));
}

#[test]
fn a_reboot_starts_the_steady_clock_anew() {
    let up = ManualClock::new().steady().millis as i64;
    check(|clock| clock.reboot(), (0, -up, true));
}
