//! `refrain top`: what a running proxy does, live in the terminal.

use std::{
    env,
    future::{Future, pending},
    io::{self, IsTerminal as _},
    pin::Pin,
    process::ExitCode,
    time::Duration,
};

use refrain::policy::units;
use serde_json::json;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    client::{ADMIN, Client, RequestError, TlsFlags},
    output::{complain, say},
};

mod data;
mod screen;
mod state;
mod text;
mod view;

use data::{Fetched, Fetcher};
use screen::{Key, Keys, Screen};
use state::State;
use view::Size;

/// How long an update waits for the list of unknown outcomes.
const LIST_WAIT: Duration = Duration::from_secs(1);
const SECOND: Duration = Duration::from_secs(1);
/// Width of a frame that is not printed on a terminal.
const PLAIN_COLUMNS: usize = 120;

/// Watch a running proxy: rates, latencies, requests and unknown outcomes
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain top                           update every 2 seconds
  refrain top --interval 500ms --admin http://10.0.0.5:8378
  refrain top --admin https://10.0.0.5:8378 --cacert ca.pem
                                        over TLS; SSL_CERT_FILE also names the file
  refrain top --once                    print one frame, for a script or a log
  refrain top --json | jq .overview.unknown

Keys: q quit, p pause, u unknown outcomes only, arrows and page keys scroll.
With NO_COLOR set, it uses no colors. Without a terminal, it prints one frame and exits.

The admin address of the proxy: --admin, or REFRAIN_ADMIN, or `admin` in the refrain.toml of this folder, or
http://127.0.0.1:8378.
The admin token, if the proxy requires one: --token, or REFRAIN_ADMIN_TOKEN, or the file that REFRAIN_ADMIN_TOKEN_FILE names.
Exit codes: 0 done, also after Ctrl-C, 2 wrong usage or token, 64 invalid refrain.toml, 69 admin address unreachable at the start.")]
pub(crate) struct Args {
    /// Admin address of the proxy
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// Admin bearer token
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    #[command(flatten)]
    tls: TlsFlags,
    /// Time between updates, from 200ms to 1m
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Print one frame as plain text, and exit
    #[arg(long)]
    once: bool,
    /// Print one JSON object, and exit
    #[arg(long, conflicts_with = "once")]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = units::duration(text).map_err(|error| error.to_string())?;
    let is_allowed = (Duration::from_millis(200)..=Duration::from_secs(60)).contains(&interval);
    is_allowed
        .then_some(interval)
        .ok_or_else(|| "not between 200ms and 1m".into())
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let tasks = tokio::task::LocalSet::new();
    let done = tasks.block_on(&runtime, args.run());
    drop(tasks);
    // A request that is still waiting for its response must not delay the end.
    runtime.shutdown_background();
    let Err(trouble) = done? else {
        return Ok(ExitCode::SUCCESS);
    };
    complain(format_args!("refrain: {trouble}"));
    if args.json {
        say(format_args!("{:#}", trouble.json()));
    }
    Ok(trouble.code().into())
}

impl Args {
    async fn run(&self) -> anyhow::Result<Result<(), RequestError>> {
        let fetcher = match Client::new(
            &ADMIN,
            self.admin.as_deref(),
            self.token.as_deref(),
            &self.tls,
        ) {
            Ok(client) => Fetcher::new(client),
            Err(error) => return Ok(Err(error)),
        };
        // The only frame waits for the list; the client limits how long.
        let is_watched = !self.json && !self.once && is_interactive();
        let list_wait = if is_watched { LIST_WAIT } else { Duration::MAX };
        // A wrong address or token is reported before the screen changes.
        let first = match fetcher.fetch(0, list_wait).await {
            Ok(first) => first,
            Err(error) => return Ok(Err(error)),
        };
        if self.json {
            say(format_args!("{:#}", json!(first)));
            return Ok(Ok(()));
        }
        let mut state = State::new(&fetcher.client().address(), self.interval);
        state.apply(Ok(first));
        if !is_watched {
            let size = Size::unlimited(PLAIN_COLUMNS);
            for line in view::frame(&state, size, text::is_utf8()) {
                say(line);
            }
            return Ok(Ok(()));
        }
        watch(&fetcher, state).await
    }
}

fn is_interactive() -> bool {
    let is_dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    io::stdout().is_terminal() && !is_dumb
}

/// Shows the state until the user quits, or the server rejects the token.
async fn watch(fetcher: &Fetcher, mut state: State) -> anyhow::Result<Result<(), RequestError>> {
    let mut stops = Stops::new()?;
    let mut screen = Screen::open()?;
    let mut keys = Keys::start();
    let mut fetching: Option<Fetching<'_>> = None;
    let mut due = Instant::now() + state.interval;
    loop {
        screen.draw(&state)?;
        let is_idle = fetching.is_none();
        let fetched = async {
            match &mut fetching {
                Some(fetching) => fetching.await,
                None => pending().await,
            }
        };
        tokio::select! {
            key = keys.recv() => match key {
                Ok(None | Some(Key::Quit)) => return Ok(Ok(())),
                Ok(Some(key)) => state.press(key),
                Err(error) => return Err(error),
            },
            fetched = fetched => {
                fetching = None;
                due = Instant::now() + state.interval;
                if let Some(error) = state.apply(fetched) {
                    return Ok(Err(error));
                }
            }
            () = sleep_until(due), if is_idle && !state.is_paused => {
                fetching = Some(Box::pin(fetch_soon(fetcher, state.after, state.patience())));
            }
            // The time without an answer grows.
            () = sleep(SECOND), if state.silent().is_some() => {}
            () = stops.recv() => return Ok(Ok(())),
        }
    }
}

async fn fetch_soon(
    fetcher: &Fetcher,
    after: u64,
    patience: Duration,
) -> Result<Fetched, RequestError> {
    let fetched = timeout(patience, fetcher.fetch(after, LIST_WAIT)).await;
    fetched.unwrap_or_else(|_| {
        let (address, seconds) = (fetcher.client().address(), patience.as_secs());
        Err(RequestError::Unreachable(format!(
            "the admin address {address} did not answer within {seconds} s"
        )))
    })
}

type Fetching<'a> = Pin<Box<dyn Future<Output = Result<Fetched, RequestError>> + 'a>>;

/// The signals that end the command; the terminal is restored first.
struct Stops([Signal; 3]);

impl Stops {
    fn new() -> io::Result<Self> {
        let [one, two, three] = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::hangup(),
        ]
        .map(signal);
        Ok(Self([one?, two?, three?]))
    }

    async fn recv(&mut self) {
        let [one, two, three] = &mut self.0;
        tokio::select! {
            _ = one.recv() => {}
            _ = two.recv() => {}
            _ = three.recv() => {}
        }
    }
}
