//! A service that is reachable only over TLS gets the same verdicts; an untrusted service gets no requests.
//!
//! The fault proxy must speak TLS to the service: a broken service must fail in the cases that use the proxy, too,
//! not only where requests go straight to the service.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod sample;

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use refrain_verify::chaos::Chaos;
use refrain_verify::verify::{CaseVerdict, Counting, Operation, Plan, Report, Trouble, Trust, run};
use sample::{Hole, Sample};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

/// A sample service behind TLS.
struct Secured {
    url: String,
    authority: tempfile::NamedTempFile,
    /// Number of completed handshakes.
    shaken: Arc<AtomicUsize>,
    _sample: Sample,
    serving: JoinHandle<()>,
}

impl Drop for Secured {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Secured {
    /// Starts a service whose certificate is for `name`, reached as `host`.
    async fn start(hole: Hole, name: &str, host: &str) -> Self {
        let sample = Sample::start(hole).await;
        let inner = sample.url.trim_start_matches("http://").to_owned();
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let authority = tempfile::NamedTempFile::new().unwrap();
        fs::write(authority.path(), made.cert.pem()).unwrap();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.into()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{host}:{}", listener.local_addr().unwrap().port());
        let shaken = Arc::new(AtomicUsize::new(0));
        let counted = shaken.clone();
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, inner, counted) = (acceptor.clone(), inner.clone(), counted.clone());
                tokio::spawn(async move {
                    let Ok(mut outside) = acceptor.accept(stream).await else {
                        return;
                    };
                    counted.fetch_add(1, SeqCst);
                    let mut inside = TcpStream::connect(inner).await.unwrap();
                    let _ = copy_bidirectional(&mut outside, &mut inside).await;
                });
            }
        });
        Self {
            url,
            authority,
            shaken,
            _sample: sample,
            serving,
        }
    }

    fn trusted(&self) -> Trust {
        Trust::File(self.authority.path().into())
    }

    async fn verify(&self, trust: Trust, only: &[&str]) -> Result<Report, Trouble> {
        let mut plan = Plan::new(self.url.parse().unwrap(), 7);
        plan.trust = trust;
        let url = format!("{}/count", self.url).into();
        plan.counting = Counting::Url { url, pointer: None };
        plan.patience = Duration::from_secs(10);
        plan.late = Duration::from_millis(100);
        plan.settle = Duration::from_millis(150);
        plan.only = only.iter().map(ToString::to_string).collect();
        let mut operation = Operation::new("POST /payments").unwrap();
        operation.body = br#"{"amount":20,"to":"bob"}"#.to_vec();
        operation.headers = vec![("Authorization".into(), "Bearer alice-1".into())];
        operation.set_content_type(None);
        plan.operations.push(operation);
        run(&plan, |_, _| {}).await
    }
}

fn of(report: &Report, verdict: CaseVerdict) -> Vec<&str> {
    let cases = report.operations[0].cases.iter();
    let cases = cases.filter(|case| case.verdict == verdict);
    cases.map(|case| &*case.id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_right_passes_with_tls_too() {
    for (name, host) in [("localhost", "localhost"), ("127.0.0.1", "127.0.0.1")] {
        let secured = Secured::start(Hole::Nothing, name, host).await;
        let report = secured.verify(secured.trusted(), &[]).await.unwrap();
        let found = (
            of(&report, CaseVerdict::Fail),
            of(&report, CaseVerdict::Warn),
        );
        assert_eq!(found, (vec![], vec![]), "{report:#?}");
        assert!(of(&report, CaseVerdict::Pass).contains(&"lost-answer"));
        assert_eq!(report.target, secured.url);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holes_are_seen_through_tls_and_through_the_faults_in_between() {
    let secured = Secured::start(Hole::IgnoresKey, "localhost", "localhost").await;
    let cases = ["lost-answer", "duplicate-in-flight", "client-hangs-up"];
    let report = secured.verify(secured.trusted(), &cases).await.unwrap();
    assert_eq!(of(&report, CaseVerdict::Fail), cases, "{report:#?}");
    let lost = &report.operations[0].cases[0];
    let said = lost.findings.join("; ");
    assert!(said.contains("but 3 effects"), "{said}");
    assert_eq!(lost.exchanges[0].status, None, "{lost:#?}");
}

/// Injects faults in front of a TLS-only service; refuses one whose certificate is not trusted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_stands_before_a_service_with_tls() {
    let secured = Secured::start(Hole::Nothing, "localhost", "localhost").await;
    for (trust, status) in [
        (secured.trusted(), "HTTP/1.1 200 "),
        (Trust::Anybody, "HTTP/1.1 200 "),
        (Trust::Machine, "HTTP/1.1 502 "),
    ] {
        let chaos = Chaos::trusting(&secured.url, 7, &trust);
        // The machine may have no trusted certificate authorities.
        let Ok(chaos) = chaos else {
            assert_eq!(trust, Trust::Machine);
            continue;
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let serving = tokio::spawn(chaos.serve(listener, std::future::pending()));
        let request = "GET /count HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with(status), "{trust:?}: {answer}");
        serving.abort();
    }
    let error = Chaos::trusting(&secured.url, 7, &Trust::File("no/such.pem".into())).unwrap_err();
    assert!(error.to_string().contains("no/such.pem"), "{error}");
    assert!(Chaos::new("https://host/path", 7).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_to_a_service_that_cannot_prove_who_it_is() {
    let secured = Secured::start(Hole::Nothing, "localhost", "localhost").await;
    let misnamed = Secured::start(Hole::Nothing, "other.test", "localhost").await;
    let case = ["sequential-duplicate"];
    for (service, trust) in [
        (&secured, misnamed.trusted()),
        (&misnamed, misnamed.trusted()),
    ] {
        let trouble = service.verify(trust, &case).await.unwrap_err();
        let Trouble::Unreachable(why) = trouble else {
            panic!("{trouble}")
        };
        assert!(
            why.contains("certificate") && why.contains("--cacert"),
            "{why}"
        );
        assert_eq!(service.shaken.load(SeqCst), 0);
    }
    let missing = Trust::File("no/such.pem".into());
    let trouble = secured.verify(missing, &case).await.unwrap_err();
    assert!(
        matches!(&trouble, Trouble::Plan(why) if why.contains("no/such.pem")),
        "{trouble}"
    );
    for service in [&secured, &misnamed] {
        let report = service.verify(Trust::Anybody, &case).await.unwrap();
        assert_eq!(of(&report, CaseVerdict::Pass), case);
    }
}
