//! Parses the NATS address: servers, credentials and TLS files.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use refrain::{Error, ErrorKind, Result, policy};

/// Parsed NATS address; the password is kept apart, so that it never reaches a log.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Address {
    /// Each as `nats://HOST:PORT` or `tls://HOST:PORT`.
    pub(super) servers: Vec<String>,
    pub(super) is_tls: bool,
    pub(super) user: Option<User>,
    pub(super) credentials: Option<PathBuf>,
    pub(super) ca: Option<PathBuf>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

#[derive(PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) enum User {
    Password(String, String),
    Token(String),
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self> {
        policy::Address::new(url).check()?;
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("no scheme"))?;
        let is_tls = match scheme {
            "nats" => false,
            "tls" | "nats+tls" => true,
            other => return Err(invalid(&format!("the scheme `{other}`"))),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let authority = rest.trim_end_matches('/');
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(self::user(user)?), hosts),
            None => (None, authority),
        };
        let mut address = Self {
            servers: servers(hosts, is_tls)?,
            is_tls,
            user,
            ..Self::default()
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            address.set(pair)?;
        }
        match address.cert.is_some() == address.key.is_some() {
            true => Ok(address),
            false => Err(invalid("only one of `cert` and `key`")),
        }
    }

    /// The address for messages and logs: servers only, no credentials.
    pub(super) fn shown(&self) -> String {
        self.servers.join(",")
    }

    fn set(&mut self, pair: &str) -> Result<()> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let place = match name {
            "credentials" => &mut self.credentials,
            "ca" => &mut self.ca,
            "cert" => &mut self.cert,
            "key" => &mut self.key,
            other => return Err(invalid(&format!("`{other}`"))),
        };
        if value.is_empty() {
            return Err(invalid(&format!("no file name after `{name}=`")));
        }
        *place = Some(decoded(value)?.into());
        Ok(())
    }
}

fn servers(hosts: &str, is_tls: bool) -> Result<Vec<String>> {
    let scheme = if is_tls { "tls" } else { "nats" };
    let hosts: Vec<_> = hosts.split(',').map(str::trim).collect();
    if hosts
        .iter()
        .any(|host| host.is_empty() || host.contains('/'))
    {
        return Err(invalid("no host, or a path after the host"));
    }
    let servers = hosts.iter().map(|host| format!("{scheme}://{host}"));
    Ok(servers.collect())
}

fn user(text: &str) -> Result<User> {
    Ok(match text.split_once(':') {
        Some((name, password)) => User::Password(decoded(name)?, decoded(password)?),
        None => User::Token(decoded(text)?),
    })
}

fn decoded(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| invalid("a `%` escape that is not UTF-8"))?;
    Ok(decoded.into_owned())
}

fn invalid(what: &str) -> Error {
    let message = format!(
        "invalid NATS address: it has {what}; write nats://USER:PASSWORD@HOST:4222, nats://TOKEN@HOST, \
         tls://HOST, several hosts separated by commas, and ?credentials=FILE, ca=FILE or cert=FILE&key=FILE if the server requires them"
    );
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    //! A password may contain `@`: it must neither be cut there nor reach a log.

    use super::*;

    fn check(url: &str, shown: &str, user: Option<User>) {
        let address = Address::parse(url).unwrap();
        assert_eq!(address.shown(), shown, "{url}");
        assert_eq!(address.user, user, "{url}");
    }

    #[test]
    fn every_form_is_understood_and_shown_without_secrets() {
        let user = |name: &str, password: &str| Some(User::Password(name.into(), password.into()));
        check("nats://h", "nats://h", None);
        check("nats://h:1,i:2/", "nats://h:1,nats://i:2", None);
        check("tls://h:1", "tls://h:1", None);
        check("nats+tls://h", "tls://h", None);
        check("nats://a:b%40c@h", "nats://h", user("a", "b@c"));
        check("nats://a:b@c@h", "nats://h", user("a", "b@c"));
        check("nats://t@h", "nats://h", Some(User::Token("t".into())));
        check("nats://[::1]:4222", "nats://[::1]:4222", None);
    }

    #[test]
    fn parses_files_from_query_parameters() {
        let url = "tls://h?credentials=/run/app.creds&ca=ca.pem&cert=c.pem&key=k%20.pem";
        let address = Address::parse(url).unwrap();
        assert_eq!(address.credentials, Some("/run/app.creds".into()));
        assert_eq!(address.ca, Some("ca.pem".into()));
        assert_eq!(address.key, Some("k .pem".into()));
    }

    #[test]
    fn invalid_address_is_reported_without_the_password() {
        for (url, words) in [
            ("nats", "no scheme"),
            ("ws://a:secret@h", "`ws`"),
            ("nats://a:secret@", "no host, or a path"),
            ("nats://a:secret@h/path", "path"),
            ("nats://a:secret@h?tls=1", "`tls`"),
            ("nats://a:secret@h?cert=x", "`cert` and `key`"),
            ("nats://a:secret@h?ca=", "`ca=`"),
            ("nats://a:%ffsecret@h", "UTF-8"),
            ("nats://a:aa?secret@h", "? as %3F"),
            ("nats://a:aa#secret@h", "# as %23"),
            ("nats://h#secret", "# as %23"),
            ("nats://a:secret", "port that is not a number"),
        ] {
            let Err(error) = Address::parse(url) else {
                panic!("{url} was taken");
            };
            assert!(error.to_string().contains(words), "{url}: {error}");
            assert!(!error.to_string().contains("secret"), "{url}: {error}");
        }
    }
}
