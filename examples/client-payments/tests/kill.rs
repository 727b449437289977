//! Kills the program with -9 repeatedly, before, during and after a payment. The service's ledger must have
//! every order once, and every call must complete once the program runs undisturbed.

use std::{
    collections::HashMap,
    fs::{self, OpenOptions},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use axum::{Router, http::HeaderMap, routing::post};
use refrain::{
    Client, Engine, Policy,
    client::{HyperTransport, Journal, Limits},
    http::RefrainLayer,
    store::Memory,
};
use refrain_testkit::{Ledger, wait};
use tokio::{net::TcpListener, time::sleep};

const ORDERS: usize = 400;
const KILLS: usize = 25;

/// A payments service with the layer; each charge has its own number.
async fn service(ledger: Ledger) -> SocketAddr {
    let pay = async move |headers: HeaderMap, body: String| {
        let key = headers["idempotency-key"].to_str().unwrap();
        pause().await;
        ledger.record(key, "charged").unwrap();
        pause().await;
        format!("charge-{:016x} for {body}", rand::random::<u64>())
    };
    let layer = RefrainLayer::new(Engine::new(Memory::new()), Policy::default());
    let app = Router::new().route("/v1/payments", post(pay)).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

async fn pause() {
    sleep(Duration::from_millis(rand::random_range(0..8))).await;
}

fn start(address: SocketAddr, folder: &Path) -> Child {
    let mut options = OpenOptions::new();
    let said = options.append(true).create(true).open(folder.join("said"));
    Command::new(env!("CARGO_BIN_EXE_client-payments"))
        .arg(format!("http://{address}/v1/payments"))
        .arg(folder.join("payments.journal"))
        .arg(ORDERS.to_string())
        .stdin(Stdio::null())
        .stdout(said.unwrap())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_order_is_paid_once_however_often_the_client_is_killed() {
    let ledger = Ledger::in_memory();
    let address = service(ledger.clone()).await;
    let folder = tempfile::tempdir().unwrap();
    let mut in_the_middle = 0;
    for kill in 0..KILLS {
        let before = ledger.all().unwrap().len();
        let mut child = start(address, folder.path());
        // Every second kill waits for progress, so that it hits the client at work even on a slow machine;
        // the others hit at random.
        if kill % 2 == 1 {
            let gets_on = || ledger.all().unwrap().len() > before || before >= ORDERS;
            wait::until_true("the client gets on", gets_on).await;
        }
        sleep(Duration::from_millis(rand::random_range(0..160))).await;
        child.kill().unwrap();
        child.wait().unwrap();
        in_the_middle += u32::from((1..ORDERS).contains(&ledger.all().unwrap().len()));
    }
    let ended = start(address, folder.path()).wait().unwrap();
    assert!(ended.success(), "left alone, it pays all orders");
    check_ledger(&ledger);
    check_said(folder.path());
    assert!(
        in_the_middle >= 3,
        "{in_the_middle} kills hit it at work: too few to prove anything"
    );
    let journal = Journal::open(folder.path().join("payments.journal")).unwrap();
    let client = Client::new(HyperTransport::new(Limits::default()), journal);
    assert_eq!(client.open_calls().await.unwrap().len(), 0);
}

fn check_ledger(ledger: &Ledger) {
    let mut charges: HashMap<String, usize> = HashMap::new();
    for effect in ledger.all().unwrap() {
        *charges.entry(effect.key).or_default() += 1;
    }
    for number in 1..=ORDERS {
        let key = format!("order-{number}");
        assert_eq!(charges.remove(&key), Some(1), "{key}");
    }
    assert!(charges.is_empty(), "{charges:?}");
}

/// All answers for one order must be equal, across restarts.
fn check_said(folder: &Path) {
    let said = fs::read_to_string(folder.join("said")).unwrap();
    let (mut answers, mut resumed) = (HashMap::new(), 0);
    for line in said.lines() {
        let words: Vec<_> = line.splitn(3, ' ').collect();
        let [how, key, answer] = words[..] else {
            panic!("{line}")
        };
        resumed += u32::from(how == "resumed");
        let number = key.strip_prefix("order-").unwrap();
        assert!(answer.starts_with("charge-"), "{line}");
        assert!(
            answer.ends_with(&format!("amount={number}&to=alice")),
            "{line}"
        );
        let first = answers.entry(key.to_owned()).or_insert(answer);
        assert_eq!(*first, answer, "{key}");
    }
    assert_eq!(answers.len(), ORDERS);
    assert!(
        resumed > 0,
        "no kill left a call open: too few to prove anything"
    );
}
