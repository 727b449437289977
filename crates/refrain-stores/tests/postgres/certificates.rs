//! Client certificates, and SCRAM channel binding against a man in the middle.

use refrain::{ErrorKind, policy::Address};
use refrain_stores::{
    postgres::{Dial, Postgres},
    receipts::PostgresReceipts,
};
use std::{path::Path, sync::Arc};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    },
};

use crate::server::{Server, Setup};

/// Certificate authority.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pem: String,
}

/// Certificate and key, as PEM.
struct Signed {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new(vec![]).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = parameters.self_signed(&key).unwrap().pem();
        let issuer = rcgen::Issuer::new(parameters, key);
        Self { issuer, pem }
    }

    fn sign(&self, name: &str, algorithm: &'static rcgen::SignatureAlgorithm) -> Signed {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let mut parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let subject = &mut parameters.distinguished_name;
        subject.push(rcgen::DnType::CommonName, name);
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        Signed {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// Writes a file, and returns its path for an address.
fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

async fn check(address: &str, words: &[&str]) {
    let error = Postgres::open(address).await.unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{address}: {text}");
    for word in words {
        assert!(text.contains(word), "{address}: `{word}` is not in: {text}");
    }
    assert!(
        !text.contains("hunter2"),
        "the message contains the password: {text}"
    );
}

#[tokio::test]
async fn a_client_shows_its_certificate() {
    let (ours, others) = (Authority::new(), Authority::new());
    let kind = &rcgen::PKCS_ECDSA_P256_SHA256;
    let own = ours.sign("db.internal", kind);
    let server = Server::start(Setup {
        settings: &["ssl=on", "fsync=off", "ssl_ca_file=ca.pem"],
        files: &[
            ("server.crt", &own.certificate),
            ("server.key", &own.key),
            ("ca.pem", &ours.pem),
            ("pg_hba.conf", "hostssl all refrain 127.0.0.1/32 cert\n"),
        ],
        ..Setup::default()
    })
    .await;
    let folder = server.folder.path();
    let files = |name: &str, signed: &Signed| {
        let certificate = write(folder, &format!("{name}.pem"), &signed.certificate);
        let key = write(folder, &format!("{name}.key"), &signed.key);
        (certificate, key)
    };
    let (certificate, key) = files("refrain", &ours.sign("refrain", kind));
    let (stranger, strange_key) = files("stranger", &others.sign("refrain", kind));
    let (other_user, other_key) = files("other", &ours.sign("other", kind));
    let shown = |certificate: &str, key: &str| {
        server.url(
            "refrain",
            &format!("sslmode=require&sslcert={certificate}&sslkey={key}"),
        )
    };
    let right = shown(&certificate, &key);
    drop(Postgres::open(&right).await.unwrap());
    let receipts = Address::new(&right);
    PostgresReceipts::migrate(&receipts).await.unwrap();
    PostgresReceipts::open(&receipts).await.unwrap();

    let none = server.url("refrain", "sslmode=require");
    check(&none, &["certificate", "sslcert"]).await;
    check(&shown(&stranger, &strange_key), &["sslcert", "ssl_ca_file"]).await;
    check(&shown(&other_user, &other_key), &["sslcert", "pg_hba.conf"]).await;
    check(&shown(&certificate, &other_key), &["sslcert with sslkey"]).await;
    check(
        &shown(&certificate, "/nowhere.key"),
        &["cannot read sslkey=/nowhere.key"],
    )
    .await;
    check(
        &shown("/nowhere.pem", &key),
        &["cannot read sslcert=/nowhere.pem"],
    )
    .await;
    check(&server.url("refrain", "sslcert=/a.pem"), &["add sslkey"]).await;
    check(&server.url("refrain", "sslkey=/a.key"), &["add sslcert"]).await;
    let plain = format!("sslmode=disable&sslcert={certificate}&sslkey={key}");
    check(&server.url("refrain", &plain), &["sslmode=disable"]).await;
}

/// Man in the middle: terminates TLS with its own certificate, and relays everything, including the login.
async fn stand_between(server: u16, own: &Signed, trusts: &Authority) -> u16 {
    let certificate = CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
    let crypto = Arc::new(ring::default_provider());
    let taking = ServerConfig::builder_with_provider(crypto.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(trusts.pem.as_bytes()).unwrap();
    roots.add(authority).unwrap();
    let passing = ClientConfig::builder_with_provider(crypto)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (taking, passing) = (
        TlsAcceptor::from(Arc::new(taking)),
        TlsConnector::from(Arc::new(passing)),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let (taking, passing) = (taking.clone(), passing.clone());
            tokio::spawn(async move {
                // Both sides start with an SSLRequest, which is answered with one letter.
                let mut request = [0; 8];
                client.read_exact(&mut request).await?;
                let mut behind = TcpStream::connect(("127.0.0.1", server)).await?;
                behind.write_all(&request).await?;
                let mut letter = [0];
                behind.read_exact(&mut letter).await?;
                client.write_all(&letter).await?;
                let name = ServerName::try_from("db.internal").unwrap();
                let mut behind = passing.connect(name, behind).await?;
                let mut client = taking.accept(client).await?;
                copy_bidirectional(&mut client, &mut behind).await
            });
        }
    });
    port
}

#[tokio::test]
async fn a_login_is_bound_to_the_servers_certificate() {
    let (ours, others) = (Authority::new(), Authority::new());
    for kind in [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
    ] {
        let own = ours.sign("db.internal", kind);
        let server = Server::start(Setup {
            password: Some("hunter2"),
            settings: &["ssl=on", "fsync=off"],
            files: &[("server.crt", &own.certificate), ("server.key", &own.key)],
        })
        .await;
        let right = "refrain:hunter2";
        let bound = "sslmode=require&channel_binding=require";
        // The driver fails if channel binding was required but not used.
        drop(Postgres::open(&server.url(right, bound)).await.unwrap());

        let between = stand_between(server.port, &others.sign("evil", kind), &ours).await;
        let address = |binding: &str| {
            format!("postgres://{right}@127.0.0.1:{between}/postgres?sslmode=require{binding}")
        };
        let unbound = Dial::new(&address("&channel_binding=disable")).unwrap();
        unbound.look().await.unwrap();
        for binding in ["", "&channel_binding=prefer", "&channel_binding=require"] {
            check(
                &address(binding),
                &["channel binding", "check user and password"],
            )
            .await;
        }
        check(
            &server.url(right, "sslmode=disable&channel_binding=require"),
            &["sslmode=disable"],
        )
        .await;
    }
}

#[tokio::test]
async fn a_server_that_asks_for_no_password_is_bound_to_nothing() {
    let own = Authority::new().sign("db.internal", &rcgen::PKCS_ECDSA_P256_SHA256);
    let server = Server::start(Setup {
        settings: &["ssl=on", "fsync=off"],
        files: &[("server.crt", &own.certificate), ("server.key", &own.key)],
        ..Setup::default()
    })
    .await;
    let bound = server.url("refrain", "sslmode=require&channel_binding=require");
    check(
        &bound,
        &["channel binding", "SCRAM", "channel_binding=prefer"],
    )
    .await;
    drop(
        Postgres::open(&server.url("refrain", "sslmode=require"))
            .await
            .unwrap(),
    );
}
