//! Conformance suite for brokers.
//!
//! The suite publishes, pulls, acks, nacks and drops deliveries, then runs [consumers](refrain::consume::Consumer) on
//! the broker: duplicates, poison messages, crashes, slow handlers, groups, lost connections, a killed server.
//! The broker's declared [guarantees](refrain::consume::Guarantees) and the fixture's abilities select the cases;
//! the report names the skipped ones.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use refrain::{Result, consume::{Broker, Memory}};
//! use refrain_testkit::broker_suite::{self, Fixture};
//!
//! struct InProcess(Memory);
//!
//! impl Fixture for InProcess {
//!     async fn connect(&self, queue: &str, consumer: &str, ack_wait: Duration) -> Result<Arc<dyn Broker>> {
//!         let memory = self.0.clone().with_ack_wait(ack_wait);
//!         Ok(Arc::new(memory.subscribe(queue, consumer)))
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?.block_on(async {
//! broker_suite::run(InProcess(Memory::new())).await;
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Needs a multi-thread runtime, and a clock that is not paused.

use std::{fmt, sync::Arc, time::Duration};

use refrain::{Result, consume::Broker};

mod consumers;
mod faults;
mod groups;
mod lag;
mod letters;
mod stage;
mod tickets;

use stage::{Checked, Stage, caught};

/// Connects the suite to a broker.
pub trait Fixture: Sync {
    /// Connects the consumer of this name to a queue, stream or topic, and creates the queue if it does not exist.
    ///
    /// Opens a new connection on each call. Connections of one consumer share the messages of the queue.
    /// The suite connects before it publishes.
    fn connect(
        &self,
        queue: &str,
        consumer: &str,
        ack_wait: Duration,
    ) -> impl Future<Output = Result<Arc<dyn Broker>>>;

    /// Acknowledgement timeout of deliveries: the shortest that the transport supports, so that the suite is fast.
    fn ack_wait(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Tolerance for late events, because servers have coarse timers.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Whether each consumer name receives every message of a queue.
    fn fans_out(&self) -> bool {
        false
    }

    /// Closes all connections of the suite; the server keeps running. Returns `false` if unsupported.
    fn disconnect(&self) -> impl Future<Output = Result<bool>> {
        async { Ok(false) }
    }

    /// Kills the server and restarts it with its data. Returns `false` if unsupported.
    fn restart(&self) -> impl Future<Output = Result<bool>> {
        async { Ok(false) }
    }
}

/// Runs the whole suite.
///
/// # Panics
/// When a case fails; the message lists each failed case with expected and actual result.
pub async fn run<F: Fixture>(fixture: F) {
    let report = check(&fixture).await;
    assert!(report.failures.is_empty(), "{report}");
}

/// Runs the whole suite and returns a report instead of panicking.
pub async fn check<F: Fixture>(fixture: &F) -> Report {
    let mut runner = Runner {
        fixture,
        report: Report::default(),
    };
    runner.tickets().await;
    runner.consumers().await;
    runner.faults().await;
    runner.report
}

/// Result of the suite.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Names of the cases that passed.
    pub passed: Vec<&'static str>,
    /// Names of the cases that do not apply to this broker, or that the fixture does not support.
    pub left_out: Vec<&'static str>,
    /// The cases that failed.
    pub failures: Vec<Failure>,
}

/// A failed case.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Name of the case.
    pub case: &'static str,
    /// Expected and actual result.
    pub message: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, failed) = (self.passed.len(), self.failures.len());
        writeln!(f, "broker suite: {passed} cases passed, {failed} failed")?;
        for Failure { case, message } in &self.failures {
            writeln!(f, "- {case}: {message}")?;
        }
        match self.left_out.is_empty() {
            true => Ok(()),
            false => writeln!(f, "skipped: {}", self.left_out.join(", ")),
        }
    }
}

/// Result of a case that did not fail.
pub(crate) enum Ran {
    Held,
    /// Skipped: does not apply to this broker, or the fixture does not support it.
    LeftOut,
}

struct Runner<'a, F> {
    fixture: &'a F,
    report: Report,
}

/// Runs cases one by one, each on a new queue, named after their functions.
macro_rules! cases {
    ($runner:ident, $module:ident: $($case:ident),* $(,)?) => {
        $($runner.case(stringify!($case), $module::$case).await;)*
    };
}

impl<F: Fixture> Runner<'_, F> {
    async fn case(
        &mut self,
        name: &'static str,
        case: impl AsyncFnOnce(&Stage<'_, F>) -> Checked<Ran>,
    ) {
        let stage = Stage::new(self.fixture, name);
        match caught(case(&stage)).await {
            Ok(Ran::Held) => self.report.passed.push(name),
            Ok(Ran::LeftOut) => self.report.left_out.push(name),
            Err(broken) => self.report.failures.push(Failure {
                case: name,
                message: broken.0,
            }),
        }
    }

    async fn tickets(&mut self) {
        cases!(self, tickets:
            a_message_comes_as_it_was_published,
            an_empty_queue_answers_in_time,
            an_acknowledged_message_does_not_come_again,
            a_dropped_delivery_comes_again,
            a_crash_before_the_acknowledgement_delivers_again,
            a_message_given_back_waits_for_its_delay,
            a_message_that_is_held_longer_does_not_come_again,
            attempts_are_counted,
            a_dropped_pull_loses_nothing,
        );
        cases!(self, lag:
            lag_counts_messages_that_are_not_finished,
        );
    }

    async fn consumers(&mut self) {
        cases!(self, consumers:
            duplicate_producers_have_one_effect,
            two_workers_share_the_work,
            two_consumers_do_not_shadow_each_other,
            a_failed_message_is_tried_again,
            a_slow_handler_runs_once,
        );
        cases!(self, letters:
            poison_becomes_a_dead_letter_and_is_let_through_again,
        );
        cases!(self, groups:
            groups_stay_in_order,
        );
    }

    async fn faults(&mut self) {
        cases!(self, faults:
            a_worker_that_dies_loses_nothing,
            a_lost_connection_loses_nothing,
            a_server_that_is_killed_in_mid_load_loses_nothing,
        );
    }
}
