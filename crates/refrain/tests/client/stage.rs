//! A journal in its own temporary folder, and clients that use it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use refrain::{
    Client, Key,
    client::{Budget, Ending, HyperTransport, Journal, Limits, Retry, journal::Options},
    consume::Backoff,
};
use tempfile::TempDir;

pub(crate) type TestClient = Client<HyperTransport>;

pub(crate) struct Stage {
    _folder: TempDir,
    pub(crate) path: PathBuf,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls.journal");
        Self {
            _folder: folder,
            path,
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self._folder.path()
    }

    pub(crate) fn client(&self) -> TestClient {
        self.client_with(Options::default())
    }

    pub(crate) fn client_with(&self, options: Options) -> TestClient {
        let journal = Journal::open_with(&self.path, options).unwrap();
        client_on(journal)
    }
}

pub(crate) fn client_on(journal: Journal) -> TestClient {
    Client::new(HyperTransport::new(limits()), journal)
        .with_retry(retry())
        .with_deadline(Duration::from_secs(300))
}

pub(crate) fn limits() -> Limits {
    Limits {
        attempt: Duration::from_secs(60),
        ..Limits::default()
    }
}

/// Short pauses, so that tests are fast.
pub(crate) fn retry() -> Retry {
    Retry {
        attempts_max: 4,
        backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(5)),
        budget: Budget {
            burst_max: 1_000,
            per_second: 1_000.0,
        },
        ..Retry::default()
    }
}

pub(crate) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub(crate) fn post(url: impl AsRef<str>, body: &str) -> Request<Bytes> {
    let body = Bytes::copy_from_slice(body.as_bytes());
    Request::post(url.as_ref()).body(body).unwrap()
}

/// An ending as text: its kind, and the status or the reason.
pub(crate) fn told(ending: &Ending) -> String {
    match ending {
        Ending::Answered(answer) => format!("answered {}", answer.response.status().as_u16()),
        Ending::NewKey(stopped) => format!("new key: {:?}", stopped.why),
        Ending::NotRun(stopped) => format!("not run: {:?}", stopped.why),
        Ending::Unknown(stopped) => format!("unknown: {:?}", stopped.why),
    }
}

pub(crate) fn body(ending: &Ending) -> String {
    match ending {
        Ending::Answered(answer) => String::from_utf8_lossy(answer.response.body()).into_owned(),
        other => panic!("{other:?}"),
    }
}

/// Number of open calls.
pub(crate) async fn open(client: &TestClient) -> usize {
    client.open_calls().await.unwrap().len()
}
