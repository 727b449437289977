//! The client against the library's own layer, over a connection that loses requests and responses: each key is
//! charged once, and every retry gets the same response.

use std::{net::SocketAddr, time::Duration};

use axum::{Router, http::HeaderMap, routing::post};
use refrain::{Engine, Policy, client::Retry, http::RefrainLayer, store::Memory};
use refrain_testkit::Ledger;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use crate::stage::{self, Stage, body, key, open, retry};

/// A payments service behind the layer; the ledger counts its effects.
async fn service(ledger: Ledger) -> SocketAddr {
    let pay = async move |headers: HeaderMap, body: String| {
        let key = headers["idempotency-key"].to_str().unwrap();
        ledger.record(key, "charged").unwrap();
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..5))).await;
        format!("charge {} of {body}", rand::random::<u64>())
    };
    let layer = RefrainLayer::new(Engine::new(Memory::new()), Policy::default());
    let app = Router::new().route("/pay", post(pay)).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// A proxy to the service that breaks half of the exchanges: before the request, or before the response.
async fn line(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut outside, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut inside = TcpStream::connect(to).await.unwrap();
                match rand::random_range(0..4) {
                    0 => {}
                    1 => lose_answer(&mut outside, &mut inside).await,
                    _ => drop(copy_bidirectional(&mut outside, &mut inside).await),
                }
            });
        }
    });
    address
}

async fn lose_answer(outside: &mut TcpStream, inside: &mut TcpStream) {
    let mut bytes = [0; 4_096];
    loop {
        tokio::select! {
            read = outside.read(&mut bytes) => match read {
                Ok(read) if read > 0 => inside.write_all(&bytes[..read]).await.unwrap(),
                _ => return,
            },
            _ = inside.readable() => return,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_key_is_charged_once_however_often_the_line_breaks() {
    const CALLS: usize = 200;
    let ledger = Ledger::in_memory();
    let address = line(service(ledger.clone()).await).await;
    let stage = Stage::new();
    let patient = Retry {
        attempts_max: 60,
        ..retry()
    };
    let client = stage.client().with_retry(patient);
    let send = |number: usize| {
        let (client, url) = (client.clone(), format!("http://{address}/pay"));
        async move {
            let request = stage::post(url, &number.to_string());
            let call = client.call(key(&format!("order-{number}")));
            call.send(request).await.unwrap()
        }
    };
    let calls: Vec<_> = (0..CALLS)
        .map(|number| tokio::spawn(send(number)))
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        let first = call.await.unwrap();
        assert!(
            body(&first).ends_with(&format!(" of {number}")),
            "{first:?}"
        );
        assert_eq!(body(&send(number).await), body(&first));
        let charged = ledger.effects(&format!("order-{number}")).unwrap().len();
        assert_eq!(charged, 1, "order-{number}");
    }
    assert_eq!(open(&client).await, 0);
}
