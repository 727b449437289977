//! Resolves `[tls]` and `[admin_tls]`: the certificates of a listener, and those of its clients.

use std::{ops::Range, path::PathBuf, time::Duration};

use serde::{Serialize, Serializer};
use toml::de::DeTable;

use super::{
    draft::Apply,
    problem::Report,
    proxy::{count, time},
    table::{self, ConfigTable},
    typed,
};
use crate::policy::units::Span;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HANDSHAKES_MAX: usize = 1_000;

/// TLS of a listener, from `[tls]` or `[admin_tls]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TlsSettings {
    /// PEM file with the server's certificate, then the intermediate ones.
    pub certificate: PathBuf,
    /// PEM file with the private key of the certificate.
    pub key: PathBuf,
    /// PEM file with the authorities that may issue certificates of clients; without it no client is asked for one.
    pub client_ca: Option<PathBuf>,
    /// Whether a client without a certificate is rejected.
    pub client_auth: ClientAuth,
    /// Maximum time for a TLS handshake.
    #[serde(serialize_with = "as_span")]
    pub handshake_timeout: Duration,
    /// Maximum number of unfinished handshakes; a further one ends the oldest.
    pub handshakes_max: usize,
}

/// Whether clients must present a certificate of `client_ca`.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    serde::Deserialize,
    serde::Serialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ClientAuth {
    /// A client without a valid certificate is rejected in the handshake.
    #[default]
    Required,
    /// A client may have no certificate; an invalid one is rejected.
    Optional,
}

impl TlsSettings {
    /// Whether every client has a verified certificate.
    #[must_use]
    pub fn requires_client(&self) -> bool {
        self.client_ca.is_some() && self.client_auth == ClientAuth::Required
    }
}

/// Resolves a table at `at`; `None` if certificate and key are not both set.
pub(super) fn resolve(
    mut table: DeTable<'_>,
    at: Range<usize>,
    report: &mut Report<'_>,
) -> Option<TlsSettings> {
    table::refuse_unknown(&mut table, ConfigTable::Tls, report);
    let part = table::read::<typed::Tls>(table, report);
    let values = &part.values;
    let mut apply = Apply {
        places: &part.places,
        report,
    };
    let mut client_auth = ClientAuth::default();
    apply.choice("client_auth", &values.client_auth, &mut client_auth);
    let mut handshake_timeout = HANDSHAKE_TIMEOUT;
    let text = &values.handshake_timeout;
    apply.scalar("handshake_timeout", text, time, &mut handshake_timeout);
    let mut handshakes_max = HANDSHAKES_MAX;
    apply.scalar(
        "handshakes_max",
        &values.handshakes_max,
        |text| count(text, 1, 100_000),
        &mut handshakes_max,
    );
    if values.client_auth.is_some() && values.client_ca.is_none() {
        let message = "`client_auth` has no effect without `client_ca`";
        let help = "add client_ca = \"FILE\" with the authorities of the clients, or remove it";
        let place = apply.place("client_auth");
        apply.report.push(place, message, help);
    }
    for name in ["certificate", "key", "client_ca"] {
        apply.refuse_empty_path(name, values);
    }
    let (Some(certificate), Some(key)) = (&values.certificate, &values.key) else {
        let message = "TLS needs a certificate and its key";
        report.push(
            at,
            message,
            "set both certificate = \"FILE\" and key = \"FILE\"",
        );
        return None;
    };
    Some(TlsSettings {
        certificate: certificate.into(),
        key: key.into(),
        client_ca: values.client_ca.as_ref().map(PathBuf::from),
        client_auth,
        handshake_timeout,
        handshakes_max,
    })
}

impl Apply<'_, '_, '_> {
    fn refuse_empty_path(&mut self, name: &str, values: &typed::Tls) {
        let path = match name {
            "certificate" => &values.certificate,
            "key" => &values.key,
            _ => &values.client_ca,
        };
        if path.as_deref().is_some_and(|path| path.trim().is_empty()) {
            let place = self.place(name);
            let help = "write the path of a PEM file";
            self.report.push(place, format!("`{name}` is empty"), help);
        }
    }
}

fn as_span<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Span(*time))
}
