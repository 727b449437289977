//! The access log: one JSON line for each request, written to a file or to standard output.
//!
//! A request only appends its line to a queue in memory; a thread writes the queue. So a slow or full disk costs requests
//! nothing: when the queue is full, lines are dropped and counted.
//! Lines contain neither keys nor paths, queries, headers or bodies.

use std::{io, sync::Arc};

use prometheus_client::metrics::counter::Counter;
use refrain::policy::{AccessLogSettings, AccessLogTarget};

mod file;
use file::LogFile;

mod line;
pub(super) use line::AccessLine;

mod queue;
use queue::LineQueue;

mod writer;
use writer::{Output, Writer};

/// An open access log.
#[derive(Debug)]
pub(super) struct AccessLog {
    queue: Arc<LineQueue>,
}

impl AccessLog {
    /// Opens the access log of the settings, and starts its thread. `dropped` counts lines that could not be written in time.
    ///
    /// # Errors
    /// If the file cannot be opened or is not a regular file; the message names it and the fix.
    pub(super) fn open(settings: &AccessLogSettings, dropped: Counter) -> io::Result<Self> {
        let output = match &settings.target {
            AccessLogTarget::Stdout => Output::stdout()?,
            AccessLogTarget::File(path) => {
                Output::File(LogFile::open(path, settings.bytes_max, settings.files_max)?)
            }
        };
        let queue = Arc::new(LineQueue::new(dropped));
        Writer::start(output, queue.clone())?;
        Ok(Self { queue })
    }

    /// Appends the line of a request.
    pub(super) fn push(&self, line: &AccessLine<'_>) {
        line::encoded(line, |bytes| self.queue.push(bytes));
    }

    /// Writes the lines that are queued, for a few seconds at most. Lines of later requests are dropped.
    ///
    /// Blocks the thread.
    pub(super) fn close(&self) {
        self.queue.close();
    }
}

#[cfg(test)]
mod tests;
