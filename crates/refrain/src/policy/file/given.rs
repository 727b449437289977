//! An address that is given in `refrain.toml`, in an environment variable, or in a separate file.

use std::ops::Range;

use super::{problem::Report, table::Places};
use crate::policy::{
    Address, outside,
    schemes::{Backend, BackendId},
};

/// The three settings for one address: `NAME`, `NAME_env` and `NAME_file`.
pub(super) struct Given<'a> {
    /// Name of the first setting; the others append `_env` and `_file`.
    pub(super) name: &'a str,
    pub(super) text: &'a Option<String>,
    pub(super) env: &'a Option<String>,
    pub(super) file: &'a Option<String>,
}

impl Given<'_> {
    /// Placeholder for an address that is not read: a valid scheme with a host name that never resolves.
    fn placeholder(&self) -> &'static str {
        match self.name {
            "source" | "to" => "redis://not-read.invalid",
            _ => "postgres://not-read.invalid/not-read",
        }
    }

    fn names(&self) -> [String; 3] {
        ["", "_env", "_file"].map(|end| format!("{}{end}", self.name))
    }

    /// Returns the byte range of the first of the three settings that is present.
    pub(super) fn place(&self, places: &Places) -> Option<Range<usize>> {
        self.names()
            .iter()
            .find_map(|name| places.get(name).cloned())
    }

    /// Returns the address; `None` if it is not given or cannot be read, which is reported.
    pub(super) fn read(&self, places: &Places, report: &mut Report<'_>) -> Option<String> {
        let name = self.name;
        let place = self.place(places).unwrap_or_default();
        let outside = match (self.text, self.env, self.file) {
            (text, None, None) => return text.clone(),
            (None, Some(_), None) | (None, None, Some(_)) if !report.reads_secrets => {
                return Some(self.placeholder().into());
            }
            (None, Some(variable), None) => outside::from_env(name, variable),
            (None, None, Some(path)) => outside::from_file(name, path),
            _ => {
                let message = format!("`{name}` is set twice");
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

/// Checks the address of a PostgreSQL database for receipts or an outbox.
pub(super) fn database(
    name: &str,
    text: String,
    at: Range<usize>,
    report: &mut Report<'_>,
) -> Address {
    let address = Address::new(text);
    let backend = Backend::of_store(address.as_str());
    if backend.is_none_or(|it| it.id != BackendId::Postgres) {
        let message = format!("`{name}` is not the address of a PostgreSQL database");
        report.push(at, message, "write postgres://USER@HOST/DATABASE");
        return address;
    }
    check_address(address, at, report)
}

/// Reports an address that can be parsed in two ways.
pub(super) fn check_address(
    address: Address,
    at: Range<usize>,
    report: &mut Report<'_>,
) -> Address {
    if let Err(error) = address.check() {
        report.push_error(at, &error);
    }
    address
}
