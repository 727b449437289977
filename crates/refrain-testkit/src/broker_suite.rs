//! What every broker must pass.
//!
//! The suite publishes, pulls, acknowledges, gives back and drops deliveries, then lets [consumers](refrain::consume::Consumer)
//! run on the broker: duplicates, poison, crashes, slow handlers, groups, lost connections, a server that is killed.
//! Cases are chosen by what the broker [promises](refrain::consume::Guarantees) and by what the fixture can do; what is left out is named in the report.
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
//! It wants a multi-thread runtime, and real time.

use std::{fmt, sync::Arc, time::Duration};

use refrain::{Result, consume::Broker};

mod consumers;
mod faults;
mod groups;
mod letters;
mod stage;
mod tickets;

use stage::{Checked, Stage, caught};

/// How the suite comes by a broker.
pub trait Fixture: Sync {
    /// Connects the consumer of this name to a queue, stream or topic, which is made if it is not there.
    ///
    /// A new connection each time. Several of one name share the messages of the queue; the suite connects before it publishes.
    fn connect(
        &self,
        queue: &str,
        consumer: &str,
        ack_wait: Duration,
    ) -> impl Future<Output = Result<Arc<dyn Broker>>>;

    /// How long deliveries may be held: as short as the transport can, so that the suite is quick.
    fn ack_wait(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// How much later than it should something may come: timers of servers are coarse.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Whether each consumer's name gets every message of a queue.
    fn fans_out(&self) -> bool {
        false
    }

    /// Cuts all connections of the suite; the server lives on. False where that cannot be done.
    fn disconnect(&self) -> impl Future<Output = Result<bool>> {
        async { Ok(false) }
    }

    /// Kills the server and starts it again on what it held. False where that cannot be done.
    fn restart(&self) -> impl Future<Output = Result<bool>> {
        async { Ok(false) }
    }
}

/// Runs the whole suite.
///
/// # Panics
/// When a case fails, naming each that did with what was expected.
pub async fn run<F: Fixture>(fixture: F) {
    let report = check(&fixture).await;
    assert!(report.failures.is_empty(), "{report}");
}

/// Runs the whole suite and reports instead of panicking.
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

/// What the suite found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The cases that held.
    pub passed: Vec<&'static str>,
    /// The cases that do not concern this broker, or that the fixture has no means for.
    pub left_out: Vec<&'static str>,
    /// The cases that did not hold.
    pub failures: Vec<Failure>,
}

/// A case that did not hold.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Which case.
    pub case: &'static str,
    /// What was expected, and what came instead.
    pub message: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, failed) = (self.passed.len(), self.failures.len());
        writeln!(
            f,
            "{passed} cases of the broker suite hold, {failed} do not"
        )?;
        for Failure { case, message } in &self.failures {
            writeln!(f, "- {case}: {message}")?;
        }
        match self.left_out.is_empty() {
            true => Ok(()),
            false => writeln!(f, "left out: {}", self.left_out.join(", ")),
        }
    }
}

/// What a case came to.
pub(crate) enum Ran {
    Held,
    /// Not for this broker, or not with this fixture.
    LeftOut,
}

struct Runner<'a, F> {
    fixture: &'a F,
    report: Report,
}

/// Runs cases one by one, each on a fresh queue, under the names of their functions.
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
