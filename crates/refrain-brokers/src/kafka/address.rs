//! Parses the Kafka address: brokers and librdkafka settings.

use percent_encoding::percent_decode_str;
use rdkafka::{ClientConfig, config::RDKafkaLogLevel};
use refrain::{Error, ErrorKind, Result, policy};

/// Settings that the consumer's correctness depends on; users cannot change them.
const OURS: [&str; 5] = [
    "bootstrap.servers",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
];

/// Parses `kafka://host:port,host:port?name=value`.
pub(super) fn parse(address: &str) -> Result<ClientConfig> {
    policy::Address::new(address).check()?;
    read(address).map_err(|what| {
        let shown = policy::redacted(address);
        let message = format!(
            "invalid Kafka address `{shown}`: {what}; write kafka://host:9092,host:9092, with librdkafka settings after a ?"
        );
        Error::new(ErrorKind::Invalid, message)
    })
}

fn read(address: &str) -> Result<ClientConfig, String> {
    let rest = address
        .strip_prefix("kafka://")
        .ok_or("`kafka://` is missing")?;
    let (servers, query) = rest.split_once('?').unwrap_or((rest, ""));
    let servers = servers.trim_end_matches('/');
    if servers.is_empty() {
        return Err("it has no broker host".into());
    }
    if servers.contains(['@', '/']) {
        return Err(
            "user and password belong into the settings: ?sasl.username=…&sasl.password=…".into(),
        );
    }
    let mut settings = ClientConfig::new();
    settings.set("bootstrap.servers", servers);
    settings.set("client.id", "refrain");
    // librdkafka gives the reason of a failed connection only in its log.
    settings.set_log_level(RDKafkaLogLevel::Info);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if OURS.contains(&name) {
            return Err(format!("`{name}` is set by Refrain; remove it"));
        }
        let value = percent_decode_str(value).decode_utf8_lossy();
        settings.set(name, value);
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    //! An invalid address is reported before connecting.

    use super::*;

    #[test]
    fn servers_and_settings_are_read() {
        let settings =
            parse("kafka://a:1,b:2/?security.protocol=ssl&ssl.ca.location=%2Fca").unwrap();
        assert_eq!(settings.get("bootstrap.servers"), Some("a:1,b:2"));
        assert_eq!(settings.get("security.protocol"), Some("ssl"));
        assert_eq!(settings.get("ssl.ca.location"), Some("/ca"));
    }

    #[test]
    fn rejects_invalid_address_without_showing_its_password() {
        for (address, words) in [
            ("kafka://", "no broker host"),
            ("kafka://u:secret@h", "belong into the settings"),
            ("kafka://h?group.id=x", "is set by Refrain"),
            ("kafka://u:aa?secret@h", "? as %3F"),
            ("kafka://h#secret", "# as %23"),
            ("kafka://u:secret", "port that is not a number"),
        ] {
            let text = parse(address).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
