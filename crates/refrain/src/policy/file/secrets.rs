//! Selects the parts of a file whose secrets are read.

/// The parts of `refrain.toml` whose secrets are read from the environment or from files.
///
/// The other parts are checked too, but a process does not need the secrets of parts that it does not use.
/// An address that was not read is replaced by a placeholder whose host name never resolves, and `authorization`
/// and `signature` are missing: use only the selected parts of the settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Secrets<'a> {
    /// The whole file.
    #[default]
    All,
    /// The store.
    Store,
    /// The store, `[policy]` and `[[operation]]`.
    Operations,
    /// The store, and the workers of these names; without names, all workers.
    Workers(&'a [String]),
    /// The relays of these names; without names, all relays.
    Relays(&'a [String]),
}

impl Secrets<'_> {
    pub(super) fn has_store(self) -> bool {
        !matches!(self, Self::Relays(_))
    }

    pub(super) fn has_operations(self) -> bool {
        matches!(self, Self::All | Self::Operations)
    }

    pub(super) fn has_worker(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Workers(names) => names.is_empty() || names.iter().any(|it| it == name),
            _ => false,
        }
    }

    pub(super) fn has_relay(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Relays(names) => names.is_empty() || names.iter().any(|it| it == name),
            _ => false,
        }
    }
}
