//! What is shown, and how keys and responses change it.

use std::{collections::VecDeque, mem, time::Duration};

use tokio::time::Instant;

use super::{
    data::{Fetched, Overview, Request, UnknownRecord, Worker, parse},
    screen::Key,
};
use crate::client::RequestError;

/// Most requests that are kept to scroll back to.
const KEPT_MAX: usize = 500;
/// Lines that the page keys scroll.
const PAGE: usize = 10;
/// The shortest timeout of an update.
const PATIENCE_MIN: Duration = Duration::from_secs(5);

/// The state of the screen.
pub(super) struct State {
    pub(super) address: String,
    pub(super) interval: Duration,
    pub(super) overview: Overview,
    /// Latest first.
    pub(super) requests: VecDeque<Request>,
    /// Oldest first; `None` if the store did not list them.
    pub(super) unknown: Option<Vec<UnknownRecord>>,
    pub(super) workers: Vec<Worker>,
    /// Why the latest update failed.
    pub(super) trouble: Option<String>,
    /// When the latest update succeeded.
    answered: Instant,
    pub(super) is_paused: bool,
    pub(super) is_unknown_only: bool,
    /// Lines of the list that are scrolled away.
    pub(super) scrolled: usize,
    /// Sequence number of the latest request.
    pub(super) after: u64,
}

impl State {
    pub(super) fn new(address: &str, interval: Duration) -> Self {
        Self {
            address: address.to_owned(),
            interval,
            overview: Overview::default(),
            requests: VecDeque::new(),
            unknown: None,
            workers: Vec::new(),
            trouble: None,
            answered: Instant::now(),
            is_paused: false,
            is_unknown_only: false,
            scrolled: 0,
            after: 0,
        }
    }

    /// Takes the responses over. Returns an error that another try does not fix, such as a wrong token.
    pub(super) fn apply(&mut self, fetched: Result<Fetched, RequestError>) -> Option<RequestError> {
        match fetched.and_then(|fetched| self.update(fetched)) {
            Ok(()) => {
                self.trouble = None;
                self.answered = Instant::now();
                None
            }
            Err(error) if error.is_temporary() => {
                self.trouble = Some(error.to_string());
                None
            }
            Err(error) => Some(error),
        }
    }

    fn update(&mut self, fetched: Fetched) -> Result<(), RequestError> {
        let overview: Overview = parse(fetched.overview)?;
        let before = mem::replace(&mut self.overview, overview);
        if before.started.is_some() && before.started != self.overview.started {
            // The process was restarted, and counts its requests from the start.
            self.after = 0;
            return Ok(());
        }
        for request in fetched.requests {
            let request: Request = parse(request)?;
            self.after = self.after.max(request.seq);
            self.requests.push_front(request);
        }
        self.requests.truncate(KEPT_MAX);
        let records = fetched.unknown.map(|records| {
            let records = records.into_iter().map(parse);
            records.collect::<Result<Vec<UnknownRecord>, _>>()
        });
        self.unknown = records.transpose()?;
        let unknown = self.unknown.iter_mut();
        unknown.for_each(|it| it.sort_by(|one, other| one.first_seen.cmp(&other.first_seen)));
        let workers = fetched.workers.into_iter().map(parse);
        self.workers = workers.collect::<Result<_, _>>()?;
        self.scroll(0);
        Ok(())
    }

    /// How long an update may take: a process that hangs must not look as if it were ready.
    pub(super) fn patience(&self) -> Duration {
        (self.interval * 3).max(PATIENCE_MIN)
    }

    /// How long the process has not answered; `None` if the latest update succeeded.
    pub(super) fn silent(&self) -> Option<Duration> {
        self.trouble.as_ref().map(|_| self.answered.elapsed())
    }

    pub(super) fn press(&mut self, key: Key) {
        match key {
            Key::Pause => self.is_paused = !self.is_paused,
            Key::UnknownOnly => {
                self.is_unknown_only = !self.is_unknown_only;
                self.scrolled = 0;
            }
            Key::Up => self.scroll(-1),
            Key::Down => self.scroll(1),
            Key::PageUp => self.scroll(-(PAGE as isize)),
            Key::PageDown => self.scroll(PAGE as isize),
            Key::Quit | Key::Resized => {}
        }
    }

    /// Scrolls the list, so that at least its last line stays.
    fn scroll(&mut self, lines: isize) {
        let len = match self.is_unknown_only {
            true => self.unknown.as_ref().map_or(0, Vec::len),
            false => self.requests.len(),
        };
        let scrolled = self.scrolled.saturating_add_signed(lines);
        self.scrolled = scrolled.min(len.saturating_sub(1));
    }
}
