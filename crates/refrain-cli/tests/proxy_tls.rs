//! TLS towards clients: HTTP/2 and HTTP/1.1 by ALPN, certificates that are replaced while connections are open, clients
//! that never finish their handshake, and clients that are told apart by their certificates.

mod support;
mod tls_support;

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use support::{Proxy, Starting, Upstream, until};
use tls_support::{Authority, TlsClient, keyed};

/// A proxy with TLS in front of an upstream.
fn start(authority: &Authority, upstream: &Upstream, more: &str) -> Proxy {
    authority.issue("server");
    Proxy::start(upstream.address, &authority.table("tls", "server", more))
}

fn text(output: &std::process::Output) -> String {
    let parts = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(parts).unwrap()
}

#[test]
fn serves_both_versions_of_http_over_tls_and_replays_across_them() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let proxy = start(&authority, &upstream, "");
    let url = format!("https://{}/pay", proxy.address);
    for (version, expected, is_replay) in [
        ("--http2", "HTTP/2 200", false),
        ("--http1.1", "HTTP/1.1 200", true),
        ("--http2", "HTTP/2 200", true),
    ] {
        let args = [
            "-i",
            version,
            "-H",
            "Idempotency-Key: a",
            "-d",
            "paid",
            &url,
        ];
        let shown = text(&authority.curl(&args));
        assert!(shown.starts_with(expected), "{version}: {shown}");
        assert!(shown.ends_with("paid"), "{shown}");
        assert_eq!(
            shown.contains("idempotent-replayed: true"),
            is_replay,
            "{shown}"
        );
    }
    assert_eq!(upstream.count(), 1);
    assert_eq!(
        upstream.seen()[0].header("x-forwarded-proto"),
        Some("https")
    );
}

#[test]
fn alpn_prefers_http2_and_clients_without_it_are_served() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let proxy = start(&authority, &upstream, "");
    for (offered, chosen) in [
        (&["http/1.1", "h2"][..], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&[], None),
    ] {
        let config = authority.client(None, offered);
        let mut client = TlsClient::connect(proxy.address, config).unwrap();
        assert_eq!(client.protocol().as_deref(), chosen);
        if chosen != Some("h2") {
            let shown = client.call(&keyed("b")).unwrap();
            assert!(shown.starts_with("HTTP/1.1 200"), "{shown}");
        }
    }
    let config = authority.client(None, &["spdy/3"]);
    assert!(TlsClient::connect(proxy.address, config).is_err());
    assert_eq!(upstream.count(), 1);
}

#[test]
fn old_versions_of_tls_and_plain_http_are_rejected() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let proxy = start(&authority, &upstream, "");
    let url = format!("https://{}/", proxy.address);
    let old = authority.curl(&["--tlsv1.0", "--tls-max", "1.1", &url]);
    assert_ne!(old.status.code(), Some(0));
    let current = authority.curl(&["--tlsv1.2", "--tls-max", "1.2", &url]);
    assert_eq!(current.status.code(), Some(0), "{}", text(&current));
    let mut plain = TcpStream::connect(proxy.address).unwrap();
    plain.write_all(keyed("c").as_bytes()).unwrap();
    let mut received = Vec::new();
    let _ = plain.read_to_end(&mut received);
    assert!(!received.starts_with(b"HTTP"), "{received:?}");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_new_certificate_is_served_without_cutting_connections() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let old = authority.issue("server");
    let proxy = Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "memory:")
        .arg("--tls-certificate", authority.path("server.crt").display())
        .variable("REFRAIN_TLS_KEY", authority.path("server.key").display())
        .variable("REFRAIN_LOG", "info")
        .start();
    let connect = || TlsClient::connect(proxy.address, authority.client(None, &[])).unwrap();
    let mut open = connect();
    assert!(open.serves(&old));
    open.call(&keyed("d")).unwrap();
    let (certificate, key, new) = authority.issued("server");
    // A key that does not belong to the certificate, and half a certificate: both keep the pair in use.
    fs::write(authority.path("server.key"), &key).unwrap();
    until("the wrong pair is reported", || {
        proxy.errors().contains("server.crt with ")
    });
    assert!(connect().serves(&old));
    fs::write(
        authority.path("server.crt"),
        &certificate[..certificate.len() / 2],
    )
    .unwrap();
    until("the half file is reported", || {
        proxy.errors().contains("server.crt: ")
    });
    assert!(connect().serves(&old));
    fs::write(authority.path("server.crt"), &certificate).unwrap();
    until("the new certificate is served", || connect().serves(&new));
    let shown = open.call(&keyed("d")).unwrap();
    assert!(shown.contains("idempotent-replayed: true"), "{shown}");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn silent_and_slow_clients_do_not_keep_others_out() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let proxy = start(
        &authority,
        &upstream,
        "handshakes_max = 8\nhandshake_timeout = \"1h\"",
    );
    // More than the limit; half of them have begun a handshake.
    let silent: Vec<_> = (0..32)
        .map(|at| {
            let mut stream = TcpStream::connect(proxy.address).unwrap();
            if at % 2 == 0 {
                stream.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
            }
            stream
        })
        .collect();
    let mut client = TlsClient::connect(proxy.address, authority.client(None, &[])).unwrap();
    let shown = client.call(&keyed("e")).unwrap();
    assert!(shown.starts_with("HTTP/1.1 200"), "{shown}");
    let displaced = || proxy.metric("refrain_tls_handshakes_total{result=\"displaced\"}");
    until("the oldest handshakes have ended", || displaced() >= 24.0);
    drop(silent);
}

#[test]
fn a_handshake_has_a_time_limit() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let proxy = start(&authority, &upstream, "handshake_timeout = \"50ms\"");
    let mut silent = TcpStream::connect(proxy.address).unwrap();
    silent.set_read_timeout(Some(support::PATIENCE)).unwrap();
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0, "closed");
    until("it is counted", || {
        proxy.metric("refrain_tls_handshakes_total{result=\"timeout\"}") >= 1.0
    });
}

#[test]
fn each_certificate_has_a_scope_of_its_own() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    for name in ["server", "anna", "bert"] {
        authority.issue(name);
    }
    let ca = format!("client_ca = {:?}", authority.path("ca.pem"));
    let settings = authority.table("tls", "server", &ca)
        + "[[operation]]\nmatch = \"POST /pay\"\nscope = \"tls:subject\"\ncredential = \"tls:subject\"\n";
    let proxy = Proxy::start(upstream.address, &settings);
    let call = |name| {
        let config = authority.client(Some(name), &[]);
        let mut client = TlsClient::connect(proxy.address, config).unwrap();
        client.call(&keyed("one")).unwrap()
    };
    let is_replay = |shown: String| shown.contains("idempotent-replayed: true");
    assert!(!is_replay(call("anna")));
    assert!(is_replay(call("anna")));
    assert!(!is_replay(call("bert")), "another client's replay");
    assert!(is_replay(call("bert")));
    // A renewed certificate is the same client.
    authority.issue("anna");
    assert!(is_replay(call("anna")));
    assert_eq!(upstream.count(), 2);
    // Without a certificate, or with one of another authority, nothing is sent.
    let other = Authority::new();
    other.issue("anna");
    for config in [authority.client(None, &[]), foreign(&authority, &other)] {
        let called = TlsClient::connect(proxy.address, config)
            .and_then(|mut client| client.call(&keyed("one")));
        assert!(called.is_err(), "{called:?}");
    }
    assert_eq!(upstream.count(), 2);
}

/// A client that trusts the server's authority, and has a certificate of another one.
fn foreign(
    authority: &Authority,
    other: &Authority,
) -> std::sync::Arc<tokio_rustls::rustls::ClientConfig> {
    for end in ["crt", "key"] {
        let name = format!("anna.{end}");
        fs::copy(other.path(&name), authority.path(&format!("foreign.{end}"))).unwrap();
    }
    authority.client(Some("foreign"), &[])
}

#[test]
fn another_certificate_in_the_same_scope_gets_no_replay() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    for name in ["server", "anna", "bert"] {
        authority.issue(name);
    }
    let ca = format!("client_ca = {:?}", authority.path("ca.pem"));
    let settings = authority.table("tls", "server", &ca)
        + "[policy]\nscope = \"none\"\ncredential = \"tls:subject\"\n";
    let proxy = Proxy::start(upstream.address, &settings);
    let call = |name| {
        let config = authority.client(Some(name), &[]);
        let mut client = TlsClient::connect(proxy.address, config).unwrap();
        client.call(&keyed("one")).unwrap()
    };
    assert!(call("anna").starts_with("HTTP/1.1 200"));
    let refused = call("bert");
    assert!(refused.starts_with("HTTP/1.1 409"), "{refused}");
    assert!(refused.contains("credential-changed"), "{refused}");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn an_optional_certificate_may_be_missing() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let ca = authority.path("ca.pem");
    let more = format!("client_ca = {ca:?}\nclient_auth = \"optional\"");
    let proxy = start(&authority, &upstream, &more);
    let config = authority.client(None, &[]);
    let mut client = TlsClient::connect(proxy.address, config).unwrap();
    assert!(
        client
            .call(&keyed("f"))
            .unwrap()
            .starts_with("HTTP/1.1 200")
    );
}

#[test]
fn unusable_settings_and_files_are_reported_at_the_start() {
    let authority = Authority::new();
    authority.issue("server");
    let table = |more: &str| authority.table("tls", "server", more);
    let scope = "[policy]\nscope = \"tls:subject\"\n";
    let ca = format!("client_ca = {:?}\n", authority.path("ca.pem"));
    for (settings, code, message) in [
        (
            scope.to_owned(),
            64,
            "needs a verified certificate of every client",
        ),
        (
            table("") + scope,
            64,
            "needs a verified certificate of every client",
        ),
        (
            table(&(ca + "client_auth = \"optional\"")) + scope,
            64,
            "needs a verified certificate of every client",
        ),
        (
            table("client_auth = \"required\""),
            64,
            "no effect without `client_ca`",
        ),
        (
            "[tls]\ncertificate = \"a\"\n".into(),
            64,
            "a certificate and its key",
        ),
        (
            table("handshake_max = 1"),
            64,
            "did you mean `handshakes_max`?",
        ),
        (
            "[tls]\ncertificate = \"a.pem\"\nkey = \"b.pem\"\n".into(),
            69,
            "cannot use a.pem: ",
        ),
        (
            "[admin_tls]\ncertificate = \"a.pem\"\nkey = \"b.pem\"\n".into(),
            69,
            "cannot use a.pem: ",
        ),
    ] {
        let starting = Starting::new()
            .arg("--upstream", "http://127.0.0.1:9")
            .arg("--store", "memory:")
            .file(&settings);
        let (status, said) = starting.refused();
        assert_eq!(status, Some(code), "{settings}: {said}");
        assert!(said.contains(message), "{settings}: {said}");
    }
}

#[test]
fn the_content_of_a_key_is_never_printed() {
    let authority = Authority::new();
    let (_, key, _) = authority.issued("server");
    let starting = Starting::new()
        .arg("--upstream", "http://127.0.0.1:9")
        .arg("--tls-certificate", "tls.crt")
        .variable("REFRAIN_TLS_KEY", &key);
    let (status, said) = starting.refused();
    assert_eq!(status, Some(64), "{said}");
    assert!(
        said.contains("REFRAIN_TLS_KEY has the content of a file"),
        "{said}"
    );
    assert!(!said.contains("PRIVATE KEY"), "{said}");
}

#[test]
fn a_key_that_every_user_can_read_is_reported() {
    use std::os::unix::fs::PermissionsExt as _;
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    authority.issue("server");
    for (mode, is_warned) in [(0o644, true), (0o640, false)] {
        let key = authority.path("server.key");
        fs::set_permissions(key, fs::Permissions::from_mode(mode)).unwrap();
        let proxy = Proxy::start(upstream.address, &authority.table("tls", "server", ""));
        assert_eq!(proxy.errors().contains("chmod o-r"), is_warned, "{mode:o}");
    }
}

#[test]
fn tunnels_work_over_tls() {
    let upstream = Upstream::start(|_, stream| {
        let switch =
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        stream.write_all(switch.as_bytes()).unwrap();
        let mut word = [0; 4];
        stream.read_exact(&mut word).unwrap();
        stream.write_all(&word).unwrap();
        support::AfterResponse::Close
    });
    let authority = Authority::new();
    let proxy = start(&authority, &upstream, "");
    let mut client = TlsClient::connect(proxy.address, authority.client(None, &[])).unwrap();
    let upgrade =
        "GET /chat HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    let shown = client.call(upgrade).unwrap();
    assert!(shown.starts_with("HTTP/1.1 101"), "{shown}");
    client.0.write_all(b"ping").unwrap();
    let mut word = [0; 4];
    client.0.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"ping");
}

#[test]
fn the_admin_listener_serves_tls_and_secure_cookies() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    authority.issue("server");
    let settings = authority.table("admin_tls", "server", "");
    let proxy = Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "memory:")
        .variable("REFRAIN_ADMIN_TOKEN", "secret")
        .file(&settings)
        .start();
    let url = |path: &str| format!("https://{}{path}", proxy.admin);
    let live = authority.curl(&[&url("/livez")]);
    assert_eq!(live.status.code(), Some(0), "{}", text(&live));
    let login = text(&authority.curl(&["-i", &url("/login")])).to_lowercase();
    let cookie = login.lines().find(|line| line.starts_with("set-cookie:"));
    assert!(cookie.is_some_and(|it| it.contains("; secure")), "{login}");
    let address = url("");
    let ca = authority.path("ca.pem");
    let refrain = |args: &[&str], trusted: Option<&std::path::Path>| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_refrain"));
        command
            .args(args)
            .args(["--admin", &address, "--token", "secret"]);
        if let Some(file) = trusted {
            command.env("SSL_CERT_FILE", file);
        }
        let output = command.output().unwrap();
        (output.status.code(), text(&output))
    };
    let ca = ca.as_path();
    let named = ca.to_str().unwrap();
    for (args, trusted) in [
        (&["records", "list", "--cacert", named][..], None),
        (&["records", "list"], Some(ca)),
        (&["top", "--once", "--cacert", named], None),
    ] {
        let (code, said) = refrain(args, trusted);
        assert_eq!(code, Some(0), "{args:?}: {said}");
    }
    let other = Authority::new();
    let (code, said) = refrain(&["records", "list"], Some(&other.path("ca.pem")));
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains("certificate"), "{said}");
}

#[test]
fn the_admin_listener_can_require_certificates() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    for name in ["server", "anna"] {
        authority.issue(name);
    }
    let ca = authority.path("ca.pem");
    let settings = authority.table("admin_tls", "server", &format!("client_ca = {ca:?}"));
    let proxy = Proxy::start(upstream.address, &settings);
    // One file with certificate and key.
    let parts = ["anna.crt", "anna.key"].map(|name| fs::read(authority.path(name)).unwrap());
    let own = authority.path("anna.pem");
    fs::write(&own, parts.concat()).unwrap();
    let address = format!("https://{}", proxy.admin);
    let list = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_refrain"));
        let common = ["records", "list", "--admin", &address, "--cacert"];
        let output = command.args(common).arg(&ca).args(more).output().unwrap();
        (output.status.code(), text(&output))
    };
    let (code, said) = list(&["--cert", own.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = list(&[]);
    assert_eq!(code, Some(69), "{said}");
}
