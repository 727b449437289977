//! Addresses given by the user: checks that a server is reachable, and hides passwords.

use std::{
    io,
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(2);

/// Checks that a server listens at the address; an address without a host is not checked.
pub(super) fn reach(url: &str, default_port: u16) -> io::Result<()> {
    let Some((host, port)) = host_and_port(url, default_port) else {
        return Ok(());
    };
    let mut last = io::Error::other("unknown host");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    let message = format!("cannot connect to {host}:{port}: {last}");
    Err(io::Error::new(last.kind(), message))
}

/// The first host of an address, and its port.
fn host_and_port(url: &str, default_port: u16) -> Option<(&str, u16)> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let hosts = authority.rsplit('@').next()?;
    let host = hosts.split(',').next().filter(|host| !host.is_empty())?;
    match host.strip_prefix('[') {
        Some(v6) => {
            let (host, rest) = v6.split_once(']')?;
            let port = rest.strip_prefix(':').map(str::parse);
            Some((host, port.unwrap_or(Ok(default_port)).ok()?))
        }
        None => match host.rsplit_once(':') {
            Some((host, port)) => Some((host, port.parse().ok()?)),
            None => Some((host, default_port)),
        },
    }
}

/// The address without its password.
pub(super) fn redacted(url: &str) -> String {
    let parts = url.split_once("://").and_then(|(scheme, rest)| {
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let at = rest[..end].rfind('@')?;
        let (user, _) = rest[..at].split_once(':')?;
        Some(format!("{scheme}://{user}:…{}", &rest[at..]))
    });
    parts.unwrap_or_else(|| url.into())
}

#[cfg(test)]
mod tests {
    //! Many people read the log of a test run, so it must not contain a password.

    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        for (url, shown) in [
            ("postgres://a:b:c@h:1/d?x=y", "postgres://a:…@h:1/d?x=y"),
            ("redis://:b@h", "redis://:…@h"),
            ("redis://h:1/@", "redis://h:1/@"),
            ("postgres://a@h/d", "postgres://a@h/d"),
            ("none", "none"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }

    #[test]
    fn host_and_port_are_found_in_every_form() {
        for (url, expected) in [
            ("redis://h", Some(("h", 7))),
            ("redis://u:p@h:1/0", Some(("h", 1))),
            ("postgres://u:p%40@h:1,i:2/d", Some(("h", 1))),
            ("redis://[::1]:5", Some(("::1", 5))),
            ("redis://[::1]", Some(("::1", 7))),
            ("postgres:///d?host=/run", None),
            ("h:1", None),
        ] {
            assert_eq!(host_and_port(url, 7), expected, "{url}");
        }
    }

    #[test]
    fn a_server_that_is_not_there_is_named() {
        let port = refrain_servers::free_port().unwrap();
        let error = reach(&format!("redis://127.0.0.1:{port}"), 1).unwrap_err();
        assert!(error.to_string().contains(&format!("127.0.0.1:{port}")));
    }
}
