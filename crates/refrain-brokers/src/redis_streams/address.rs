//! Parses the Redis address and the stream settings in its query parameters.

use ::redis::{ConnectionInfo, IntoConnectionInfo as _};
use refrain::{Error, ErrorKind, Result, policy};

/// Parsed Redis address.
#[derive(Clone)]
pub(super) struct Address {
    /// The address without its password, for messages and logs.
    pub(super) shown: String,
    pub(super) server: ConnectionInfo,
    pub(super) settings: Settings,
}

/// The query parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// Whether a new group starts at the end of the stream.
    pub(super) starts_new: bool,
    /// Whether entries that every group has acknowledged are removed.
    pub(super) trims: bool,
}

impl Address {
    pub(super) fn parse(address: &str) -> Result<Self> {
        policy::Address::new(address).check()?;
        let shown = policy::redacted(address);
        let told = |what: String| {
            let message = format!(
                "invalid Redis Streams address `{shown}`: {what}; write redis://[user:password@]host[:port][/database], with rediss for TLS, ?start=new or ?trim=handled"
            );
            Error::new(ErrorKind::Invalid, message)
        };
        let (front, query) = address.split_once('?').unwrap_or((address, ""));
        let settings = Settings::parse(query).map_err(told)?;
        if front
            .split_once("://")
            .is_some_and(|(scheme, _)| scheme.contains('+'))
        {
            let what =
                "streams are read from a single server; Sentinel and Cluster are not supported";
            return Err(told(what.into()));
        }
        // The driver's error never contains the address.
        let server = front.into_connection_info();
        let server = server.map_err(|error| told(error.to_string()))?;
        Ok(Self {
            shown: policy::redacted(front),
            server,
            settings,
        })
    }
}

impl Settings {
    fn parse(query: &str) -> Result<Self, String> {
        let mut settings = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair {
                "start=new" => settings.starts_new = true,
                "start=all" => settings.starts_new = false,
                "trim=handled" => settings.trims = true,
                "trim=never" => settings.trims = false,
                _ => {
                    let name = pair.split('=').next().unwrap_or_default();
                    return Err(format!(
                        "unknown setting `{name}`, or invalid value; the settings are start=all or new, and trim=never or handled"
                    ));
                }
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    //! An invalid address is reported before connecting, and without the password.

    use super::*;

    #[test]
    fn parses_settings_from_the_query() {
        for (address, starts_new, trims) in [
            ("redis://u:secret@h", false, false),
            ("rediss://h/2?start=new", true, false),
            ("redis://h?trim=handled&start=all", false, true),
        ] {
            let settings = Address::parse(address).unwrap().settings;
            assert_eq!(settings, Settings { starts_new, trims }, "{address}");
        }
    }

    #[test]
    fn rejects_invalid_address_without_showing_its_password() {
        for (address, words) in [
            ("redis://u:secret@h?maxlen=5", "unknown setting `maxlen`"),
            ("redis+sentinel://u:secret@h/m", "from a single server"),
            ("redis://u:secret@h/x", "database"),
            ("redis://u:aa?secret@h", "? as %3F"),
            ("redis://u:aa#secret@h", "# as %23"),
            ("redis://u:secret", "port that is not a number"),
        ] {
            let error = Address::parse(address).err().map(|it| it.to_string());
            let text = error.unwrap();
            assert!(text.contains(words), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
