//! `refrain audit export`: entries of a log, as their own JSON lines or as CSV.

use std::{
    fs::OpenOptions,
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
};

use refrain::{
    RecordId,
    audit::{Check, Event, Written},
    clock::Timestamp,
};

use super::{AuditFailure, AuditLocation, UNREACHABLE, USAGE, code, print, walked};

/// Selects entries and their output format
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain audit export                                      all entries, byte for byte
  refrain audit export --from 2026-11-01 --until 2026-12-01 --format csv --output november.csv
  refrain audit export --operation 'POST /v1/payments' --event completed
  refrain audit export --event resolved --event erased      decisions of operators

The export also verifies the chain: damage is reported on standard error, with exit code 1.
In CSV, a cell that a spreadsheet would run as a formula starts with an apostrophe.
Exit codes: 0 no damage, 1 damage found, 2 wrong usage, 64 no log, or bad configuration,
69 log unreadable, or output not writable.")]
pub(super) struct Export {
    #[command(flatten)]
    place: AuditLocation,
    /// Only entries from this day or time on: 2026-11-01, or 2026-11-01T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = Timestamp::from_rfc3339)]
    from: Option<Timestamp>,
    /// Only entries before this day or time
    #[arg(long, value_name = "TIME", value_parser = Timestamp::from_rfc3339)]
    until: Option<Timestamp>,
    /// Only entries of this operation or worker; may be given several times
    #[arg(long = "operation", value_name = "NAME")]
    operations: Vec<String>,
    /// Only entries of this record; may be given several times
    #[arg(long = "record", value_name = "ID")]
    records: Vec<String>,
    /// Only entries with this event; may be given several times
    #[arg(long = "event", value_name = "EVENT", value_parser = Event::ALL.map(Event::name))]
    events: Vec<String>,
    /// Output format
    #[arg(long, value_enum, default_value = "jsonl")]
    format: Format,
    /// Write to this file, readable only by its owner
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// The lines of the log, byte for byte
    Jsonl,
    /// A table with a header line
    Csv,
}

impl Export {
    pub(super) fn run(&self) -> Result<u8, AuditFailure> {
        let records = self.records()?;
        let folder = self.place.folder()?;
        let mut out = self.open()?;
        let mut written = match self.format {
            Format::Csv => row(
                &mut out,
                COLUMNS.iter().map(|name| Some((*name).to_owned())),
            ),
            Format::Jsonl => Ok(()),
        };
        let mut entry = |entry: &Written, line: &[u8]| {
            if written.is_ok() && self.wants(entry, &records) {
                written = match self.format {
                    Format::Jsonl => out.write_all(line).and_then(|()| out.write_all(b"\n")),
                    Format::Csv => row(&mut out, cells(entry)),
                };
            }
        };
        let found = walked(&folder, &Check::default(), &mut entry)?;
        match written.and_then(|()| out.flush()) {
            // A reader that closes the pipe early, such as `head`, is not an error.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => {
                let message = format!("refrain: cannot write the entries: {error}");
                return Err(AuditFailure::new(UNREACHABLE, message));
            }
            Ok(()) => {}
        }
        print::complain_of(&found);
        Ok(code(&found))
    }

    fn open(&self) -> Result<Box<dyn Write>, AuditFailure> {
        let Some(file) = &self.output else {
            return Ok(Box::new(BufWriter::new(io::stdout().lock())));
        };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let opened = options.open(file).map_err(|error| {
            let message = format!("refrain: cannot write {}: {error}", file.display());
            AuditFailure::new(UNREACHABLE, message)
        })?;
        Ok(Box::new(BufWriter::new(opened)))
    }

    fn records(&self) -> Result<Vec<RecordId>, AuditFailure> {
        let records = self.records.iter().map(|text| {
            text.parse().map_err(|error| {
                AuditFailure::new(USAGE, format!("refrain: --record `{text}`: {error}"))
            })
        });
        records.collect()
    }

    fn wants(&self, entry: &Written, records: &[RecordId]) -> bool {
        let at = || Timestamp::from_rfc3339(&entry.at).unwrap_or_default();
        let is_named = |named: &[String], value: Option<&String>| {
            named.is_empty() || value.is_some_and(|value| named.contains(value))
        };
        let record = entry.record.as_deref();
        let record = record.and_then(|record| record.parse().ok());
        self.from.is_none_or(|from| at() >= from)
            && self.until.is_none_or(|until| at() < until)
            && is_named(&self.operations, entry.operation.as_ref())
            && is_named(&self.events, Some(&entry.event))
            && (records.is_empty() || record.is_some_and(|it| records.contains(&it)))
    }
}

const COLUMNS: [&str; 16] = [
    "seq",
    "at",
    "event",
    "operation",
    "record",
    "fence",
    "attempt",
    "status",
    "outcome",
    "detail",
    "actor",
    "by",
    "reason",
    "node",
    "prev",
    "hash",
];

fn cells(it: &Written) -> impl Iterator<Item = Option<String>> {
    let number = |number: Option<u16>| number.map(|number| number.to_string());
    [
        Some(it.seq.to_string()),
        Some(it.at.clone()),
        Some(it.event.clone()),
        it.operation.clone(),
        it.record.clone(),
        it.fence.clone(),
        number(it.attempt),
        number(it.status),
        it.outcome.clone(),
        it.detail.clone(),
        it.actor.clone(),
        it.by.clone(),
        it.reason.clone(),
        Some(it.node.clone()),
        Some(it.prev.clone()),
        Some(it.hash.clone()),
    ]
    .into_iter()
}

fn row(out: &mut dyn Write, cells: impl Iterator<Item = Option<String>>) -> io::Result<()> {
    let cells: Vec<_> = cells.map(|text| cell(&text.unwrap_or_default())).collect();
    // RFC 4180 requires CRLF.
    write!(out, "{}\r\n", cells.join(","))
}

/// Quotes a CSV cell where needed, and stops spreadsheets from reading it as a formula.
fn cell(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    let text = match is_formula {
        true => format!("'{text}"),
        false => text.to_owned(),
    };
    match text.contains([',', '"', '\n', '\r', '\'']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    //! A reason typed by an operator must not run as a formula in the auditor's spreadsheet.

    use super::cell;

    #[test]
    fn cells_are_text() {
        assert_eq!(cell("seen in the ledger"), "seen in the ledger");
        assert_eq!(cell("a, \"b\""), "\"a, \"\"b\"\"\"");
        assert_eq!(cell("=HYPERLINK(\"x\")"), "\"'=HYPERLINK(\"\"x\"\")\"");
        for start in ["+1", "-1", "@x", "\tx"] {
            assert!(cell(start).starts_with("\"'"), "{start:?}");
        }
    }
}
