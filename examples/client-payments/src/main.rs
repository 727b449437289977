//! Pays a list of orders, each once, even if it is killed in between.
//!
//! ```sh
//! cargo run -p axum-payments &          # the payments service
//! cargo run -p client-payments -- http://127.0.0.1:3000/v1/payments payments.journal 500
//! # Kill it with -9 in the middle, and start it again: it resumes open calls under the same keys,
//! # and answers finished calls from its journal.
//! ```

use anyhow::Context as _;
use http::{Request, header};
use refrain::{
    Client, Key,
    client::{Ending, HyperTransport, Journal, Limits},
};
use tokio::task::JoinSet;

/// Number of concurrent payments.
const AT_ONCE: usize = 4;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let url = args
        .next()
        .context("pass the URL of the payment service as the first argument")?;
    let journal = args.next().unwrap_or("payments.journal".into());
    let orders: usize = args.next().map_or(Ok(20), |orders| orders.parse())?;
    let client = Client::new(
        HyperTransport::new(Limits::default()),
        Journal::open(journal)?,
    );
    let mut resume = client.resume().await?;
    while let Some(resumed) = resume.next().await {
        println!("resumed {} {}", resumed.key.as_str(), told(resumed.ending?));
    }
    let mut going = JoinSet::new();
    for number in 1..=orders {
        if going.len() >= AT_ONCE {
            going.join_next().await.transpose()?.transpose()?;
        }
        going.spawn(pay(client.clone(), url.clone(), number));
    }
    going.join_all().await.into_iter().collect()
}

/// Pays one order; the key is derived from its number, so it is the same after a restart.
async fn pay(client: Client<HyperTransport>, url: String, number: usize) -> anyhow::Result<()> {
    let request = Request::post(url)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(format!("amount={number}&to=alice").into())?;
    let call = client.call(Key::new(format!("order-{number}"))?);
    println!("paid order-{number} {}", told(call.send(request).await?));
    Ok(())
}

fn told(ending: Ending) -> String {
    match ending {
        Ending::Answered(answer) => String::from_utf8_lossy(answer.response.body()).into_owned(),
        other => format!("the outcome is unknown, an operator must check it: {other:?}"),
    }
}
