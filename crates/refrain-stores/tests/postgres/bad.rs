//! Operator errors: each has a message that names the cause and the fix, without the password.

use refrain::{ErrorKind, Store as _, policy::Address};
use refrain_stores::{
    postgres::{Dial, Postgres, migrate, script},
    receipts::PostgresReceipts,
};
use refrain_testkit::wait;

use crate::{
    server::{Server, Setup},
    support::{Schema, connect, url, with_query},
};

async fn check(address: &str, kind: ErrorKind, words: &[&str]) {
    let error = Postgres::open(address).await.unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{address}: {text}");
    for word in words {
        assert!(text.contains(word), "{address}: `{word}` is not in: {text}");
    }
    assert!(
        !text.contains("hunter2"),
        "the message contains the password: {text}"
    );
}

/// Receipts accept the same addresses, and report the same errors.
async fn check_receipts(address: &str, is_fine: bool) {
    let address = Address::new(address);
    let opened = match PostgresReceipts::migrate(&address).await {
        Ok(()) => PostgresReceipts::open(&address).await.map(drop),
        Err(error) => Err(error),
    };
    match opened {
        Ok(()) => assert!(is_fine, "{address}"),
        Err(error) => {
            let text = error.to_string();
            assert!(!is_fine && text.contains("certificate"), "{text}");
            assert!(text.contains("receipts at postgres://"), "{text}");
            assert!(
                !text.contains("hunter2"),
                "the message contains the password: {text}"
            );
        }
    }
}

#[tokio::test]
async fn addresses_that_cannot_be_read_are_explained() {
    let invalid = ErrorKind::Invalid;
    for (address, words) in [
        (
            "postgres://app:hunter2@db/app?schema=Bad-Name",
            ["schema=Bad-Name", "lower-case"],
        ),
        (
            "postgres://app:hunter2@db/app?schema=",
            ["schema=", "lower-case"],
        ),
        (
            "postgres://app:hunter2@db/app?schema=pg_mine",
            ["schema=pg_mine", "not with pg_"],
        ),
        (
            "postgres://app:hunter2@db/app?sslmode=maybe",
            ["sslmode=maybe", "verify-full"],
        ),
        (
            "postgres://app:hunter2@db/app?colour=red",
            ["colour", "write postgres://"],
        ),
        (
            "postgres://app:hunter2@db:none/app",
            ["a port that is not a number", "percent-encode"],
        ),
        ("postgres:///app", ["has no host", "write postgres://"]),
        (
            "postgres://app:hunter2@db/app?sslmode=verify-full&sslrootcert=/no/such/file",
            ["/no/such/file", "PEM"],
        ),
    ] {
        check(address, invalid, &words).await;
    }
}

#[tokio::test]
async fn unavailable_servers_are_explained() {
    let own = url();
    let (front, rest) = own.split_once("://").unwrap();
    let (user, place) = rest.split_once('@').unwrap();
    let (server, database) = place.split_once('/').unwrap();
    let at =
        |user: &str, server: &str, database: &str| format!("{front}://{user}@{server}/{database}");
    let down = ErrorKind::Unavailable;
    check(
        &at(user, "no-such-host.invalid", database),
        down,
        &["no-such-host.invalid", "check host and port"],
    )
    .await;
    check(
        &at(user, "127.0.0.1:1", database),
        down,
        &["refused", "check host and port"],
    )
    .await;
    let none = at(user, server, "no_such_database");
    check(
        &none,
        ErrorKind::Invalid,
        &["no_such_database", "create the database"],
    )
    .await;
    let nobody = at("nobody_of_that_name", server, database);
    check(
        &nobody,
        ErrorKind::Invalid,
        &["nobody_of_that_name", "check user and password"],
    )
    .await;
    let tls = with_query(&own, "sslmode=require");
    check(&tls, ErrorKind::Invalid, &["TLS", "sslmode"]).await;
    // `sslmode=prefer` falls back to no TLS.
    let schema = Schema::new();
    let prefers = format!("{}&sslmode=prefer", schema.url());
    Postgres::open(&prefers).await.unwrap();
}

#[tokio::test]
async fn schemas_that_are_not_ours_to_use_are_left_alone() {
    let admin = connect(&url()).await;
    let newer = Schema::new();
    drop(newer.open().await);
    admin
        .batch_execute(&format!("UPDATE {}.meta SET version = 99", newer.name))
        .await
        .unwrap();
    check(
        &newer.url(),
        ErrorKind::Invalid,
        &["version 99", "upgrade Refrain"],
    )
    .await;
    for tables in [
        "CREATE TABLE records (mine int)",
        "CREATE TABLE meta (mine int)",
        "CREATE TABLE meta (product text, version int); INSERT INTO meta VALUES ('other', 1)",
    ] {
        let foreign = Schema::new();
        let name = &foreign.name;
        let create =
            format!("CREATE SCHEMA {name}; SET search_path = {name}; {tables}; RESET search_path");
        admin.batch_execute(&create).await.unwrap();
        check(
            &foreign.url(),
            ErrorKind::Invalid,
            &["belongs to another application", "?schema="],
        )
        .await;
    }
}

#[tokio::test]
async fn missing_rights_are_named_with_what_a_dba_has_to_do() {
    let admin = connect(&url()).await;
    let role = format!("refrain_poor_{:x}", rand::random::<u32>());
    admin
        .batch_execute(&format!("CREATE ROLE {role} LOGIN"))
        .await
        .unwrap();
    let own = url();
    let (front, place) = own.split_once('@').unwrap();
    let front = front.split_once("://").unwrap().0;
    let schema = Schema::new();
    let poor = with_query(
        &format!("{front}://{role}@{place}"),
        &format!("schema={}", schema.name),
    );
    check(
        &poor,
        ErrorKind::Invalid,
        &["permission denied", "refrain migrate", "GRANT"],
    )
    .await;
    // The printed SQL and the named GRANTs are sufficient.
    admin.batch_execute(&script(&poor).unwrap()).await.unwrap();
    check(
        &poor,
        ErrorKind::Invalid,
        &["permission denied", "GRANT USAGE"],
    )
    .await;
    let name = &schema.name;
    admin.batch_execute(&format!("GRANT USAGE ON SCHEMA {name} TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {role}")).await.unwrap();
    check(
        &poor,
        ErrorKind::Invalid,
        &["no permission to read and write", "INSERT, UPDATE, DELETE"],
    )
    .await;
    let grants = format!(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name} TO {role}; \
         GRANT USAGE ON ALL SEQUENCES IN SCHEMA {name} TO {role}"
    );
    admin.batch_execute(&grants).await.unwrap();
    let store = Postgres::open(&poor).await.unwrap();
    let _ = store.claim(crate::support::claim(1)).await.unwrap();
    drop(store);
    // The role is read-only.
    admin
        .batch_execute(&format!(
            "ALTER ROLE {role} SET default_transaction_read_only = on"
        ))
        .await
        .unwrap();
    check(
        &poor,
        ErrorKind::Unavailable,
        &["read-only", "default_transaction_read_only"],
    )
    .await;
    admin
        .batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await
        .unwrap();
}

#[tokio::test]
async fn migrating_is_told_and_done_once_by_many() {
    let schema = Schema::new();
    let url = schema.url();
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { migrate(&url).await.unwrap() })
        })
        .collect();
    for task in tasks {
        let migrated = task.await.unwrap();
        assert_eq!((&*migrated.schema, migrated.to), (&*schema.name, 4));
    }
    assert_eq!(migrate(&url).await.unwrap().from, Some(4));
    let (one, two) = (schema.open().await, schema.open().await);
    assert_eq!(
        one.secret().as_bytes(),
        two.secret().as_bytes(),
        "all handles must share one secret"
    );
}

/// Certificate for a name, with its key and its CA.
struct Paper {
    authority: String,
    certificate: String,
    key: String,
}

fn paper(name: &str) -> Paper {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::new(vec![]).unwrap();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = parameters.self_signed(&authority_key).unwrap();
    let issuer = rcgen::Issuer::new(parameters, authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let own = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = own.signed_by(&key, &issuer).unwrap();
    Paper {
        authority: authority.pem(),
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

#[tokio::test]
async fn passwords_and_certificates_are_checked_as_far_as_the_address_says() {
    let (paper, other) = (paper("db.internal"), paper("db.internal"));
    let server = Server::start(Setup {
        password: Some("hunter2"),
        settings: &["ssl=on", "fsync=off"],
        files: &[
            ("server.crt", &paper.certificate),
            ("server.key", &paper.key),
        ],
    })
    .await;
    let ours = server.folder.path().join("ours.pem");
    let others = server.folder.path().join("others.pem");
    std::fs::write(&ours, &paper.authority).unwrap();
    std::fs::write(&others, &other.authority).unwrap();
    let (ours, others) = (ours.display(), others.display());
    let invalid = ErrorKind::Invalid;
    let right = "refrain:hunter2";
    check(
        &server.url("refrain:hunter2!", ""),
        invalid,
        &["password authentication failed", "check user and password"],
    )
    .await;
    check(
        &server.url("refrain", ""),
        invalid,
        &["password", "check user and password"],
    )
    .await;
    // The certificate is for another name than 127.0.0.1.
    for (query, is_fine) in [
        ("sslmode=disable".to_owned(), true),
        ("sslmode=prefer".into(), true),
        ("sslmode=require".into(), true),
        (format!("sslmode=require&sslrootcert={ours}"), true),
        (format!("sslmode=require&sslrootcert={others}"), false),
        (format!("sslmode=verify-ca&sslrootcert={ours}"), true),
        (format!("sslmode=verify-ca&sslrootcert={others}"), false),
        (format!("sslmode=verify-full&sslrootcert={ours}"), false),
    ] {
        let address = server.url(right, &query);
        match is_fine {
            true => drop(Postgres::open(&address).await.unwrap()),
            false => check(&address, invalid, &["certificate", "sslmode"]).await,
        }
        check_receipts(&address, is_fine).await;
    }
    // The right host name, at the address of the server.
    let named = format!(
        "postgres://{right}@/postgres?host=db.internal&hostaddr=127.0.0.1&port={}&sslmode=verify-full&sslrootcert={ours}",
        server.port
    );
    let wire = Dial::new(&named).unwrap().look().await.unwrap();
    let own = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let row = wire.client().query_one(own, &[]).await.unwrap();
    assert!(
        row.get::<_, bool>(0),
        "the connection of `look` is not encrypted"
    );
    let store = Postgres::open(&named).await.unwrap();
    assert!(!store.guarantees().survives_power, "fsync is off");
    let admin = connect(&server.url(right, "")).await;
    let encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND application_name = 'refrain'";
    // The store opens its connections after `open` returns.
    wait::until("a connection is encrypted", async || {
        let row = admin.query_one(encrypted, &[]).await.unwrap();
        row.get::<_, i64>(0) > 0
    })
    .await;
}

#[tokio::test]
async fn a_standby_is_refused_and_passed_over() {
    let standby = Server::start(Setup {
        settings: &["hot_standby=on"],
        files: &[("standby.signal", "")],
        ..Setup::default()
    })
    .await;
    check(
        &standby.url("refrain", ""),
        ErrorKind::Unavailable,
        &["standby", "use the address of the primary"],
    )
    .await;
    // Of several servers, the one that accepts writes is used.
    let schema = Schema::new();
    let own = schema.url();
    let (front, rest) = own.split_once('@').unwrap();
    let both = format!("{front}@127.0.0.1:{},{rest}", standby.port);
    Postgres::open(&both).await.unwrap();
}
