//! A service that writes receipts behind the real proxy, and every way in which a response between the two gets lost.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test file uses only part of this module"
)]

mod place;
mod service;

use std::{net::SocketAddr, thread, time::Duration};

pub(crate) use place::ServiceDatabase;
pub(crate) use service::{Service, node, python, rust};

use crate::{
    kills::{Proxy, Setup},
    support::{Client, HttpResponse, PATIENCE, call, get, request, until},
};

/// The proxy, the service behind it, and the service's database, which is dropped last.
pub(crate) struct Stage {
    proxy: Proxy,
    service: Service,
    place: ServiceDatabase,
}

/// Sends payments to a service through the proxy while responses get lost, and checks its ledger.
pub(crate) fn check(start: impl Fn(&ServiceDatabase) -> Service) {
    let place = ServiceDatabase::new();
    let service = start(&place);
    let receipts = place.url();
    let setup = Setup::new(
        service.address,
        &format!(
            "[[operation]]\nmatch = \"POST /v1/payments\"\nrequired = true\n\
             guarantee = \"exactly-once\"\nreceipts = \"{receipts}\"\n\
             lease = \"5s\"\ntimeout = \"8s\"\nwait = \"30s\"\n"
        ),
    );
    let proxy = setup.start();
    let mut stage = Stage {
        proxy,
        service,
        place,
    };
    stage.prove();
    stage.lose_answers();
    stage.lose_attempts();
    stage.burst();
    stage.kill_the_proxy(&setup);
    for (customer, payments) in stage.ledger() {
        assert_eq!(payments, 1, "payments of {customer}");
    }
}

impl Stage {
    /// Waits until the connection to the service works again: the service may close it unannounced after a failure,
    /// and a request sent on it would have an unknown outcome, which is not tested here.
    fn rest(&self) {
        until("the connection works", || {
            call(self.proxy.address, get("/ledger")).status == 200
        });
    }

    fn pay(&self, key: &str, fail: &str) -> HttpResponse {
        call(self.proxy.address, payment(key, fail))
    }

    /// Retries as a client does, until the response is final.
    fn paid(&self, key: &str) -> HttpResponse {
        let since = tokio::time::Instant::now();
        loop {
            let answer = self.pay(key, "");
            if answer.status == 201 {
                return answer;
            }
            assert!(since.elapsed() < PATIENCE, "{key}: {answer:?}");
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn check_paid(&self, key: &str, what: &str) -> HttpResponse {
        let answer = self.paid(key);
        let kind = answer.header("content-type").unwrap();
        assert!(kind.starts_with("application/json"), "{what}: {kind}");
        let again = self.pay(key, "");
        assert!(again.is_replay(), "{what}: {again:?}");
        assert_eq!(again.body, answer.body, "{what}");
        assert_eq!(self.place.payments_of(key), 1, "{what}");
        answer
    }

    /// From the first receipt on, exactly-once is in force.
    fn prove(&self) {
        assert_eq!(self.pay("first", "").status, 201);
        until("a receipt was seen", || {
            let told = ask_admin(self.proxy.admin, "/api/operations");
            told.text().contains("\"in_force\":\"exactly-once\"")
        });
    }

    /// The service commits and its response is lost: the first client and all others get the receipt's response.
    fn lose_answers(&mut self) {
        for fault in [
            "error-after-commit",
            "hang-after-commit",
            "die-after-commit",
        ] {
            self.rest();
            let first = self.pay(fault, fault);
            assert_eq!(first.status, 201, "{fault}: {}", first.text());
            assert!(!first.is_replay(), "{fault}");
            if fault.starts_with("die-") {
                self.service.revive();
            }
            assert_eq!(self.check_paid(fault, fault).body, first.body, "{fault}");
        }
    }

    /// The service does not commit: the next retry runs.
    fn lose_attempts(&mut self) {
        for (fault, status) in [
            ("error-before-commit", 500),
            ("hang-before-commit", 504),
            ("die-before-commit", 502),
        ] {
            self.rest();
            let first = self.pay(fault, fault);
            assert_eq!(first.status, status, "{fault}: {}", first.text());
            assert_eq!(self.place.payments_of(fault), 0, "{fault}");
            if fault.starts_with("die-") {
                self.service.revive();
            }
            self.check_paid(fault, fault);
        }
    }

    /// Concurrent duplicates, while the response to the first request is lost.
    fn burst(&self) {
        self.rest();
        let answers: Vec<_> = thread::scope(|scope| {
            let address = self.proxy.address;
            let pay = move || call(address, payment("burst", "error-after-commit"));
            let paying: Vec<_> = (0..8).map(|_| scope.spawn(pay)).collect();
            paying.into_iter().map(|it| it.join().unwrap()).collect()
        });
        for answer in &answers {
            assert_eq!((answer.status, &answer.body), (201, &answers[0].body));
        }
        assert_eq!(self.place.payments_of("burst"), 1);
    }

    /// Kills the proxy with SIGKILL during a request, before and after the service commits.
    fn kill_the_proxy(&mut self, setup: &Setup) {
        for fault in ["hang-after-commit", "hang-before-commit"] {
            let key = format!("killed-{fault}");
            self.rest();
            let mut client = Client::connect(self.proxy.address);
            client.send(payment(&key, fault));
            match fault {
                "hang-after-commit" => {
                    until("it has committed", || self.place.payments_of(&key) == 1);
                }
                _ => thread::sleep(Duration::from_millis(300)),
            }
            self.proxy.kill();
            // Restarting the service ends a request that hangs before its commit.
            self.service.restart();
            self.proxy = setup.start();
            self.check_paid(&key, fault);
        }
    }

    fn ledger(&self) -> Vec<(String, u64)> {
        let answer = call(self.proxy.address, get("/ledger"));
        let lines: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let line = |line: &serde_json::Value| {
            let customer = line["customer"].as_str().unwrap().to_owned();
            (customer, line["payments"].as_u64().unwrap())
        };
        let lines: Vec<_> = lines.as_array().unwrap().iter().map(line).collect();
        assert_eq!(lines.len(), 10, "{lines:?}");
        lines
    }
}

/// A payment whose customer is its key, so that the ledger distinguishes payments.
fn payment(key: &str, fail: &str) -> Vec<u8> {
    let body = format!("{{\"customer\":\"{key}\",\"amount\":20}}");
    let headers = [
        ("idempotency-key", key),
        ("content-type", "application/json"),
        ("x-fail", fail),
    ];
    request("POST /v1/payments", &headers, body.as_bytes())
}

/// The admin listener only accepts its own address as `Host`.
pub(crate) fn ask_admin(admin: SocketAddr, path: &str) -> HttpResponse {
    call(
        admin,
        format!("GET {path} HTTP/1.1\r\nhost: {admin}\r\n\r\n"),
    )
}

/// Whether a process listens on the address.
fn is_open(address: SocketAddr) -> bool {
    std::net::TcpStream::connect(address).is_ok()
}
