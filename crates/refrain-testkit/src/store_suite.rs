//! Conformance suite for stores.
//!
//! The suite exercises every transition with its guard, runs random histories against the store and the
//! [`Model`](crate::Model), and races handles against each other.
//! The store's declared [guarantees](refrain::store::Guarantees) select the cases: a store that declares that it
//! survives a restart is restarted.
//!
//! ```
//! use refrain_testkit::{Model, store_suite};
//!
//! # tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?.block_on(async {
//! store_suite::run(|clock| async { Ok(Model::new(clock)) }).await;
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Needs a multi-thread runtime (`#[tokio::test(flavor = "multi_thread")]`): on one thread the tasks cannot race.

use std::{fmt, sync::Arc};

use refrain::{Result, Store, clock::Clock};

mod bench;
mod claims;
mod durable;
mod erasing;
mod fences;
mod histories;
mod lists;
mod outcomes;
mod races;
mod receipts;
mod scope_keys;
mod settlements;
mod stage;
mod time;
mod traces;
mod view;

use bench::{Bench, Checked, caught};

/// Opens the stores under test.
///
/// A closure from a clock to a new store is a fixture, which suffices for a store that does not survive its process.
pub trait Fixture {
    /// The store under test.
    type Store: Store;

    /// Opens a new store without records that reads time from `clock`.
    fn open(&self, clock: Arc<dyn Clock>) -> impl Future<Output = Result<Self::Store>>;

    /// Opens another handle on the same records. For a store that only one process can use, returns the same handle.
    fn another(&self, store: &Arc<Self::Store>) -> impl Future<Output = Result<Arc<Self::Store>>> {
        let same = store.clone();
        async { Ok(same) }
    }

    /// Closes the store and reopens its records; `None` if the store does not keep them.
    fn reopen(
        &self,
        store: Self::Store,
        clock: Arc<dyn Clock>,
    ) -> impl Future<Output = Result<Option<Self::Store>>> {
        drop((store, clock));
        async { Ok(None) }
    }
}

impl<F, Opened, S> Fixture for F
where
    F: Fn(Arc<dyn Clock>) -> Opened,
    Opened: Future<Output = Result<S>>,
    S: Store,
{
    type Store = S;

    fn open(&self, clock: Arc<dyn Clock>) -> impl Future<Output = Result<S>> {
        self(clock)
    }
}

/// Size of the suite: how many histories, racers and fences.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of random histories.
    pub histories: u32,
    /// Number of steps in each history.
    pub steps: u32,
    /// Random seed; `None` for a new one on each run. A failure reports its seed.
    pub seed: Option<u64>,
    /// Number of racing tasks.
    pub racers: usize,
    /// Number of races in each case.
    pub rounds: u8,
    /// Number of fences that are compared with each other.
    pub fences: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            histories: 100,
            steps: 40,
            seed: None,
            racers: 16,
            rounds: 20,
            fences: 10_000,
        }
    }
}

/// Runs the whole suite with default [`Options`].
///
/// # Panics
/// When a case fails; the message lists each failed case with expected and actual result.
pub async fn run<F: Fixture>(fixture: F) {
    let report = check(&fixture, &Options::default()).await;
    assert!(report.failures.is_empty(), "{report}");
}

/// Runs the whole suite and returns a report instead of panicking.
pub async fn check<F: Fixture>(fixture: &F, options: &Options) -> Report {
    let mut runner = Runner {
        fixture,
        report: Report::default(),
    };
    runner.transitions().await;
    runner.records().await;
    runner.add("histories", histories::agree(fixture, options).await);
    runner.races(options).await;
    runner.durable().await;
    runner.report
}

/// Result of the suite.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Names of the cases that passed.
    pub passed: Vec<&'static str>,
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
        writeln!(f, "store suite: {passed} cases passed, {failed} failed")?;
        for Failure { case, message } in &self.failures {
            writeln!(f, "- {case}: {message}")?;
        }
        Ok(())
    }
}

struct Runner<'a, F> {
    fixture: &'a F,
    report: Report,
}

/// Runs cases one by one, each on a new store, named after their functions.
macro_rules! cases {
    ($runner:ident, $module:ident: $($case:ident),* $(,)?) => {
        $($runner.case(stringify!($case), $module::$case).await;)*
    };
}

impl<F: Fixture> Runner<'_, F> {
    fn add(&mut self, case: &'static str, checked: Checked) {
        match checked {
            Ok(()) => self.report.passed.push(case),
            Err(broken) => self.report.failures.push(Failure {
                case,
                message: broken.0,
            }),
        }
    }

    async fn case(
        &mut self,
        name: &'static str,
        case: impl AsyncFnOnce(&Bench<F::Store>) -> Checked,
    ) {
        let fixture = self.fixture;
        let checked = async { case(&Bench::open(fixture).await?).await };
        self.add(name, caught(checked).await);
    }

    async fn transitions(&mut self) {
        cases!(self, claims:
            t1_an_absent_key_is_granted,
            t2_another_claimant_finds_it_in_flight,
            t3_credential_then_fingerprint_then_state,
            t3_a_claim_without_credential_is_not_bound,
            the_same_claimant_gets_the_same_fence,
            t8_a_lapsed_claim_is_taken_over,
            t8_needs_a_claim_that_stands_for_it,
            t8_ends_with_the_attempts,
            a_zero_lease_lapses_at_once,
            concurrent_claims_grant_a_key_once,
            concurrent_claims_get_their_own_verdicts,
            records_do_not_interact,
        );
        cases!(self, settlements:
            t4_renewing_prolongs_the_lease,
            t4_renewing_brings_back_a_lapsed_claim,
            t4_renewing_for_no_time_ends_the_lease,
            t5_completing_replays,
            t5_late_truth_lands,
            t5_doubt_can_be_completed,
            t5_an_overtaken_holder_is_fenced,
            t5_the_first_outcome_stays,
            t6_releasing_frees_the_key,
            t9_doubt_is_remembered,
            t9_doubt_leaves_the_lease_where_it_may_run_again,
            t10_never_happened_waits_for_the_attempt,
            t10_never_happened_needs_doubt,
            a_settlement_wakes_who_watches_elsewhere,
        );
        cases!(self, receipts:
            t8_an_attempt_without_receipt_is_taken_over,
            t8_needs_the_fence_of_the_last_attempt,
            t8_needs_receipts_on_both_sides_or_time,
            t8_without_receipt_ends_with_the_attempts,
            t6_a_release_speaks_for_one_attempt,
        );
        cases!(self, fences:
            i4_a_wrong_fence_changes_nothing,
            i4_an_overtaken_fence_changes_nothing,
            i4_a_released_fence_changes_nothing,
        );
        cases!(self, erasing:
            t13_erasing_frees_what_has_ended,
            t13_erasing_needs_an_end,
        );
        cases!(self, time:
            t7_a_lapsed_claim_is_indeterminate,
            t11_after_retention_the_key_is_refused,
            t12_after_remember_the_key_is_free,
            i8_time_alone_loses_nothing,
            the_wall_clock_is_not_believed,
            a_sweep_takes_only_what_is_past_its_time,
            sweeps_come_to_an_end,
        );
    }

    async fn records(&mut self) {
        cases!(self, traces:
            a_trace_tells_who_tried_what_and_how_it_ended,
            a_trace_of_many_attempts_keeps_the_first_and_the_last,
        );
        cases!(self, scope_keys:
            a_scope_key_is_replaced_only_as_expected,
            all_scope_keys_are_listed,
            racing_processes_agree_on_a_scope_key,
        );
        cases!(self, outcomes:
            i2_outcomes_come_back_to_the_byte,
            i2_a_body_that_was_not_kept_stays_so,
        );
        cases!(self, lists:
            lists_come_in_the_order_of_identities,
            lists_come_by_state,
            lists_go_by_what_time_has_made_of_records,
            a_census_counts_every_record_by_state,
        );
    }

    async fn races(&mut self, options: &Options) {
        let options = &options;
        self.case("one_of_many_is_granted", async |bench| {
            races::one_of_many_is_granted(bench, options).await
        })
        .await;
        self.case("completion_races_takeover", async |bench| {
            races::completion_races_takeover(bench, options).await
        })
        .await;
        self.case("holders_exclude_each_other", async |bench| {
            races::holders_exclude_each_other(bench, options).await
        })
        .await;
        self.case("i11_fences_are_never_issued_twice", async |bench| {
            races::i11_fences_are_never_issued_twice(bench, options).await
        })
        .await;
    }

    async fn durable(&mut self) {
        let survives = match Bench::open(self.fixture).await {
            Ok(bench) => bench.store.guarantees().survives_process,
            Err(broken) => return self.add("opening", Err(broken)),
        };
        if !survives {
            return;
        }
        let fixture = self.fixture;
        for stage in stage::Stage::ALL {
            let kept = durable::a_restart_keeps(fixture, *stage);
            self.add(stage.restart_case(), caught(kept).await);
        }
        let erased = durable::a_restart_keeps_what_was_erased(fixture);
        self.add("a_restart_keeps_what_was_erased", caught(erased).await);
        let kept = scope_keys::a_restart_keeps_scope_keys(fixture);
        self.add("a_restart_keeps_scope_keys", caught(kept).await);
        let grow = durable::i11_fences_grow_over_restarts(fixture);
        self.add("i11_fences_grow_over_restarts", caught(grow).await);
        let counted = durable::time_passes_while_closed(fixture);
        self.add("time_passes_while_closed", caught(counted).await);
        let reboot = durable::a_reboot_ends_nothing_early(fixture);
        self.add("a_reboot_ends_nothing_early", caught(reboot).await);
    }
}
