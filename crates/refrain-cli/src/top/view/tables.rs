//! Tables of operations and workers: as many columns as fit, the important ones first.

use std::cmp::Reverse;

use super::{
    super::{
        data::{Operation, Worker},
        state::State,
        text::{count, fit, micros},
    },
    Frame, LISTED_MAX, Style,
};
use crate::output::harmless;

/// Columns that a name has at least.
const NAME_MIN: usize = 16;
const COLUMN: usize = 10;

/// A column: its heading, and its value in a row.
type Column<T> = (&'static str, fn(&T) -> String);

/// Columns of numbers after a name.
struct Table<T: 'static> {
    title: &'static str,
    /// In the order in which they are shown.
    columns: &'static [Column<T>],
    /// Indexes of the columns, the most important one first.
    important: &'static [usize],
}

const OPERATIONS: Table<Operation> = Table {
    title: "SINCE THE START",
    columns: &[
        ("EXECUTED", |it| count(it.count("executed"))),
        ("REPLAYED", |it| {
            count(it.count("replayed") + it.count("waited"))
        }),
        ("WAITED", |it| count(it.waited)),
        ("REFUSED", |it| count(it.count("refused"))),
        ("UNKNOWN", |it| count(it.count("unknown"))),
        ("P50", |it| it.executed_p50_us.map_or("-".into(), micros)),
        ("P99", |it| it.executed_p99_us.map_or("-".into(), micros)),
    ],
    important: &[0, 4, 1, 3, 6, 2, 5],
};

const WORKERS: Table<Worker> = Table {
    title: "WORKERS",
    columns: &[
        ("LAG", |it| it.lag.map_or("-".into(), count)),
        ("RUNNING", |it| count(it.in_flight)),
        ("COMPLETED", |it| count(it.count("completed"))),
        ("DUPLICATE", |it| count(it.count("duplicate"))),
        ("RETRIED", |it| count(it.count("retried"))),
        ("DEAD", |it| {
            let since_start = || it.count("dead-lettered");
            count(it.dead_letters.unwrap_or_else(since_start))
        }),
    ],
    important: &[0, 5, 2, 4, 1, 3],
};

impl<T> Table<T> {
    /// The columns that fit, and the width of the name.
    fn shown(&self, columns: usize) -> (Vec<usize>, usize) {
        let room = columns.saturating_sub(NAME_MIN) / COLUMN;
        let mut shown = self.important[..room.min(self.important.len())].to_vec();
        shown.sort_unstable();
        let name = columns.saturating_sub(shown.len() * COLUMN);
        (shown, name.min(columns / 2).max(NAME_MIN))
    }

    fn line(&self, columns: usize, name: &str, cell: impl Fn(usize) -> String) -> String {
        let (shown, width) = self.shown(columns);
        let cells = shown.into_iter().map(|at| format!("{:>COLUMN$}", cell(at)));
        fit(&harmless(name, &[]), width) + &cells.collect::<String>()
    }

    fn heading(&self, columns: usize) -> String {
        self.line(columns, self.title, |at| self.columns[at].0.to_owned())
    }

    fn row(&self, columns: usize, name: &str, value: &T) -> String {
        self.line(columns, name, |at| (self.columns[at].1)(value))
    }
}

/// Rows that a table may have: a third of what is left.
fn rows(frame: &Frame) -> usize {
    (frame.left() / 3).clamp(1, LISTED_MAX)
}

pub(super) fn operations(frame: &mut Frame, state: &State) {
    let columns = frame.size.columns;
    frame.title(&OPERATIONS.heading(columns));
    let mut operations: Vec<_> = state.overview.operations.iter().collect();
    operations.sort_by_key(|it| Reverse(it.requests.values().sum::<u64>()));
    for operation in operations.into_iter().take(rows(frame)) {
        let style = match operation.count("unknown") {
            0 => Style::Plain,
            _ => Style::Bad,
        };
        let text = OPERATIONS.row(columns, &operation.operation, operation);
        frame.push([(style, text)]);
    }
}

pub(super) fn workers(frame: &mut Frame, state: &State) {
    let columns = frame.size.columns;
    frame.title(&WORKERS.heading(columns));
    for worker in state.workers.iter().take(rows(frame)) {
        let text = WORKERS.row(columns, &worker.name, worker);
        frame.push([(Style::Plain, text)]);
        if let Some(trouble) = &worker.trouble {
            frame.push([(Style::Bad, format!("  {trouble}"))]);
        }
    }
}
