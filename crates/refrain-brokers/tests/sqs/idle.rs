//! An idle worker must long-poll, because each request to SQS costs money.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use refrain::consume::{Broker as _, Message, Publisher as _, Source};
use refrain_brokers::sqs::Sqs;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use crate::{ACK_WAIT, Server, support::text};

/// The wait of a consumer's pull.
const PULL_WAIT: Duration = Duration::from_secs(1);

/// Forwards connections to the server, and counts ReceiveMessage requests.
async fn counting(server: &Server) -> (u16, Arc<AtomicUsize>) {
    let behind = server.0.endpoint();
    let behind = behind.trim_start_matches("http://").to_owned();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let receives = Arc::new(AtomicUsize::new(0));
    let counted = receives.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&behind).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            let counted = counted.clone();
            tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
            tokio::spawn(async move {
                let mut bytes = vec![0; 64 << 10];
                while let Ok(count @ 1..) = from_client.read(&mut bytes).await {
                    let text = String::from_utf8_lossy(&bytes[..count]);
                    let more = text.matches("AmazonSQS.ReceiveMessage").count();
                    counted.fetch_add(more, Ordering::SeqCst);
                    if to_server.write_all(&bytes[..count]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, receives)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_consumer_waits_at_the_server() {
    let server = Server::start();
    server.make("orders").await;
    let (port, receives) = counting(&server).await;
    let url = format!("sqs://key:secret@eu-central-1?endpoint=http://127.0.0.1:{port}");
    let mut source = Source::new(url, "orders", "c");
    source.ack_wait = ACK_WAIT * 30;
    let broker = Sqs::connect(&source).await.unwrap();
    let until = Instant::now() + Duration::from_secs(12);
    while Instant::now() < until {
        let began = Instant::now();
        assert!(broker.pull(16, PULL_WAIT).await.unwrap().is_empty());
        // A pull returns in time although its request is still open.
        assert!(began.elapsed() < PULL_WAIT * 5, "{:?}", began.elapsed());
    }
    // Polls of 1, 2, 4 and 8 seconds; without long polling there are ten requests per second.
    let asked = receives.load(Ordering::SeqCst);
    assert!((1..=6).contains(&asked), "{asked} requests in 12 s");

    // A message published during a long poll arrives at once, not only with the next request.
    broker.publish("orders", &Message::new("x")).await.unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let delivery = loop {
        assert!(Instant::now() < until, "nothing came");
        if let Some(delivery) = broker.pull(16, PULL_WAIT).await.unwrap().pop() {
            break delivery;
        }
    };
    assert_eq!(text(&delivery), "x");
    delivery.ticket.ack().await.unwrap();
    broker.close().await.unwrap();
}
