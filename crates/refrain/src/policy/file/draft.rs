//! Resolves one operation: applies typed settings in layers, then checks the result.

use std::{fmt::Display, ops::Range, str::FromStr, time::Duration};

use serde::de::DeserializeOwned;

use super::{
    forms::{Audit, Fingerprint},
    given::{self, Given},
    problem::Report,
    proxy,
    table::{self, Part, Places},
    typed::{List, OperationHead, Scalar, Section},
};
use crate::{
    Error, Result, fingerprint,
    key::Sender,
    policy::{
        Address, Class, Operation, Probe, class,
        rules::{self, RuleFault},
        suggest,
        terms::WAITING_MAX,
        units,
    },
};

/// An operation whose settings are still being applied.
#[derive(Debug, Clone, Default)]
pub(super) struct Draft {
    pub(super) operation: Operation,
    /// If not set, it is computed from `timeout` and `lease` at the end.
    settle_after: Option<Duration>,
    /// Whether the host is part of the fingerprint, if set. A list of other parts does not change it.
    host: Option<bool>,
}

impl Draft {
    pub(super) fn apply_webhook(&mut self, head: &Part<OperationHead>, report: &mut Report<'_>) {
        let Some(text) = &head.values.webhook else {
            return;
        };
        let place = head.places.get("webhook").cloned().unwrap_or_default();
        let mut sender = Sender::Stripe;
        if choice(&mut sender, text, "webhook", place, report) {
            class::apply_webhook(sender, &mut self.operation);
        }
    }

    pub(super) fn apply_class(
        &mut self,
        head: &Part<OperationHead>,
        section: &Part<Section>,
        report: &mut Report<'_>,
    ) {
        let Some(text) = &head.values.class else {
            return;
        };
        let place = head.places.get("class").cloned().unwrap_or_default();
        let mut class = Class::Create;
        if !choice(&mut class, text, "class", place, report) {
            return;
        }
        class.apply(&mut self.operation);
        if class != Class::Read {
            return;
        }
        let of_head = ["probe", "probe_authorization", "webhook", "signature"]
            .map(|name| head.places.get_key_value(name));
        for (name, place) in section.places.iter().chain(of_head.into_iter().flatten()) {
            let message =
                format!("`{name}` has no effect here: operations of class `read` are not guarded");
            report.push(place.clone(), message, "remove it, or choose another class");
        }
    }

    pub(super) fn apply_probe(&mut self, head: &Part<OperationHead>, report: &mut Report<'_>) {
        let places = &head.places;
        let mut apply = Apply { places, report };
        apply.probe("probe", &head.values.probe, &mut self.operation.probe);
    }

    /// Applies the settings of one table.
    pub(super) fn apply(&mut self, part: &Part<Section>, report: &mut Report<'_>) {
        let Self {
            operation,
            settle_after,
            host,
        } = self;
        let terms = &mut operation.terms;
        let values = &part.values;
        let mut apply = Apply {
            places: &part.places,
            report,
        };

        apply.list(
            "key",
            &values.key,
            &["header", "body", "derive", "natural", "preset"],
            &mut operation.key,
        );
        apply.choice("syntax", &values.syntax, &mut operation.syntax);
        apply.choice("paths", &values.paths, &mut operation.paths);
        apply.list(
            "scope",
            &values.scope,
            &[
                "credential",
                "header",
                "jwt",
                "path",
                "tls",
                "route",
                "none",
            ],
            &mut operation.scope,
        );
        apply.list(
            "credential",
            &values.credential,
            &["header", "cookie", "tls"],
            &mut operation.credential,
        );
        apply.choice("replay_to", &values.replay_to, &mut operation.replay_to);
        apply.probe(
            "replay_probe",
            &values.replay_probe,
            &mut operation.replay_probe,
        );
        apply.fingerprint(&values.fingerprint, &mut operation.fingerprint, host);
        apply.choice("guarantee", &values.guarantee, &mut terms.guarantee);
        let receipts = Given {
            name: "receipts",
            text: &values.receipts,
            env: &values.receipts_env,
            file: &values.receipts_file,
        };
        apply.receipts(&receipts, &mut operation.receipts);
        apply.scalar(
            "attempts_max",
            &values.attempts_max,
            attempts,
            &mut terms.attempts_max,
        );
        apply.scalar("wait", &values.wait, units::duration, &mut terms.wait);
        apply.scalar(
            "waiting_max",
            &values.waiting_max,
            |text| proxy::count(text, 1, WAITING_MAX),
            &mut terms.waiting_max,
        );
        apply.scalar("lease", &values.lease, units::duration, &mut terms.lease);
        apply.scalar(
            "retention",
            &values.retention,
            units::duration,
            &mut terms.retention,
        );
        apply.scalar(
            "remember",
            &values.remember,
            units::duration,
            &mut terms.remember,
        );
        apply.scalar(
            "timeout",
            &values.timeout,
            units::duration,
            &mut terms.timeout,
        );
        apply.scalar(
            "settle_after",
            &values.settle_after,
            |text| units::duration(text).map(Some),
            settle_after,
        );
        if values.keep.is_some() || values.release.is_some() {
            // The two lists are one setting: inheriting only one of them would be surprising.
            operation.keep.clear();
            operation.release.clear();
        }
        apply.list("keep", &values.keep, &[], &mut operation.keep);
        apply.list("release", &values.release, &[], &mut operation.release);
        apply.headers(
            "replay_headers",
            &values.replay_headers,
            &mut operation.replay_headers,
        );
        apply.scalar(
            "request_bytes_max",
            &values.request_bytes_max,
            units::size,
            &mut operation.request_bytes_max,
        );
        apply.scalar(
            "outcome_bytes_max",
            &values.outcome_bytes_max,
            units::size,
            &mut operation.outcome_bytes_max,
        );
        apply.choice("reply", &values.reply, &mut operation.reply);
        apply.choice("mode", &values.mode, &mut operation.mode);
        apply.choice("duplicates", &values.duplicates, &mut operation.duplicates);
        apply.choice(
            "on_store_failure",
            &values.on_store_failure,
            &mut operation.on_store_failure,
        );
        apply.choice(
            "records_keys",
            &values.records_keys,
            &mut operation.records_keys,
        );
        operation.lookup = values.lookup.unwrap_or(operation.lookup);
        operation.records_query = values.records_query.unwrap_or(operation.records_query);
        operation.required = values.required.unwrap_or(operation.required);
        operation.accept_lossy_claims = values
            .accept_lossy_claims
            .unwrap_or(operation.accept_lossy_claims);
        if let Some(audit) = apply.audit(&values.audit) {
            apply.refuse_unaudited(audit, operation.audit_required);
            operation.audit = audit.is_on();
            operation.audit_required |= audit == Audited::Required;
        }
    }

    /// Computes derived settings, and checks the operation against the rules.
    /// A violation is reported at the first of `places` that contains one of its settings, or else at `otherwise`.
    pub(super) fn finish(
        &mut self,
        places: &[&Places],
        otherwise: Range<usize>,
        report: &mut Report<'_>,
    ) {
        let Operation {
            terms, fingerprint, ..
        } = &mut self.operation;
        terms.settle_after = self.settle_after.unwrap_or(terms.timeout + terms.lease);
        fingerprint.retain(|part| *part != fingerprint::Part::Host);
        if self.host.unwrap_or(true) {
            fingerprint.push(fingerprint::Part::Host);
        }
        let blame = |fault: &RuleFault| {
            let place = |places: &&Places| {
                let mut settings = fault.settings.iter();
                settings.find_map(|setting| places.get(*setting).cloned())
            };
            places.iter().find_map(place).unwrap_or(otherwise.clone())
        };
        let mut faults: Vec<_> = rules::faults(&self.operation)
            .into_iter()
            .map(|fault| (blame(&fault), fault))
            .collect();
        if !report.has_client_certificates {
            faults.extend(rules::certificates(&self.operation).map(|it| (blame(&it), it)));
        }
        // An unparsable setting is already reported; do not also report violations that follow from it.
        faults.retain(|(place, _)| !report.has(place));
        for (place, fault) in faults {
            report.push(place, fault.message, fault.help);
        }
    }
}

/// Value of the setting `audit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Audited {
    Off,
    On,
    Required,
}

impl Audited {
    pub(super) fn is_on(self) -> bool {
        self != Self::Off
    }
}

/// Applies typed values to fields, and reports invalid ones.
pub(super) struct Apply<'a, 'r, 't> {
    pub(super) places: &'a Places,
    pub(super) report: &'r mut Report<'t>,
}

impl Apply<'_, '_, '_> {
    pub(super) fn place(&self, name: &str) -> Range<usize> {
        self.places.get(name).cloned().unwrap_or_default()
    }

    pub(super) fn scalar<T>(
        &mut self,
        name: &str,
        text: &Option<Scalar>,
        parse: impl Fn(&str) -> Result<T>,
        field: &mut T,
    ) {
        let Some(Scalar(text)) = text else { return };
        match parse(text) {
            Ok(value) => *field = value,
            Err(error) => self.report.push_error(self.place(name), &error),
        }
    }

    pub(super) fn choice<T: DeserializeOwned>(
        &mut self,
        name: &str,
        text: &Option<String>,
        field: &mut T,
    ) {
        if let Some(text) = text {
            choice(field, text, name, self.place(name), self.report);
        }
    }

    fn probe(&mut self, name: &str, text: &Option<String>, field: &mut Option<Probe>) {
        match text.as_ref().map(|text| text.parse()) {
            Some(Ok(probe)) => *field = Some(probe),
            Some(Err(error)) => self.report.push_error(self.place(name), &error),
            None => {}
        }
    }

    /// `words` are the valid prefixes of members, for suggestions.
    pub(super) fn list<T>(
        &mut self,
        name: &str,
        list: &Option<List>,
        words: &[&str],
        field: &mut Vec<T>,
    ) where
        T: FromStr<Err = Error> + PartialEq + Display,
    {
        let Some(List(members)) = list else { return };
        field.clear();
        for (text, place) in members {
            let place = place.clone().unwrap_or_else(|| self.place(name));
            match text.parse() {
                Ok(value) if field.contains(&value) => {
                    self.report.push(
                        place,
                        format!("`{value}` is listed twice"),
                        "remove one of them",
                    );
                }
                Ok(value) => field.push(value),
                Err(error) => self.refuse(text, words, place, &error),
            }
        }
    }

    fn fingerprint(
        &mut self,
        written: &Option<Fingerprint>,
        field: &mut Vec<fingerprint::Part>,
        host: &mut Option<bool>,
    ) {
        let Some(Fingerprint {
            parts,
            host: is_part,
        }) = written
        else {
            return;
        };
        let words = ["method", "path", "query", "body", "host", "header"];
        self.list("fingerprint", parts, &words, field);
        let is_named = parts.is_some() && field.contains(&fingerprint::Part::Host);
        if is_named && *is_part == Some(false) {
            let message = "`host` is one of the parts, but host = false excludes it";
            let place = self.place("fingerprint");
            self.report.push(place, message, "remove one of the two");
        }
        *host = is_part.or(is_named.then_some(true)).or(*host);
    }

    /// Returns the value of `audit`, if set and valid.
    pub(super) fn audit(&mut self, written: &Option<Audit>) -> Option<Audited> {
        match written.as_ref()? {
            Audit::Is(true) => Some(Audited::On),
            Audit::Is(false) => Some(Audited::Off),
            Audit::Word(word) if word == "required" => Some(Audited::Required),
            Audit::Word(word) => {
                let message = format!("invalid value `{word}` for `audit`");
                let help = "write true, false or \"required\"";
                self.report.push(self.place("audit"), message, help);
                None
            }
        }
    }

    /// Reports an operation that turns off an audit that `[policy]` requires.
    fn refuse_unaudited(&mut self, audit: Audited, is_required: bool) {
        if is_required && audit == Audited::Off {
            let message = "[policy] has audit = \"required\", but this operation turns it off";
            let help = "remove this line, or write audit = true in [policy]";
            self.report.push(self.place("audit"), message, help);
        }
    }

    pub(super) fn receipts(&mut self, given: &Given<'_>, field: &mut Option<Address>) {
        let Some(text) = given.read(self.places, self.report) else {
            return;
        };
        let place = given.place(self.places).unwrap_or_default();
        *field = Some(given::database(given.name, text, place, self.report));
    }

    fn headers(&mut self, name: &str, list: &Option<List>, field: &mut Vec<String>) {
        let Some(List(members)) = list else { return };
        field.clear();
        for (text, place) in members {
            match crate::key::header_name(text) {
                Ok(value) => field.push(value),
                Err(error) => {
                    let place = place.clone().unwrap_or_else(|| self.place(name));
                    self.report.push_error(place, &error);
                }
            }
        }
    }

    fn refuse(&mut self, text: &str, words: &[&str], place: Range<usize>, error: &Error) {
        let (word, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
        match suggest::nearest(word, words.iter().copied()) {
            Some(meant) if !words.contains(&word) => {
                let message = error.to_string();
                let message = message.split("; ").next().unwrap_or_default();
                self.report
                    .push(place, message, format!("did you mean `{meant}{rest}`?"));
            }
            _ => self.report.push_error(place, error),
        }
    }
}

/// Parses one of several fixed values. Reports an invalid one, with a suggestion, and returns false.
pub(super) fn choice<T: DeserializeOwned>(
    field: &mut T,
    text: &str,
    setting: &str,
    at: Range<usize>,
    report: &mut Report<'_>,
) -> bool {
    match table::choose(text) {
        Ok(value) => {
            *field = value;
            true
        }
        Err(names) => {
            let all = names.join(", ");
            let help = match suggest::nearest(text, names.iter().copied()) {
                Some(meant) => format!("did you mean `{meant}`? `{setting}` is one of {all}"),
                None => format!("write one of {all}"),
            };
            report.push(at, format!("invalid value `{text}` for `{setting}`"), help);
            false
        }
    }
}

fn attempts(text: &str) -> Result<u16> {
    let bad = |_| {
        crate::policy::invalid(format!(
            "`{text}` is out of range; write a number from 1 to 1000"
        ))
    };
    text.parse().map_err(bad)
}
