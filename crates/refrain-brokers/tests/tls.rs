//! Brokers with TLS and certificates of a private CA. An error about a certificate must say so:
//! "unreachable" would send an operator to the firewall.

#![cfg(all(feature = "nats", feature = "amqp"))]

use refrain::consume::{Message, Source};
use refrain_testkit::servers::{PrivateNats, PrivateRabbit, free_port};

mod support;
use support::{one, pki::Pki, text};

/// Publishes a message and receives it.
async fn check(url: &str) {
    let source = Source::new(url, "orders", "worker");
    let broker = refrain_brokers::open(&source).await.unwrap();
    let message = Message::new(url.to_owned());
    broker.publish("orders", &message).await.unwrap();
    let delivery = one(&*broker).await;
    assert_eq!(text(&delivery), url);
    delivery.ticket.ack().await.unwrap();
    broker.close().await.unwrap();
}

/// The connection fails, and the error names the certificate as the cause.
async fn refused(url: &str) {
    let source = Source::new(url, "orders", "worker");
    let error = refrain_brokers::open(&source).await.unwrap_err();
    let told = error.to_string();
    assert!(told.contains("certificate"), "{url}: {told}");
    assert!(told.contains("ca=FILE"), "{url}: {told}");
    assert!(
        !told.contains("check the address, and that the server is running"),
        "{url}: {told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_over_tls() {
    let (pki, other) = (Pki::new(), Pki::new());
    let settings = |verify: bool| {
        format!(
            "{{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: {verify} }}",
            pki.path("server.pem"),
            pki.path("server.key"),
            pki.path("ca.pem")
        )
    };
    let (ca, strange) = (pki.show("ca.pem"), other.show("ca.pem"));
    let own = format!(
        "cert={}&key={}",
        pki.show("client.pem"),
        pki.show("client.key")
    );
    let server = PrivateNats::start_with(&[("tls", &settings(false))]).unwrap();
    let host = format!("127.0.0.1:{}", server.port());
    check(&format!("tls://{host}?ca={ca}")).await;
    check(&format!("nats+tls://{host}?ca={ca}")).await;
    // The server requires TLS, with or without `tls` in the address.
    check(&format!("nats://{host}?ca={ca}")).await;
    refused(&format!("nats+tls://{host}?ca={strange}")).await;
    refused(&format!("nats://{host}?ca={strange}")).await;

    let server = PrivateNats::start_with(&[("tls", &settings(true))]).unwrap();
    let host = format!("127.0.0.1:{}", server.port());
    check(&format!("nats+tls://{host}?ca={ca}&{own}")).await;
    refused(&format!("nats+tls://{host}?ca={ca}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_over_tls() {
    let (pki, other) = (Pki::new(), Pki::new());
    let port = free_port().unwrap();
    let files = ["ca.pem", "server.pem", "server.key"].map(|name| pki.show(name));
    let listener = format!("127.0.0.1:{port}");
    let settings = |needs_client: &'static str| {
        [
            ("listeners.ssl.default", &*listener),
            ("ssl_options.cacertfile", &*files[0]),
            ("ssl_options.certfile", &*files[1]),
            ("ssl_options.keyfile", &*files[2]),
            ("ssl_options.verify", "verify_peer"),
            ("ssl_options.fail_if_no_peer_cert", needs_client),
        ]
    };
    let mut server = PrivateRabbit::start_with(&settings("false")).unwrap();
    let (ca, strange) = (pki.show("ca.pem"), other.show("ca.pem"));
    let own = format!(
        "cert={}&key={}",
        pki.show("client.pem"),
        pki.show("client.key")
    );
    let url = |query: String| format!("amqps://guest:guest@localhost:{port}/%2f?{query}");
    check(&url(format!("ca={ca}"))).await;
    check(&url(format!("ca={ca}&{own}"))).await;
    refused(&url(format!("ca={strange}"))).await;
    server.restart_with(&settings("true")).unwrap();
    check(&url(format!("ca={ca}&{own}"))).await;
    // The server closes the connection, often before the client has read the reason.
    let source = Source::new(url(format!("ca={ca}")), "orders", "worker");
    let error = refrain_brokers::open(&source).await.unwrap_err();
    assert!(error.to_string().contains("cert=FILE"), "{error}");
}
