//! The real servers that tests need: found, started or installed, and gone at the end.
//!
//! A file for each service, which is a row in [`SERVICES`]. For each, the first way that fits is taken:
//! an address in the environment, the server's program on this machine, Docker, and last the package, installed or unpacked.

use std::{
    any::Any,
    env,
    ffi::{OsStr, OsString},
    io::{self, Write},
    path::PathBuf,
    process::{Command, ExitCode},
    thread,
};

mod address;
mod container;
pub(crate) mod moto;
mod nats;
mod package;
pub(crate) mod pgbouncer;
mod postgres;
mod rabbitmq;
mod redis;
pub(crate) mod tools;

use container::Container;

/// Something that is needed cannot be reached.
pub(crate) const UNAVAILABLE: u8 = 69;

/// All that tests may need.
///
/// RabbitMQ stands first: it takes the longest, and all are started at once.
const SERVICES: [&Service; 4] = [
    &rabbitmq::SERVICE,
    &postgres::SERVICE,
    &redis::SERVICE,
    &nats::SERVICE,
];

/// A kind of server, and all the ways to come by one.
struct Service {
    name: &'static str,
    /// Names the variable that tests read the address from; one that is set is used.
    url_variable: &'static str,
    /// Names the variable with the folder of the programs, for tests that start servers of their own.
    bin_variable: &'static str,
    /// Where it listens if an address does not say.
    port: u16,
    /// Debian's name for it.
    package: &'static str,
    /// The folder of its programs, if they are on this machine.
    binaries: fn() -> Option<PathBuf>,
    /// Starts a private instance.
    start: fn() -> io::Result<Held>,
    container: Container,
}

/// A server that is there until this is dropped.
struct Held {
    url: String,
    _server: Box<dyn Any + Send>,
}

/// How a service is come by.
enum Way {
    Given(String),
    Private,
    Docker,
}

/// The services that are up until this is dropped.
pub(crate) struct Services(Vec<Up>);

/// A service that is up.
struct Up {
    service: &'static Service,
    held: Held,
    binaries: Option<PathBuf>,
}

/// `cargo xtask services`: keeps them up for a developer until Ctrl-C.
pub(crate) fn run() -> ExitCode {
    let services = match Services::start() {
        Ok(services) => services,
        Err(code) => return code,
    };
    for (name, value) in services.variables() {
        println!("export {name}='{}'", value.display());
    }
    // Whoever reads this from a pipe must see it now.
    let _ = io::stdout().flush();
    eprintln!("xtask services: up until Ctrl-C");
    loop {
        // The end comes by a signal, and the guards see it.
        thread::park();
    }
}

impl Services {
    /// Brings all of them up and tells how; one that is missing is a failure.
    pub(crate) fn start() -> Result<Self, ExitCode> {
        Self::try_start().map_err(|problem| {
            eprintln!("xtask services: {problem}");
            ExitCode::from(UNAVAILABLE)
        })
    }

    fn try_start() -> Result<Self, String> {
        let ways = choose()?;
        let starting = ways.map(|(service, way)| thread::spawn(move || service.bring_up(way)));
        // All are waited for before one's failure ends the command: none is left half started.
        let ended = starting.map(|thread| thread.join());
        let mut services = Vec::new();
        for up in ended {
            services.push(up.map_err(|_| "a service's thread panicked")??);
        }
        Ok(Self(services))
    }

    /// Tells a command where the services are.
    pub(crate) fn tell(&self, command: &mut Command) {
        command.envs(self.variables());
    }

    fn variables(&self) -> impl Iterator<Item = (&'static str, OsString)> {
        self.0.iter().flat_map(|up| {
            let binaries = up.binaries.as_deref().map(|folder| folder.as_os_str());
            let url = Some(OsStr::new(&up.held.url));
            let both = [
                (up.service.url_variable, url),
                (up.service.bin_variable, binaries),
            ];
            both.into_iter()
                .filter_map(|(name, value)| Some((name, value?.to_owned())))
        })
    }
}

/// Chooses a way for each service; what has to be installed is installed here, all at once.
fn choose() -> Result<[(&'static Service, Way); SERVICES.len()], String> {
    let has_docker = std::cell::LazyCell::new(container::has_docker);
    let is_missing = |service: &&&Service| {
        service.given().is_none() && (service.binaries)().is_none() && !*has_docker
    };
    let missing: Vec<_> = SERVICES.iter().filter(is_missing).copied().collect();
    package::install(&missing)?;
    Ok(SERVICES.map(|service| (service, service.way())))
}

impl Service {
    fn given(&self) -> Option<String> {
        let url = env::var(self.url_variable).ok();
        url.filter(|url| !url.is_empty())
    }

    fn way(&self) -> Way {
        match (self.given(), (self.binaries)()) {
            (Some(url), _) => Way::Given(url),
            (None, Some(_)) => Way::Private,
            (None, None) => Way::Docker,
        }
    }

    fn bring_up(&'static self, way: Way) -> Result<Up, String> {
        let failed = |error: io::Error| format!("{}: {error}", self.name);
        let (how, held) = match way {
            Way::Given(url) => (
                format!("as {} says", self.url_variable),
                self.check(url).map_err(failed)?,
            ),
            Way::Private => ("a private instance".into(), (self.start)().map_err(failed)?),
            Way::Docker => (
                format!("a container of {}", self.container.image),
                self.container.start(self.package).map_err(failed)?,
            ),
        };
        let url = address::redacted(&held.url);
        eprintln!("xtask services: {}: {how}, {url}", self.name);
        Ok(Up {
            service: self,
            held,
            binaries: self.binaries_for_tests(),
        })
    }

    /// An address that was given is somebody else's server: it only has to be there.
    fn check(&self, url: String) -> io::Result<Held> {
        address::reach(&url, self.port)?;
        Ok(Held {
            url,
            _server: Box::new(()),
        })
    }

    /// Crash tests kill servers of their own, so the programs are needed also where the shared server is somewhere else.
    fn binaries_for_tests(&self) -> Option<PathBuf> {
        let found = (self.binaries)();
        if found.is_none() {
            package::unpack(self.package)
                .inspect_err(|problem| {
                    eprintln!(
                        "xtask services: tests that kill {} will fail: {problem}",
                        self.name
                    );
                })
                .ok()?;
        }
        found.or_else(self.binaries)
    }
}
