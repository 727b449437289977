//! Parses the RabbitMQ address: server, virtual host, credentials and TLS files.

use std::{fs, path::PathBuf};

use lapin::{
    tcp::{OwnedIdentity, OwnedTLSConfig},
    uri::{AMQPScheme, AMQPUri},
};
use percent_encoding::percent_decode_str;
use refrain::{Error, ErrorKind, Result, policy};

/// Default heartbeat interval in seconds; an unresponsive server is detected after two intervals.
const HEARTBEAT: u16 = 10;
/// Default connection timeout in milliseconds.
const CONNECT: u64 = 5_000;
/// Query parameters that the AMQP client parses itself.
const OWN: [&str; 5] = [
    "auth_mechanism",
    "channel_max",
    "connection_timeout",
    "frame_max",
    "heartbeat",
];

/// Parsed RabbitMQ address.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) uri: AMQPUri,
    /// Server and virtual host for messages and logs, without credentials.
    pub(super) shown: String,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self> {
        policy::Address::new(url).check()?;
        let (front, query) = url.split_once('?').unwrap_or((url, ""));
        // The parser's error may contain the address with its password, so it is not passed on.
        let mut uri: AMQPUri = with_own(front, query)
            .parse()
            .map_err(|_| invalid("an invalid part or an unknown setting"))?;
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        uri.query.connection_timeout.get_or_insert(CONNECT);
        let mut address = Self {
            shown: shown(&uri),
            uri,
            ca: None,
            cert: None,
            key: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            address.set(pair)?;
        }
        match address.cert.is_some() == address.key.is_some() {
            true => Ok(address),
            false => Err(invalid("only one of `cert` and `key`")),
        }
    }

    fn set(&mut self, pair: &str) -> Result<()> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let place = match name {
            "ca" => &mut self.ca,
            "cert" => &mut self.cert,
            "key" => &mut self.key,
            own if OWN.contains(&own) => return Ok(()),
            other => return Err(invalid(&format!("`{other}`"))),
        };
        let decoded = percent_decode_str(value).decode_utf8();
        let decoded = decoded.map_err(|_| invalid("a `%` escape that is not UTF-8"))?;
        *place = Some(decoded.into_owned().into());
        Ok(())
    }

    pub(super) fn is_tls(&self) -> bool {
        self.uri.scheme == AMQPScheme::AMQPS
    }

    /// Reads the TLS files again for each connection, because certificates are renewed.
    pub(super) fn tls(&self) -> Result<OwnedTLSConfig> {
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some(OwnedIdentity::PKCS8 {
                pem: read(cert)?.into_bytes(),
                key: read(key)?.into_bytes(),
            }),
            _ => None,
        };
        Ok(OwnedTLSConfig {
            identity,
            cert_chain: self.ca.as_ref().map(read).transpose()?,
        })
    }
}

/// The address with only the query parameters that the AMQP client knows.
fn with_own(front: &str, query: &str) -> String {
    let name = |pair: &str| pair.split('=').next().unwrap_or_default().to_owned();
    let pairs = query.split('&').filter(|pair| OWN.contains(&&*name(pair)));
    let pairs: Vec<_> = pairs.collect();
    match pairs.is_empty() {
        true => front.to_owned(),
        false => format!("{front}?{}", pairs.join("&")),
    }
}

fn shown(uri: &AMQPUri) -> String {
    let scheme = match uri.scheme {
        AMQPScheme::AMQP => "amqp",
        AMQPScheme::AMQPS => "amqps",
    };
    let (host, port) = (&uri.authority.host, uri.authority.port);
    format!("{scheme}://{host}:{port}, virtual host {:?}", uri.vhost)
}

fn read(file: &PathBuf) -> Result<String> {
    fs::read_to_string(file).map_err(|error| {
        let message = format!(
            "cannot read {}: {error}; use a PEM file that this process has permission to read",
            file.display()
        );
        Error::new(ErrorKind::Invalid, message)
    })
}

fn invalid(what: &str) -> Error {
    let message = format!(
        "invalid RabbitMQ address: it has {what}; write amqp://USER:PASSWORD@HOST:5672/VHOST with %2f for the virtual host /, \
         amqps:// for TLS, and ?ca=FILE or cert=FILE&key=FILE if the server requires them"
    );
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    //! An address contains a password, which must not reach a log.

    use super::*;

    #[test]
    fn every_form_is_understood_and_shown_without_secrets() {
        for (url, shown, heartbeat) in [
            ("amqp://h", "amqp://h:5672, virtual host \"/\"", 10),
            (
                "amqp://a:secret@h:1/%2f",
                "amqp://h:1, virtual host \"/\"",
                10,
            ),
            (
                "amqps://a:secret@h/app?heartbeat=3&ca=x",
                "amqps://h:5671, virtual host \"app\"",
                3,
            ),
        ] {
            let address = Address::parse(url).unwrap();
            assert_eq!(address.shown, shown);
            assert_eq!(address.uri.query.heartbeat, Some(heartbeat));
        }
    }

    #[test]
    fn invalid_address_is_reported_without_the_password() {
        for (url, words) in [
            ("http://a:secret@h", "an unknown setting"),
            ("amqp://a:secret@h:65536", "an unknown setting"),
            ("amqp://a:secret@h?heartbeat=often", "an unknown setting"),
            ("amqp://a:secret@h?tls=1", "`tls`"),
            ("amqp://a:secret@h?cert=x", "`cert` and `key`"),
            ("amqp://a:aa?secret@h", "? as %3F"),
            ("amqp://a:aa#secret@h", "# as %23"),
            ("amqp://a:secret", "port that is not a number"),
        ] {
            let Err(error) = Address::parse(url) else {
                panic!("{url} was taken");
            };
            assert!(error.to_string().contains(words), "{url}: {error}");
            assert!(!error.to_string().contains("secret"), "{url}: {error}");
        }
    }
}
