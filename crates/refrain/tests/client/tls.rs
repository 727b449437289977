//! A client that accepts any certificate sends keys and credentials to an attacker: TLS to a server with a trusted
//! certificate, and to one without.

use std::sync::Arc;

use refrain::{
    Client,
    client::{HyperTransport, Journal},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer},
    },
};

use crate::{
    server::{Server, Step},
    stage::{Stage, key, limits, post, retry, told},
};

/// Starts TLS in front of a server; returns its address and certificate.
async fn secured(server: &Server) -> (String, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate: CertificateDer<'static> = made.cert.into();
    let private = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], private)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "https://localhost:{}/pay",
        listener.local_addr().unwrap().port()
    );
    let inner = server.address;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut outside) = acceptor.accept(stream).await else {
                    return;
                };
                let mut inside = TcpStream::connect(inner).await.unwrap();
                let _ = copy_bidirectional(&mut outside, &mut inside).await;
            });
        }
    });
    (url, certificate)
}

fn config(trusted: &CertificateDer<'static>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

#[tokio::test]
async fn a_server_that_is_trusted_is_paid_and_another_is_sent_nothing() {
    let (stage, server) = (Stage::new(), Server::start([Step::Close]).await);
    let (url, certificate) = secured(&server).await;
    let (_, stranger) = secured(&server).await;
    for (trusted, ending, sent) in [
        (stranger, "not run: AttemptsUsedUp", 0),
        (certificate, "answered 200", 2),
    ] {
        let transport = HyperTransport::with_tls_config(config(&trusted), limits());
        let journal = Journal::open(&stage.path).unwrap();
        let client = Client::new(transport, journal).with_retry(retry());
        let ended = client
            .call(key("order-7"))
            .send(post(&url, "20"))
            .await
            .unwrap();
        assert_eq!(told(&ended), ending, "{ended:?}");
        assert_eq!(server.seen().len(), sent);
    }
}

#[tokio::test]
async fn without_tls_nothing_is_sent_to_an_address_that_wants_it() {
    let (stage, server) = (Stage::new(), Server::start([]).await);
    let url = format!("https://{}/pay", server.address);
    let ending = stage
        .client()
        .call(key("order-7"))
        .send(post(url, "20"))
        .await
        .unwrap();
    assert_eq!(told(&ending), "not run: AttemptsUsedUp");
    assert!(server.seen().is_empty());
}
