//! A cluster with TLS, SASL and certificates of a private CA, and all compression codecs.

use std::time::Duration;

use rdkafka::{
    ClientConfig,
    producer::{FutureProducer, FutureRecord},
};
use refrain::{
    ErrorKind,
    consume::{Message, Publisher as _, Source},
};
use refrain_brokers::kafka::Kafka;

use crate::{
    Cluster, SETTINGS,
    gate::{Gate, Login, PASSWORD, USER},
    pull,
    support::{pki::Pki, text},
};

/// A source with these settings as query parameters.
fn source(gate: &Gate, settings: &str) -> Source {
    let url = format!("kafka://127.0.0.1:{}?{SETTINGS}&{settings}", gate.port);
    Source::new(url, "orders", "c")
}

fn login(mechanism: &str, password: &str) -> String {
    let password = password.replace('/', "%2F");
    format!("sasl.mechanism={mechanism}&sasl.username={USER}&sasl.password={password}")
}

async fn check(cluster: &Cluster, gate: &Gate, settings: &str) {
    let broker = Kafka::connect(&source(gate, settings)).await.unwrap();
    let sent = Message::new(settings.to_owned());
    broker.publish("orders", &sent).await.unwrap();
    let delivery = pull(&broker, 1).await.remove(0);
    assert_eq!(text(&delivery), settings);
    delivery.ticket.ack().await.unwrap();
    refrain::consume::Broker::close(&broker).await.unwrap();
    let _ = cluster;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_pass_over_tls_and_with_every_login() {
    let cluster = Cluster::start();
    cluster.make("orders", 1);
    let pki = Pki::new();
    let ca = format!("ssl.ca.location={}", pki.show("ca.pem"));
    for (asked, tls, settings) in [
        (Login::None, true, format!("security.protocol=ssl&{ca}")),
        (
            Login::Plain,
            true,
            format!(
                "security.protocol=sasl_ssl&{ca}&{}",
                login("PLAIN", PASSWORD)
            ),
        ),
        (
            Login::Scram256,
            false,
            format!(
                "security.protocol=sasl_plaintext&{}",
                login("SCRAM-SHA-256", PASSWORD)
            ),
        ),
        (
            Login::Scram512,
            true,
            format!(
                "security.protocol=sasl_ssl&{ca}&{}",
                login("SCRAM-SHA-512", PASSWORD)
            ),
        ),
    ] {
        let gate = Gate::start(&cluster.servers, tls.then_some(&pki), asked).await;
        check(&cluster, &gate, &settings).await;
        let logins = *gate.logins.lock().unwrap();
        assert_eq!(logins > 0, asked != Login::None, "{asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn untrusted_certificate_is_reported() {
    let cluster = Cluster::start();
    cluster.make("orders", 1);
    let (pki, other) = (Pki::new(), Pki::new());
    let gate = Gate::start(&cluster.servers, Some(&pki), Login::None).await;
    let stranger = format!(
        "security.protocol=ssl&ssl.ca.location={}",
        other.show("ca.pem")
    );
    let error = Kafka::connect(&source(&gate, &stranger)).await.unwrap_err();
    let told = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{told}");
    assert!(told.contains("certificate verify failed"), "{told}");
    assert!(told.contains("?ssl.ca.location=FILE"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_password_is_reported_and_not_shown() {
    let cluster = Cluster::start();
    cluster.make("orders", 1);
    let gate = Gate::start(&cluster.servers, None, Login::Scram256).await;
    let settings = format!(
        "security.protocol=sasl_plaintext&{}",
        login("SCRAM-SHA-256", "sesame")
    );
    let error = Kafka::connect(&source(&gate, &settings)).await.unwrap_err();
    let told = error.to_string();
    assert!(
        told.contains("check user, password and permissions"),
        "{told}"
    );
    assert!(!told.contains("sesame"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_compression_is_read() {
    let cluster = Cluster::start();
    cluster.make("orders", 1);
    let broker = cluster.join("orders", "c").await;
    for compression in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let producer: FutureProducer = ClientConfig::new()
            .set("bootstrap.servers", &cluster.servers)
            .set("compression.type", compression)
            .create()
            .unwrap();
        // Long enough that compression shrinks it: librdkafka sends smaller messages uncompressed.
        let body = compression.repeat(1_000);
        let record = FutureRecord::<(), _>::to("orders").payload(&body);
        producer
            .send(record, Duration::from_secs(30))
            .await
            .unwrap();
        let delivery = pull(&broker, 1).await.remove(0);
        assert_eq!(text(&delivery), body, "{compression}");
        delivery.ticket.ack().await.unwrap();
    }
}
