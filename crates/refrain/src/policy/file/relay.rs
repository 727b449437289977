//! Resolves `[[relay]]`: an outbox, and the broker that its messages are published to.

use std::{ops::Range, time::Duration};

use serde::{Serialize, Serializer};

use super::{
    draft::Apply,
    given::{self, Given},
    problem::Report,
    proxy::{count, time},
    table::Part,
    typed,
    worker::broker,
};
use crate::{
    consume::{OnRefusal, RelayOptions},
    policy::{Address, units::Span},
};

/// Name of a relay that has none.
pub(super) const NAME: &str = "relay";
/// Maximum number of relays in one file.
pub(super) const RELAYS_MAX: usize = 256;

/// Settings of a relay, which publishes the messages of an outbox to a broker; from `[[relay]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RelaySettings {
    /// Name of the relay in logs and reports.
    pub name: String,
    /// Database with the table `refrain_outbox`.
    pub outbox: Address,
    /// Address of the broker.
    pub to: Address,
    /// Maximum number of messages held at a time.
    pub in_flight_max: usize,
    /// Lease of held messages: another relay takes them over after it lapses.
    #[serde(serialize_with = "as_span")]
    pub lease: Duration,
    /// Interval between polls of the outbox while no notification arrives.
    #[serde(serialize_with = "as_span")]
    pub poll: Duration,
    /// Maximum time for the broker to confirm one message.
    #[serde(serialize_with = "as_span")]
    pub timeout: Duration,
    /// Number of refusals by the broker after which a message is given up.
    pub attempts: u32,
    /// What happens to the other messages of its group then.
    pub on_refusal: OnRefusal,
    /// Maximum time to finish at shutdown.
    #[serde(serialize_with = "as_span")]
    pub drain: Duration,
}

impl RelaySettings {
    /// Returns the options of the relay itself, without addresses.
    #[must_use]
    pub fn options(&self) -> RelayOptions {
        RelayOptions {
            in_flight_max: self.in_flight_max,
            lease: self.lease,
            poll: self.poll,
            timeout: self.timeout,
            attempts: self.attempts,
            on_refusal: self.on_refusal,
            drain: self.drain,
        }
    }
}

pub(super) fn resolve(
    part: &Part<typed::Relay>,
    at: Range<usize>,
    report: &mut Report<'_>,
) -> Option<RelaySettings> {
    let values = &part.values;
    let place = |name: &str| part.places.get(name).cloned().unwrap_or(at.clone());
    let outbox = Given {
        name: "outbox",
        text: &values.outbox,
        env: &values.outbox_env,
        file: &values.outbox_file,
    };
    let to = Given {
        name: "to",
        text: &values.to,
        env: &values.to_env,
        file: &values.to_file,
    };
    let mut needed = |given: &Given<'_>, example: &str| {
        let place = given.place(&part.places).unwrap_or(at.clone());
        let text = given.read(&part.places, report);
        let text = text.filter(|text| !text.trim().is_empty());
        if text.is_none() && !report.has(&place) {
            let name = given.name;
            let message = format!("this relay has no `{name}`");
            report.push(
                place.clone(),
                message,
                format!("add {name} = \"{example}\""),
            );
        }
        Some((text?, place))
    };
    let outbox = needed(&outbox, "postgres://app@127.0.0.1/app");
    let to = needed(&to, "nats://127.0.0.1:4222");
    let ((outbox, outbox_at), (to, to_at)) = (outbox?, to?);
    let outbox = given::database("outbox", outbox, outbox_at, report);
    let to = broker("to", to, to_at, report);
    let name = values.name.clone().unwrap_or_else(|| NAME.into());
    if name.is_empty() || name.len() > 64 || name.chars().any(char::is_control) {
        let help = "write 1 to 64 bytes without control characters";
        report.push(place("name"), "invalid relay name", help);
    }
    let RelayOptions {
        in_flight_max,
        lease,
        poll,
        timeout,
        attempts,
        on_refusal,
        drain,
    } = RelayOptions::default();
    let mut it = RelaySettings {
        name,
        outbox,
        to,
        in_flight_max,
        lease,
        poll,
        timeout,
        attempts,
        on_refusal,
        drain,
    };
    apply(&mut it, part, report);
    if it.lease < Duration::from_secs(1) {
        let message = "`lease` is too short: a relay that pauses briefly would lose its messages";
        report.push(place("lease"), message, "write at least 1s");
    }
    Some(it)
}

fn apply(it: &mut RelaySettings, part: &Part<typed::Relay>, report: &mut Report<'_>) {
    let values = &part.values;
    let mut apply = Apply {
        places: &part.places,
        report,
    };
    let times = [
        ("lease", &values.lease, &mut it.lease),
        ("poll", &values.poll, &mut it.poll),
        ("timeout", &values.timeout, &mut it.timeout),
        ("drain", &values.drain, &mut it.drain),
    ];
    for (name, text, field) in times {
        apply.scalar(name, text, time, field);
    }
    let mut attempts = it.attempts as usize;
    let counts = [
        (
            "in_flight_max",
            &values.in_flight_max,
            10_000,
            &mut it.in_flight_max,
        ),
        ("attempts", &values.attempts, 1_000, &mut attempts),
    ];
    for (name, text, last, field) in counts {
        apply.scalar(name, text, |text| count(text, 1, last), field);
    }
    // The range was checked above.
    it.attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
    apply.choice("on_refusal", &values.on_refusal, &mut it.on_refusal);
}

fn as_span<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Span(*time))
}
