//! The thread that writes the access log.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::AsFd as _,
    sync::Arc,
    thread,
    time::Duration,
};

use super::{file::LogFile, queue::LineQueue};

/// Pause before a failed write is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum size of one write, which ends with a line: between two of them a file can be rotated.
const WRITE_BYTES_MAX: usize = 256 << 10;

/// Where the lines are written.
#[derive(Debug)]
pub(super) enum Output {
    /// Standard output, without the buffer of the standard library, whose failed writes cannot be resumed.
    Stdout(File),
    File(LogFile),
}

impl Output {
    pub(super) fn stdout() -> io::Result<Self> {
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        Ok(Self::Stdout(stdout.into()))
    }

    /// Prepares to write `len` bytes; returns whether they go to another file than before.
    fn prepare(&mut self, len: usize) -> io::Result<bool> {
        match self {
            Self::Stdout(_) => Ok(false),
            Self::File(file) => file.prepare(len),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(file) => file.write(bytes),
            Self::File(file) => file.write(bytes),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Stdout(_) => "stdout".into(),
            Self::File(file) => file.path().display().to_string(),
        }
    }
}

/// Writes what the queue holds, until it is closed.
pub(super) struct Writer {
    output: Output,
    queue: Arc<LineQueue>,
    /// Whether the last write failed.
    is_failing: bool,
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(output: Output, queue: Arc<LineQueue>) -> io::Result<()> {
        let writer = Self {
            output,
            queue,
            is_failing: false,
        };
        let thread = thread::Builder::new().name("refrain-access".into());
        thread.spawn(|| writer.run()).map(drop)
    }

    fn run(mut self) {
        let mut batch = Vec::new();
        while self.queue.take(&mut batch) {
            self.write(&batch);
            batch.clear();
        }
        self.queue.end();
    }

    /// Writes a batch of lines, and tries again until it succeeds or the queue is closed.
    fn write(&mut self, batch: &[u8]) {
        let mut written = 0;
        while written < batch.len() {
            match self.write_some(batch, written) {
                Ok(end) => {
                    written = end;
                    self.note_success();
                }
                Err(error) => {
                    self.note_failure(&error);
                    if !self.queue.pause(RETRY) {
                        let left = &batch[line_start(batch, written)..];
                        let lines = left.iter().filter(|byte| **byte == b'\n').count();
                        return self.queue.drop_lines(lines as u64);
                    }
                }
            }
        }
    }

    /// Writes some bytes of the batch after the first `written`; returns how many of the batch are written then.
    fn write_some(&mut self, batch: &[u8], written: usize) -> io::Result<usize> {
        let rest = chunk(&batch[written..]);
        let is_other = self.output.prepare(rest.len())?;
        // A line is never split between two files.
        let start = match is_other {
            true => line_start(batch, written),
            false => written,
        };
        match self.output.write(chunk(&batch[start..])) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => Ok(start + len),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(start),
            Err(error) => Err(error),
        }
    }

    fn note_failure(&mut self, error: &io::Error) {
        if !self.is_failing {
            let (log, help) = (self.output.name(), help(error));
            tracing::warn!(log, %error, "cannot write the access log: retrying, and dropping lines once the queue is full; {help}");
        }
        self.is_failing = true;
    }

    fn note_success(&mut self) {
        if self.is_failing {
            let (log, dropped) = (self.output.name(), self.queue.dropped().get());
            tracing::warn!(log, dropped, "the access log is written again");
        }
        self.is_failing = false;
    }
}

/// What an operator can do about a failed write.
fn help(error: &io::Error) -> &'static str {
    use io::ErrorKind::{BrokenPipe, FileTooLarge, PermissionDenied, StorageFull};
    match error.kind() {
        StorageFull | FileTooLarge => {
            "free disk space, or lower access_log_bytes_max or access_log_files_max"
        }
        PermissionDenied => "let the proxy's user write to the folder of the file",
        BrokenPipe => "the reader of standard output has ended: restart it with the proxy",
        _ => "check the disk and the folder of the file",
    }
}

/// The first bytes of some lines that are written at once: whole lines, if the first one is not too long.
fn chunk(lines: &[u8]) -> &[u8] {
    let most = &lines[..lines.len().min(WRITE_BYTES_MAX)];
    let end = most.iter().rposition(|byte| *byte == b'\n');
    end.map_or(most, |end| &most[..=end])
}

/// Start of the line that the byte at `at` belongs to.
fn line_start(lines: &[u8], at: usize) -> usize {
    let before = lines[..at].iter().rposition(|byte| *byte == b'\n');
    before.map_or(0, |end| end + 1)
}
