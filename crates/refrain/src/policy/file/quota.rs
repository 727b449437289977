//! Resolves `quota = { … }` of `[policy]`.

use std::ops::Range;

use toml::de::DeTable;

use super::{
    draft::Apply,
    problem::Report,
    proxy,
    table::{self, ConfigTable},
    typed,
};
use crate::policy::{Quota, units};

/// Help text with an example.
pub(super) const HELP: &str =
    "write quota = { keys_per_second = 500, in_flight_max = 200, records_max = 1000000 }";

pub(super) fn resolve(mut table: DeTable<'_>, at: Range<usize>, report: &mut Report<'_>) -> Quota {
    table::refuse_unknown(&mut table, ConfigTable::Quota, report);
    let part = table::read::<typed::Quota>(table, report);
    let values = &part.values;
    let mut apply = Apply {
        places: &part.places,
        report,
    };
    let mut quota = Quota::default();
    let count = |text: &str| proxy::count(text, 1, usize::MAX >> 1).map(Some);
    let rate = |text: &str| proxy::count(text, 1, Quota::RATE_MAX).map(Some);
    let size = |text: &str| {
        let bytes = units::size(text)?;
        proxy::count(&bytes.to_string(), 1, usize::MAX >> 1).map(Some)
    };
    let scopes = |text: &str| proxy::count(text, 1, SCOPES_MAX);
    apply.scalar(
        "keys_per_second",
        &values.keys_per_second,
        rate,
        &mut quota.keys_per_second,
    );
    apply.scalar(
        "in_flight_max",
        &values.in_flight_max,
        count,
        &mut quota.in_flight_max,
    );
    apply.scalar(
        "records_max",
        &values.records_max,
        count,
        &mut quota.records_max,
    );
    apply.scalar("bytes_max", &values.bytes_max, size, &mut quota.bytes_max);
    apply.scalar(
        "scopes_max",
        &values.scopes_max,
        scopes,
        &mut quota.scopes_max,
    );
    let is_told = part.places.values().chain([&at]).any(|it| report.has(it));
    if !quota.is_on() && !is_told {
        report.push(at, "this quota limits nothing", HELP);
    }
    quota
}

/// Upper bound of `scopes_max`.
const SCOPES_MAX: usize = 10_000_000;
