//! The terminal: raw mode, drawing, keys; and how it was before, however the command ends.

use std::{
    env,
    fmt::Write as _,
    io::{self, Write as _},
    iter, panic,
    thread::{self, JoinHandle},
    time::Duration,
};

use crossterm::{
    cursor::{Hide, MoveTo, Show},
    event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    execute,
    style::{Attribute, Color, SetAttribute, SetForegroundColor},
    terminal::{
        BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap,
        EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
        enable_raw_mode,
    },
};
use rustix::termios::tcgetwinsize;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::{
    state::State,
    text,
    view::{Line, Size, Style, frame},
};

/// How long the thread of the keys waits before it checks whether it is still needed.
const KEYS_WAIT: Duration = Duration::from_millis(250);
/// Keys that are pressed faster than they are handled wait up to this number.
const KEYS_MAX: usize = 16;
/// Smallest and largest frame.
const COLUMNS: (u16, u16) = (20, 500);
const ROWS: (u16, u16) = (5, 500);

/// A terminal in raw mode, on its alternate screen. Dropping it restores the terminal.
pub(super) struct Screen {
    shown: Vec<Line>,
    /// The size for which it is shown.
    size: Option<Size>,
    is_colored: bool,
    is_utf8: bool,
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        // The message of a panic would be lost with the alternate screen.
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |information| {
            restore();
            before(information);
        }));
        enable_raw_mode()?;
        // From here on, dropping it restores the terminal.
        let screen = Self {
            shown: Vec::new(),
            size: None,
            is_colored: env::var_os("NO_COLOR").is_none_or(|it| it.is_empty()),
            is_utf8: text::is_utf8(),
        };
        execute!(io::stdout(), EnterAlternateScreen, Hide, DisableLineWrap)?;
        Ok(screen)
    }

    /// Draws the lines that have changed; all of them if the terminal has another size.
    pub(super) fn draw(&mut self, state: &State) -> io::Result<()> {
        let size = size();
        let lines = frame(state, size, self.is_utf8);
        if self.size == Some(size) && lines == self.shown {
            return Ok(());
        }
        if self.size.replace(size) != Some(size) {
            self.shown.clear();
        }
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text, &lines);
        let mut stdout = io::stdout();
        stdout.write_all(text.as_bytes())?;
        self.shown = lines;
        stdout.flush()
    }

    fn write(&self, out: &mut String, lines: &[Line]) -> std::fmt::Result {
        use crossterm::Command as _;
        BeginSynchronizedUpdate.write_ansi(out)?;
        if self.shown.is_empty() {
            Clear(ClearType::All).write_ansi(out)?;
        }
        let shown = self.shown.iter().map(Some).chain(iter::repeat(None));
        for (row, (line, shown)) in (0..).zip(lines.iter().zip(shown)) {
            if shown == Some(line) {
                continue;
            }
            MoveTo(0, row).write_ansi(out)?;
            // Before the text: after a full line, it would clear the last character.
            Clear(ClearType::UntilNewLine).write_ansi(out)?;
            for (style, text) in &line.0 {
                self.write_styled(out, *style, text)?;
            }
        }
        EndSynchronizedUpdate.write_ansi(out)
    }

    fn write_styled(&self, out: &mut String, style: Style, text: &str) -> std::fmt::Result {
        use crossterm::Command as _;
        match (style, color(style)) {
            (_, Some(color)) if self.is_colored => SetForegroundColor(color).write_ansi(out)?,
            (Style::Bold | Style::Bad, _) => SetAttribute(Attribute::Bold).write_ansi(out)?,
            (Style::Dim, _) if self.is_colored => SetAttribute(Attribute::Dim).write_ansi(out)?,
            _ => return out.write_str(text),
        }
        out.write_str(text)?;
        SetAttribute(Attribute::Reset).write_ansi(out)
    }
}

fn color(style: Style) -> Option<Color> {
    match style {
        Style::Plain | Style::Bold | Style::Dim => None,
        Style::Good => Some(Color::Green),
        Style::Info => Some(Color::Cyan),
        Style::Warning => Some(Color::Yellow),
        Style::Bad => Some(Color::Red),
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Undoes [`Screen::open`]. If the terminal is gone, there is nothing to restore.
fn restore() {
    let _ = execute!(io::stdout(), EnableLineWrap, Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

/// The size of the terminal; of an unusual one, what fits the limits.
fn size() -> Size {
    let (columns, rows) = match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => (80, 24),
    };
    Size {
        columns: columns.clamp(COLUMNS.0, COLUMNS.1).into(),
        rows: Some(rows.clamp(ROWS.0, ROWS.1).into()),
    }
}

/// What a key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Pause,
    UnknownOnly,
    Up,
    Down,
    PageUp,
    PageDown,
    /// The terminal has another size.
    Resized,
}

/// The keys that are pressed, from a thread that ends with this.
pub(super) struct Keys {
    receiver: Receiver<Key>,
    thread: Option<JoinHandle<()>>,
}

impl Keys {
    pub(super) fn start() -> Self {
        Self::read_with(read_keys)
    }

    fn read_with(read: impl FnOnce(Sender<Key>) + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel(KEYS_MAX);
        Self {
            receiver,
            thread: Some(thread::spawn(move || read(sender))),
        }
    }

    /// The next key; `None` if the terminal is gone. An error if the thread panicked.
    pub(super) async fn recv(&mut self) -> anyhow::Result<Option<Key>> {
        let key = self.receiver.recv().await;
        if key.is_none()
            && let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            anyhow::bail!("internal error: the thread that reads the keys panicked");
        }
        Ok(key)
    }
}

fn read_keys(sender: Sender<Key>) {
    while !sender.is_closed() {
        let event = match event::poll(KEYS_WAIT) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        let Ok(event) = event else { break };
        if let Some(key) = key(&event)
            && sender.blocking_send(key).is_err()
        {
            break;
        }
    }
}

fn key(event: &Event) -> Option<Key> {
    let (code, modifiers) = match event {
        Event::Resize(..) => return Some(Key::Resized),
        Event::Key(KeyEvent {
            code,
            modifiers,
            kind: KeyEventKind::Press | KeyEventKind::Repeat,
            ..
        }) => (code, modifiers),
        _ => return None,
    };
    Some(match code {
        KeyCode::Char('c' | 'd') if modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
        KeyCode::Char('p' | ' ') => Key::Pause,
        KeyCode::Char('u') => Key::UnknownOnly,
        KeyCode::Up | KeyCode::Char('k') => Key::Up,
        KeyCode::Down | KeyCode::Char('j') => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keys_that_panic_are_an_error_and_a_closed_terminal_is_not() {
        let mut panicked = Keys::read_with(|_| panic!("on purpose"));
        assert!(panicked.recv().await.is_err());
        let mut closed = Keys::read_with(drop);
        assert!(matches!(closed.recv().await, Ok(None)));
    }
}
