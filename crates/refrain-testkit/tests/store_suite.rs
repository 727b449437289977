//! Tests the store suite: the model passes it, and a model with any flaw fails it.
//! A case that no flaw can fail is useless.

use std::{collections::HashSet, sync::Arc};

use refrain::{Result, clock::Clock, store::Guarantees};
use refrain_testkit::{
    Flaw, Model,
    store_suite::{self, Fixture, Options, Report},
};

/// A model that survives its process, optionally with a flaw.
struct Models(Option<Flaw>);

impl Fixture for Models {
    type Store = Model;

    async fn open(&self, clock: Arc<dyn Clock>) -> Result<Model> {
        let model = Model::new(clock).with_guarantees(Guarantees {
            survives_process: true,
            survives_power: true,
            lossy_failover: false,
            shared: true,
        });
        Ok(match self.0 {
            Some(flaw) => model.with_flaw(flaw),
            None => model,
        })
    }

    async fn another(&self, store: &Arc<Model>) -> Result<Arc<Model>> {
        Ok(Arc::new(Model::clone(store)))
    }

    async fn reopen(&self, store: Model, clock: Arc<dyn Clock>) -> Result<Option<Model>> {
        Ok(Some(store.reopened(clock)))
    }
}

async fn report(flaw: Option<Flaw>, options: &Options) -> Report {
    store_suite::check(&Models(flaw), options).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_passes() {
    let report = report(None, &Options::default()).await;
    assert!(report.failures.is_empty(), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_is_enough_for_a_store_in_memory() {
    store_suite::run(|clock| async { Ok(Model::new(clock)) }).await;
}

/// The case that must detect each flaw; other cases may detect it, too.
const NOTICED: &[(Flaw, &str)] = &[
    (Flaw::KeepsNoClaims, "t1_an_absent_key_is_granted"),
    (Flaw::ForgetsFence, "i4_a_wrong_fence_changes_nothing"),
    (
        Flaw::NoFingerprintCheck,
        "t3_credential_then_fingerprint_then_state",
    ),
    (
        Flaw::NoCredentialCheck,
        "t3_credential_then_fingerprint_then_state",
    ),
    (
        Flaw::FingerprintFirst,
        "t3_credential_then_fingerprint_then_state",
    ),
    (
        Flaw::InFlightFirst,
        "t3_credential_then_fingerprint_then_state",
    ),
    (Flaw::LapsedIsAbsent, "t7_a_lapsed_claim_is_indeterminate"),
    (Flaw::NeverLapses, "t8_a_lapsed_claim_is_taken_over"),
    (
        Flaw::TakesOverAnything,
        "t7_a_lapsed_claim_is_indeterminate",
    ),
    (Flaw::NoAttemptsLimit, "t8_ends_with_the_attempts"),
    (
        Flaw::NeverOvertakes,
        "t8_an_attempt_without_receipt_is_taken_over",
    ),
    (
        Flaw::OvertakesAnyFence,
        "t8_needs_the_fence_of_the_last_attempt",
    ),
    (
        Flaw::OvertakesWithoutReceipt,
        "t8_needs_receipts_on_both_sides_or_time",
    ),
    (
        Flaw::OvertakesTheUnreceipted,
        "t8_needs_receipts_on_both_sides_or_time",
    ),
    (
        Flaw::OvertakesWithoutLimit,
        "t8_without_receipt_ends_with_the_attempts",
    ),
    (
        Flaw::ReleasesEarlierAttempts,
        "t6_a_release_speaks_for_one_attempt",
    ),
    (Flaw::RefusesLateTruth, "t5_late_truth_lands"),
    (Flaw::OutcomeChanges, "t5_the_first_outcome_stays"),
    (Flaw::KeepsReleased, "t6_releasing_frees_the_key"),
    (Flaw::DoubtFrees, "t9_doubt_is_remembered"),
    (
        Flaw::DoubtIsFinal,
        "t9_doubt_leaves_the_lease_where_it_may_run_again",
    ),
    (
        Flaw::SettlesTooEarly,
        "t10_never_happened_waits_for_the_attempt",
    ),
    (Flaw::NoTombstone, "t11_after_retention_the_key_is_refused"),
    (Flaw::NoRetention, "t11_after_retention_the_key_is_refused"),
    (Flaw::ZeroLeaseIsEndless, "a_zero_lease_lapses_at_once"),
    (Flaw::WrongUnits, "t2_another_claimant_finds_it_in_flight"),
    (
        Flaw::ForgetsClaimant,
        "the_same_claimant_gets_the_same_fence",
    ),
    (Flaw::TextBodies, "i2_outcomes_come_back_to_the_byte"),
    (Flaw::LosesTrailers, "i2_outcomes_come_back_to_the_byte"),
    (Flaw::RepeatsFences, "i11_fences_are_never_issued_twice"),
    (Flaw::MixesUpRecords, "records_do_not_interact"),
    (Flaw::GroupIsBlind, "concurrent_claims_grant_a_key_once"),
    (Flaw::LooksThenActs, "one_of_many_is_granted"),
    (Flaw::TrustsWallClock, "the_wall_clock_is_not_believed"),
    (Flaw::SweepsDoubt, "i8_time_alone_loses_nothing"),
    (
        Flaw::SweepsOutcomes,
        "a_sweep_takes_only_what_is_past_its_time",
    ),
    (Flaw::SweepsWithoutEnd, "sweeps_come_to_an_end"),
    (
        Flaw::OverwritesScopeKeys,
        "a_scope_key_is_replaced_only_as_expected",
    ),
    (Flaw::ListsHalfOfTheScopeKeys, "all_scope_keys_are_listed"),
    (Flaw::ForgetsScopeKeysOnReopen, "a_restart_keeps_scope_keys"),
    (
        Flaw::ListsOutOfOrder,
        "lists_come_in_the_order_of_identities",
    ),
    (Flaw::ListsEveryState, "lists_come_by_state"),
    (Flaw::ForgetsOnReopen, "a_restart_keeps_completed"),
    (Flaw::KeepsErased, "t13_erasing_frees_what_has_ended"),
    (Flaw::ErasesAnything, "t13_erasing_needs_an_end"),
    (
        Flaw::CountsWithoutTime,
        "a_census_counts_every_record_by_state",
    ),
    (
        Flaw::SettlesInSilence,
        "a_settlement_wakes_who_watches_elsewhere",
    ),
    (
        Flaw::ForgetsErasedOnReopen,
        "a_restart_keeps_what_was_erased",
    ),
    (Flaw::RepeatsFencesOnReopen, "i11_fences_grow_over_restarts"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_flaw_is_noticed() {
    let options = Options {
        histories: 0,
        fences: 200,
        ..Options::default()
    };
    let mut failed = HashSet::new();
    for flaw in Flaw::ALL {
        let expected = NOTICED.iter().find(|(noticed, _)| noticed == flaw);
        let (_, case) = expected.unwrap_or_else(|| panic!("no case is listed for {flaw:?}"));
        let report = report(Some(*flaw), &options).await;
        let noticed = report.failures.iter().any(|failure| failure.case == *case);
        assert!(noticed, "{case} does not detect {flaw:?}: {report}");
        failed.extend(report.failures.iter().map(|failure| failure.case));
    }
    let passed = report(None, &options).await.passed;
    let idle: Vec<_> = passed
        .iter()
        .filter(|case| !failed.contains(*case))
        .collect();
    assert_eq!(idle, [&"histories"], "cases that fail for no flaw");
}

/// Flaws that are visible through one handle on a running store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_histories_notice_flaws_by_themselves() {
    let unseen = [
        // These are visible only in a race, after a restart, or in steps that histories do not contain.
        Flaw::LooksThenActs,
        Flaw::GroupIsBlind,
        Flaw::ForgetsOnReopen,
        Flaw::ForgetsErasedOnReopen,
        Flaw::RepeatsFencesOnReopen,
        Flaw::RepeatsFences,
        Flaw::LosesTrailers,
        Flaw::SweepsWithoutEnd,
        Flaw::SettlesInSilence,
        Flaw::OverwritesScopeKeys,
        Flaw::ListsHalfOfTheScopeKeys,
        Flaw::ForgetsScopeKeysOnReopen,
    ];
    let options = Options {
        histories: 300,
        seed: Some(1),
        rounds: 1,
        fences: 1,
        ..Options::default()
    };
    for flaw in Flaw::ALL.iter().filter(|flaw| !unseen.contains(flaw)) {
        let report = report(Some(*flaw), &options).await;
        let history = report.failures.iter().find(|f| f.case == "histories");
        let Some(history) = history else {
            panic!("no history detects {flaw:?}");
        };
        let steps = history.message.lines().count() - 1;
        assert!(steps <= 12, "the report of {flaw:?} is too long: {report}");
    }
}

#[tokio::test]
async fn one_thread_is_refused_where_things_should_race() {
    let report = report(None, &Options::default()).await;
    let told = report
        .failures
        .iter()
        .all(|f| f.message.contains("multi_thread"));
    assert!(told && !report.failures.is_empty(), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promise_to_survive_is_held_against_the_fixture() {
    let durable = Guarantees {
        survives_process: true,
        survives_power: false,
        lossy_failover: false,
        shared: false,
    };
    let fixture = |clock| async move { Ok(Model::new(clock).with_guarantees(durable)) };
    let report = store_suite::check(&fixture, &Options::default()).await;
    let told = report
        .failures
        .iter()
        .all(|f| f.message.contains("`reopen`"));
    assert!(told && !report.failures.is_empty(), "{report}");
}
