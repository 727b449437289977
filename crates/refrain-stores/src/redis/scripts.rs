//! Lua scripts: one for claims, one for settlements, one for each other command.

use ::redis::{Cmd, Script, cmd};

macro_rules! source {
    ($($name:literal),*) => {
        concat!($(include_str!(concat!("../../lua/", $name, ".lua")), "\n"),*)
    };
}

/// Name of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Claims,
    Settlements,
    Renew,
    Erase,
    Read,
}

impl Name {
    pub(super) const ALL: [Self; 5] = [
        Self::Claims,
        Self::Settlements,
        Self::Renew,
        Self::Erase,
        Self::Read,
    ];

    /// Source of a script. The common case comes before the functions for the others, because the server runs a script
    /// from its first line each time, and defining functions costs more than calling them.
    fn source(self) -> &'static str {
        match self {
            Self::Claims => source!("begin", "claims", "record", "claim", "claims_rest"),
            Self::Settlements => source!(
                "begin",
                "settlements",
                "record",
                "settle",
                "settlements_rest"
            ),
            Self::Renew => source!("begin", "one", "record", "renew"),
            Self::Erase => source!("begin", "one", "record", "erase"),
            Self::Read => source!("begin", "one", "record", "read"),
        }
    }

    /// Whether the script may write when the server is out of memory: settlements and renewals, but not new claims.
    fn is_let_through_when_full(self) -> bool {
        matches!(self, Self::Settlements | Self::Renew)
    }
}

/// Scripts for one server version.
#[derive(Debug)]
pub(super) struct Scripts {
    scripts: [Script; 5],
    sources: [String; 5],
}

impl Scripts {
    /// `knows_flags`: Redis 7 or later, where a script can declare `allow-oom`.
    pub(super) fn new(knows_flags: bool) -> Self {
        let source = |name: Name| match knows_flags && name.is_let_through_when_full() {
            true => format!("#!lua flags=allow-oom\n{}", name.source()),
            false => name.source().to_owned(),
        };
        let sources = Name::ALL.map(source);
        let scripts = [0, 1, 2, 3, 4].map(|at: usize| Script::new(&sources[at]));
        Self { scripts, sources }
    }

    /// Commands that load all scripts.
    pub(super) fn load(&self) -> impl Iterator<Item = Cmd> {
        self.sources.iter().map(|source| {
            let mut load = cmd("SCRIPT");
            load.arg("LOAD").arg(source);
            load
        })
    }

    /// SHA-1 digest by which a script is called.
    pub(super) fn digest(&self, name: Name) -> &str {
        self.scripts[name as usize].get_hash()
    }
}
