//! An address as it is given: in the file, in the environment, or in a file of its own.

use std::ops::Range;

use super::{problem::Report, table::Places};
use crate::policy::{Address, outside};

/// The three settings that one address can be given with.
pub(super) struct Given<'a> {
    /// Of the first of them; the others have `_env` and `_file` behind it.
    pub(super) name: &'a str,
    pub(super) text: &'a Option<String>,
    pub(super) env: &'a Option<String>,
    pub(super) file: &'a Option<String>,
}

impl Given<'_> {
    fn names(&self) -> [String; 3] {
        ["", "_env", "_file"].map(|end| format!("{}{end}", self.name))
    }

    /// Where the first of the settings stands that is there.
    pub(super) fn place(&self, places: &Places) -> Option<Range<usize>> {
        self.names()
            .iter()
            .find_map(|name| places.get(name).cloned())
    }

    /// The text; `None` where there is none, or it cannot be read, which is reported.
    pub(super) fn read(&self, places: &Places, report: &mut Report<'_>) -> Option<String> {
        let name = self.name;
        let place = self.place(places).unwrap_or_default();
        let outside = match (self.text, self.env, self.file) {
            (text, None, None) => return text.clone(),
            (None, Some(variable), None) => outside::from_env(name, variable),
            (None, None, Some(path)) => outside::from_file(name, path),
            _ => {
                let message = format!("`{name}` is given twice");
                let help = format!("keep one of `{name}`, `{name}_env` and `{name}_file`");
                report.push(place, message, help);
                return None;
            }
        };
        match outside {
            Ok(outside) => Some(outside.text),
            Err(error) => {
                report.push_error(place, &error);
                None
            }
        }
    }
}

/// The address of a database that has receipts or an outbox.
pub(super) fn database(
    name: &str,
    text: String,
    at: Range<usize>,
    report: &mut Report<'_>,
) -> Address {
    let address = Address::new(text);
    let (scheme, rest) = address.as_str().split_once("://").unwrap_or(("", ""));
    if !["postgres", "postgresql"].contains(&scheme) || rest.is_empty() {
        let message = format!("`{name}` is no address of a PostgreSQL database");
        report.push(at, message, "write postgres://USER@HOST/DATABASE");
        return address;
    }
    certain(address, at, report)
}

/// The address; reported where it can be read in two ways.
pub(super) fn certain(address: Address, at: Range<usize>, report: &mut Report<'_>) -> Address {
    if let Err(error) = address.check() {
        report.push_error(at, &error);
    }
    address
}
