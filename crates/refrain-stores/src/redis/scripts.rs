//! The scripts, one for each transition, and how they are called.

use ::redis::{Cmd, Script, cmd};

macro_rules! source {
    ($($name:literal),*) => {
        concat!($(include_str!(concat!("../../lua/", $name, ".lua")), "\n"),*)
    };
}

/// Which transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Claim,
    Settle,
    Renew,
    Erase,
    Read,
}

impl Name {
    pub(super) const ALL: [Self; 5] = [
        Self::Claim,
        Self::Settle,
        Self::Renew,
        Self::Erase,
        Self::Read,
    ];

    fn source(self) -> &'static str {
        match self {
            Self::Claim => source!("begin", "claim_new", "record", "claim"),
            Self::Settle => source!("begin", "settle_held", "record", "settle"),
            Self::Renew => source!("begin", "record", "renew"),
            Self::Erase => source!("begin", "record", "erase"),
            Self::Read => source!("begin", "record", "read"),
        }
    }

    /// What ends or prolongs a claim is stored also where there is no room for new ones.
    fn is_let_through_when_full(self) -> bool {
        matches!(self, Self::Settle | Self::Renew)
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

    /// The beginning of a call; arguments follow.
    pub(super) fn call(&self, name: Name, keys: &[&str], now: &str) -> Cmd {
        let mut call = cmd("EVALSHA");
        call.arg(self.scripts[name as usize].get_hash())
            .arg(keys.len());
        for key in keys {
            call.arg(*key);
        }
        call.arg(now);
        call
    }
}
