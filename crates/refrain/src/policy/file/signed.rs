//! Resolves `signature = { … }`. The secrets are read here, before anything starts.

use std::ops::Range;

use toml::de::DeTable;

use super::{
    draft::{Apply, choice},
    problem::Report,
    table::{self, ConfigTable},
    typed::{List, Signed},
};
use crate::{
    Result,
    key::Sender,
    policy::{Signature, SigningSecret, signature::is_timed, units},
};

/// Help text with an example.
pub(super) const HELP: &str =
    "write signature = { scheme = \"stripe\", secret_env = \"STRIPE_WEBHOOK_SECRET\" }";

/// Resolves the table; `otherwise` is the sender if the table names no scheme.
pub(super) fn resolve(
    mut table: DeTable<'_>,
    at: Range<usize>,
    otherwise: Option<Sender>,
    report: &mut Report<'_>,
) -> Option<Signature> {
    table::refuse_unknown(&mut table, ConfigTable::Signature, report);
    let part = table::read::<Signed>(table, report);
    let values = &part.values;
    let places = &part.places;
    let mut apply = Apply { places, report };
    let sender = match (&values.scheme, otherwise) {
        (Some(text), _) => {
            let mut sender = Sender::Stripe;
            let place = apply.place("scheme");
            choice(&mut sender, text, "scheme", place, apply.report).then_some(sender)?
        }
        (None, Some(sender)) => sender,
        (None, None) => {
            let message = "the signature scheme is missing";
            apply.report.push(at, message, HELP);
            return None;
        }
    };
    if !apply.report.reads_secrets {
        return None;
    }
    let mut signature = Signature::new(sender);
    let from_env = |name: &str| SigningSecret::from_env(sender, name);
    let from_file = |path: &str| SigningSecret::from_file(sender, path);
    let mut is_whole = apply.secrets("secret_env", &values.secret_env, &mut signature, from_env);
    is_whole &= apply.secrets(
        "secret_file",
        &values.secret_file,
        &mut signature,
        from_file,
    );
    let mut tolerance = signature.tolerance();
    let text = &values.tolerance;
    apply.scalar("tolerance", text, units::duration, &mut tolerance);
    if text.is_some() && !is_timed(sender) {
        let message = format!("`tolerance` has no effect here: {sender} does not sign a timestamp");
        let place = apply.place("tolerance");
        apply.report.push(place, message, "remove it");
    }
    // An unreadable secret is already reported; do not also report it as missing.
    is_whole.then(|| signature.with_tolerance(tolerance))
}

impl Apply<'_, '_, '_> {
    /// Reads secrets into `signature`; returns whether all of them could be read.
    fn secrets(
        &mut self,
        name: &str,
        list: &Option<List>,
        signature: &mut Signature,
        read: impl Fn(&str) -> Result<SigningSecret>,
    ) -> bool {
        let Some(List(members)) = list else {
            return true;
        };
        let before = signature.secrets().len();
        for (text, place) in members {
            match read(text) {
                Ok(secret) => signature.push(secret),
                Err(error) => {
                    let place = place.clone().unwrap_or_else(|| self.place(name));
                    self.report.push_error(place, &error);
                }
            }
        }
        signature.secrets().len() == before + members.len()
    }
}
