//! The scripts: one for claims, one for settlements, one for each of the rest.

use ::redis::{Cmd, Script, cmd};

macro_rules! source {
    ($($name:literal),*) => {
        concat!($(include_str!(concat!("../../lua/", $name, ".lua")), "\n"),*)
    };
}

/// Which transition.
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

    /// What is common comes before what is defined for the rest: a script is run from its first line each time,
    /// and to define functions costs more than to call them.
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

    /// What ends or prolongs a claim is stored also where there is no room for new ones.
    fn is_let_through_when_full(self) -> bool {
        matches!(self, Self::Settlements | Self::Renew)
    }
}

/// The scripts as a server of one version takes them.
#[derive(Debug)]
pub(super) struct Scripts {
    scripts: [Script; 5],
    sources: [String; 5],
}

impl Scripts {
    /// `knows_flags`: from Redis 7 on a script can say what it is let through for.
    pub(super) fn new(knows_flags: bool) -> Self {
        let source = |name: Name| match knows_flags && name.is_let_through_when_full() {
            true => format!("#!lua flags=allow-oom\n{}", name.source()),
            false => name.source().to_owned(),
        };
        let sources = Name::ALL.map(source);
        let scripts = [0, 1, 2, 3, 4].map(|at: usize| Script::new(&sources[at]));
        Self { scripts, sources }
    }

    /// Loads them all.
    pub(super) fn load(&self) -> impl Iterator<Item = Cmd> {
        self.sources.iter().map(|source| {
            let mut load = cmd("SCRIPT");
            load.arg("LOAD").arg(source);
            load
        })
    }

    /// The name that a script is called by.
    pub(super) fn digest(&self, name: Name) -> &str {
        self.scripts[name as usize].get_hash()
    }
}
