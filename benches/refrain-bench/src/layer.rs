//! `layer`: an axum service with the tower layer against the same service without it.
//!
//! The service runs on one thread, the clients on another: 32 keep-alive connections, POST 300 bytes, 300 bytes
//! back. Three cases in turns: plain, first requests (every key is new), replays (every key is stored). All
//! requests have the same length and differ only in the key.
//!
//! The clients' thread never sleeps.

use std::{
    net::SocketAddr,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Result, anyhow};
use axum::{Router, routing::post};
use refrain::{Engine, Policy, http::RefrainLayer, store::Memory};
use tokio::{net::TcpListener, sync::oneshot};

use crate::{
    Setup, clock,
    harness::{self, Round, System},
    load::{Keys, Load},
    report::{Need, Report},
};

const FIRST_RATIO_MIN: f64 = 0.65;
const REPLAY_RATIO_MIN: f64 = 0.8;
const FIRST_P99_MAX: f64 = 3.0;
const CONNECTIONS: u64 = 32;

/// The measured case.
#[derive(Debug, Clone, Copy)]
enum LayerVariant {
    Plain,
    First,
    Replay,
}

/// Measures the three cases in turns.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let measured = Duration::from_secs_f64(setup.options.seconds);
    let round = |way| move || round(way, measured);
    let mut systems: [System<'_>; 3] = [
        ("plain axum", Box::new(round(LayerVariant::Plain))),
        ("first requests", Box::new(round(LayerVariant::First))),
        ("replays", Box::new(round(LayerVariant::Replay))),
    ];
    let rounds = harness::in_turns(setup, &mut systems)?;
    let [plain, first, replay] = &rounds[..] else {
        return Err(anyhow!("a system is missing"));
    };
    for (name, rounds) in [
        ("plain axum", plain),
        ("first requests", first),
        ("replays", replay),
    ] {
        crate::store::describe(report, name, rounds);
    }
    for (name, rounds, min) in [
        ("first requests", first, FIRST_RATIO_MIN),
        ("replays", replay, REPLAY_RATIO_MIN),
    ] {
        let what = format!("{name} / plain axum");
        let ratios = harness::ratios(rounds, plain);
        report.figure(&what, "×", &ratios);
        report.target(what, &ratios, Need::AtLeast(min));
    }
    let p99 = |rounds: &[Round]| harness::each(rounds, |it| harness::quantile_ms(&it.new, 0.99));
    let pairs = p99(first).into_iter().zip(p99(plain));
    let ratios: Vec<_> = pairs.map(|(first, plain)| first / plain).collect();
    let what = "p99 of first requests / p99 of plain axum";
    report.target(what, &ratios, Need::AtMost(FIRST_P99_MAX));
    Ok(())
}

fn round(way: LayerVariant, measured: Duration) -> Result<Round> {
    let server = Server::start(way)?;
    let round = harness::thread_runtime()?.block_on(async {
        let _awake = harness::stay_awake();
        let load = Load {
            address: server.address,
            connections: CONNECTIONS,
            keys: match way {
                LayerVariant::Plain | LayerVariant::First => Keys::New,
                LayerVariant::Replay => Keys::Stored,
            },
        };
        load.round(measured, clock::processor_time).await
    })?;
    server.stop()?;
    Ok(round)
}

/// The service on its own thread.
struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl Server {
    fn start(way: LayerVariant) -> Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            harness::thread_runtime()?.block_on(async {
                let listener = TcpListener::from_std(listener)?;
                tokio::select! {
                    served = async { axum::serve(listener, app(way)).await } => served?,
                    _ = stopped => {}
                }
                Ok(())
            })
        });
        Ok(Self {
            address,
            stop,
            thread,
        })
    }

    fn stop(self) -> Result<()> {
        let _ = self.stop.send(());
        self.thread
            .join()
            .map_err(|_| anyhow!("the service failed"))?
    }
}

fn app(way: LayerVariant) -> Router {
    let app = Router::new().route("/v1/payments", post(pay));
    match way {
        LayerVariant::Plain => app,
        LayerVariant::First | LayerVariant::Replay => {
            let engine = Engine::new(Memory::with_options(
                8 << 30,
                std::sync::Arc::new(refrain::clock::SystemClock),
            ));
            app.layer(RefrainLayer::new(engine, Policy::default()))
        }
    }
}

async fn pay(body: axum::body::Bytes) -> Vec<u8> {
    body.to_vec()
}
