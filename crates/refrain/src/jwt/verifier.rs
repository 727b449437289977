//! Verifies the token of a request, and keeps the key set fresh.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{
    InvalidToken, JwtKeys, JwtSettings, KeySet, VerifiedClaims, signature,
    token::{Token, TokenHeader},
};
use crate::{
    Error, ErrorKind, Result,
    clock::{Clock, SystemClock},
};

/// Maximum time to fetch a key set; a request waits no longer for it.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Result of fetching a key set.
pub type FetchedJwks<'a> = Pin<Box<dyn Future<Output = Result<Bytes>> + Send + 'a>>;

/// Fetches the JSON Web Key Set of `jwks_url`. The proxy has one; with the tower layer, use the HTTP client of the service.
pub trait JwksFetcher: fmt::Debug + Send + Sync + 'static {
    /// Fetches the bytes of the key set, at most [`JWKS_BYTES_MAX`]. Cancelled after five seconds.
    fn fetch<'a>(&'a self, url: &'a str) -> FetchedJwks<'a>;
}

/// Why a request has no verified claims.
#[derive(Debug)]
pub(crate) enum Unverified {
    /// Its token is invalid.
    Invalid(InvalidToken),
    /// The keys are not available now.
    NoKeys,
}

impl From<InvalidToken> for Unverified {
    fn from(why: InvalidToken) -> Self {
        Self::Invalid(why)
    }
}

/// Verifies tokens. Clones share the keys.
#[derive(Debug, Clone)]
pub struct JwtVerifier(Arc<VerifierState>);

#[derive(Debug)]
struct VerifierState {
    settings: JwtSettings,
    fetcher: Option<Arc<dyn JwksFetcher>>,
    clock: Arc<dyn Clock>,
    /// The newest keys; every end of a fetch is sent, also of a failed one.
    keys: watch::Sender<HeldKeys>,
    fetching: Mutex<FetchState>,
}

/// The keys that a verifier has now.
#[derive(Debug, Clone, Default)]
struct HeldKeys {
    keys: Arc<KeySet>,
    /// When they were fetched; `None` if they never were.
    fetched: Option<Instant>,
    /// Whether the last fetch failed.
    has_failed: bool,
}

#[derive(Debug, Default)]
struct FetchState {
    is_running: bool,
    /// When the last fetch began.
    began: Option<Instant>,
}

impl JwtVerifier {
    /// A verifier with fixed keys, or with those of a file.
    ///
    /// # Errors
    /// If a [rule](JwtSettings::check) is violated, the keys are at a URL, or this build has no feature `jwt`.
    pub fn new(settings: JwtSettings) -> Result<Self> {
        if let JwtKeys::Url(_) = &settings.keys {
            let keys = &settings.keys;
            let message =
                format!("nothing fetches the keys from {keys}; use `JwtVerifier::fetching`");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Self::build(settings, None)
    }

    /// A verifier whose key set is fetched from a URL.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn fetching(settings: JwtSettings, fetcher: impl JwksFetcher) -> Result<Self> {
        Self::build(settings, Some(Arc::new(fetcher)))
    }

    fn build(settings: JwtSettings, fetcher: Option<Arc<dyn JwksFetcher>>) -> Result<Self> {
        if !signature::IS_SUPPORTED {
            let message = "built without support for tokens; rebuild with the feature `jwt`";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        settings.check()?;
        let fixed = match &settings.keys {
            JwtKeys::Fixed(keys, _) => keys.clone(),
            _ => KeySet::default(),
        };
        let (keys, _) = watch::channel(HeldKeys {
            keys: Arc::new(fixed),
            ..HeldKeys::default()
        });
        Ok(Self(Arc::new(VerifierState {
            settings,
            fetcher,
            clock: Arc::new(SystemClock),
            keys,
            fetching: Mutex::default(),
        })))
    }

    /// Replaces the clock that decides whether a token has expired, such as in a test. The key set is fetched again.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(VerifierState {
            settings: self.0.settings.clone(),
            fetcher: self.0.fetcher.clone(),
            clock,
            keys: watch::Sender::new(self.0.keys.borrow().clone()),
            fetching: Mutex::default(),
        }))
    }

    /// Which tokens are valid.
    #[must_use]
    pub fn settings(&self) -> &JwtSettings {
        &self.0.settings
    }

    /// Fetches the key set now, such as at start-up. Fixed keys need no fetch.
    ///
    /// # Errors
    /// If it cannot be fetched or has no usable key. Requests try again, at most every `jwks_retry`.
    ///
    /// # Cancellation
    /// May be dropped: the fetch continues.
    pub async fn fetch(&self) -> Result<()> {
        if self.0.is_fixed() {
            return Ok(());
        }
        self.wait_for_fetch().await;
        match self.0.keys.borrow().has_failed {
            false => Ok(()),
            true => {
                let message = format!("cannot fetch the keys from {}", self.0.settings.keys);
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// Verifies the token of a request, and returns its claims.
    pub(crate) async fn verify(&self, headers: &HeaderMap) -> Result<VerifiedClaims, Unverified> {
        let token = Token::split(self.token(headers)?)?;
        let header = token.header()?;
        if !self.0.settings.algorithms.contains(&header.algorithm) {
            return Err(InvalidToken::Algorithm.into());
        }
        let keys = self.keys_for(&header).await?;
        token.check_signature(&header, &keys)?;
        let claims = token.claims()?;
        claims.check(&self.0.settings, self.0.clock.wall())?;
        Ok(claims)
    }

    /// The claims of a request's token without any check: they name a record, and prove nothing.
    pub(crate) fn read_unverified(
        &self,
        headers: &HeaderMap,
    ) -> Result<VerifiedClaims, InvalidToken> {
        Token::split(self.token(headers)?)?.claims()
    }

    fn token<'h>(&self, headers: &'h HeaderMap) -> Result<&'h str, InvalidToken> {
        let name = self.0.settings.header.as_str();
        let mut values = headers.get_all(name).iter().map(HeaderValue::to_str);
        let value = values.next().ok_or(InvalidToken::Missing)?;
        if values.next().is_some() {
            return Err(InvalidToken::Repeated);
        }
        let value = value.map_err(|_| InvalidToken::Malformed)?.trim_ascii();
        let bearer = value
            .split_once(' ')
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        match bearer {
            Some((_, token)) => Ok(token.trim_ascii()),
            // Another scheme is not a wrong token.
            None if name == AUTHORIZATION.as_str() => Err(InvalidToken::Missing),
            None => Ok(value),
        }
    }

    /// The keys for a token. Fetches them first if they are too old, or do not have its key.
    async fn keys_for(&self, header: &TokenHeader) -> Result<Arc<KeySet>, Unverified> {
        let held = self.0.keys.borrow().clone();
        if self.0.is_fixed() {
            return self.0.usable(&held, header);
        }
        let age = held.fetched.map(|fetched| fetched.elapsed());
        if age.is_some_and(|age| age < self.0.settings.jwks_refresh) && held.has(header) {
            return Ok(held.keys);
        }
        // Keys that are only old are used meanwhile.
        if age.is_some_and(|age| age < self.0.settings.jwks_stale) && held.has(header) {
            self.start_fetch();
            return Ok(held.keys);
        }
        self.wait_for_fetch().await;
        let held = self.0.keys.borrow().clone();
        self.0.usable(&held, header)
    }

    /// Starts a fetch, unless one began less than `jwks_retry` ago, and waits for its end.
    async fn wait_for_fetch(&self) {
        // Subscribed first, so that no end is missed.
        let mut ends = self.0.keys.subscribe();
        if self.start_fetch() {
            let _ = timeout(FETCH_TIMEOUT, ends.changed()).await;
        }
    }

    /// Starts a fetch in a task of its own, which no request cancels. Returns whether one is running.
    fn start_fetch(&self) -> bool {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return false;
        };
        {
            let mut state = self.0.fetch_state();
            if state.is_running {
                return true;
            }
            let retry = self.0.settings.jwks_retry;
            if state.began.is_some_and(|began| began.elapsed() < retry) {
                return false;
            }
            state.is_running = true;
            state.began = Some(Instant::now());
        }
        let fetch = RunningFetch {
            state: self.0.clone(),
            fetched: None,
        };
        runtime.spawn(fetch.run());
        true
    }
}

impl VerifierState {
    fn is_fixed(&self) -> bool {
        matches!(self.settings.keys, JwtKeys::Fixed(..))
    }

    fn fetch_state(&self) -> MutexGuard<'_, FetchState> {
        self.fetching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys, if they have that of the token and are not too old.
    fn usable(&self, held: &HeldKeys, header: &TokenHeader) -> Result<Arc<KeySet>, Unverified> {
        let stale = self.settings.jwks_stale;
        let is_usable = self.is_fixed()
            || held
                .fetched
                .is_some_and(|fetched| fetched.elapsed() < stale);
        match (is_usable, held.has(header)) {
            (true, true) => Ok(held.keys.clone()),
            // The key may be a new one.
            (true, false) if held.has_failed => Err(Unverified::NoKeys),
            (true, false) => Err(InvalidToken::UnknownKey.into()),
            (false, _) => Err(Unverified::NoKeys),
        }
    }

    async fn fetch_keys(&self) -> Result<KeySet> {
        match (&self.settings.keys, &self.fetcher) {
            (JwtKeys::Url(url), Some(fetcher)) => KeySet::from_jwks(&fetcher.fetch(url).await?),
            (JwtKeys::File(path), _) => {
                let path = path.clone();
                let reading = tokio::task::spawn_blocking(move || KeySet::read_jwks(&path));
                reading.await.map_err(|error| {
                    Error::new(ErrorKind::Unavailable, "cannot read the key set").with_source(error)
                })?
            }
            (JwtKeys::Url(_) | JwtKeys::Fixed(..), _) => Ok(KeySet::default()),
        }
    }
}

impl HeldKeys {
    fn has(&self, header: &TokenHeader) -> bool {
        let mut found = self
            .keys
            .candidates(header.key.as_deref(), header.algorithm);
        found.next().is_some()
    }
}

/// One fetch of the key set. Its end is noted also if it is cancelled with its runtime.
struct RunningFetch {
    state: Arc<VerifierState>,
    fetched: Option<KeySet>,
}

impl RunningFetch {
    async fn run(mut self) {
        let fetching = timeout(FETCH_TIMEOUT, self.state.fetch_keys());
        let fetched = fetching.await.unwrap_or_else(|_| {
            let message = format!("no response within {} s", FETCH_TIMEOUT.as_secs());
            Err(Error::new(ErrorKind::Unavailable, message))
        });
        match fetched {
            Ok(keys) => self.fetched = Some(keys),
            Err(error) => {
                let from = &self.state.settings.keys;
                crate::log_rarely!(warn, %from, %error, "cannot fetch the keys that verify tokens");
            }
        }
    }
}

impl Drop for RunningFetch {
    fn drop(&mut self) {
        let fetched = self.fetched.take();
        self.state.keys.send_modify(|held| {
            held.has_failed = fetched.is_none();
            if let Some(keys) = fetched {
                held.keys = Arc::new(keys);
                held.fetched = Some(Instant::now());
            }
        });
        // Last, so that a request that sees no fetch running sees its keys.
        self.state.fetch_state().is_running = false;
    }
}
