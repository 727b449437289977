//! The real servers that tests need: found, started or installed, and stopped at the end.
//!
//! Each service has its own file and a row in [`SERVICES`]. The first available option is used: an address
//! in the environment, the server's program on this machine, Docker, and last the Debian package, installed
//! or unpacked.

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
mod nats;
mod package;
pub(crate) mod pgbouncer;
mod postgres;
pub(crate) mod pypi;
mod rabbitmq;
mod redis;
pub(crate) mod tools;

use container::Container;

/// Exit code if a required service is unavailable.
pub(crate) const UNAVAILABLE: u8 = 69;

/// All services that tests may need.
///
/// RabbitMQ is first, because it starts the slowest; all start in parallel.
const SERVICES: [&Service; 4] = [
    &rabbitmq::SERVICE,
    &postgres::SERVICE,
    &redis::SERVICE,
    &nats::SERVICE,
];

/// A kind of server, and how to find or start one.
struct Service {
    name: &'static str,
    /// Environment variable from which tests read the address; if it is set already, that server is used.
    url_variable: &'static str,
    /// Environment variable with the folder of the programs, for tests that start private servers.
    bin_variable: &'static str,
    /// Default port, for an address without one.
    port: u16,
    /// Name of the Debian package.
    package: &'static str,
    /// Returns the folder of the server's programs, if installed.
    binaries: fn() -> Option<PathBuf>,
    /// Starts a private instance.
    start: fn() -> io::Result<Held>,
    container: Container,
}

/// A server that runs until this is dropped.
struct Held {
    url: String,
    _server: Box<dyn Any + Send>,
}

/// Where a service comes from.
enum ServiceOrigin {
    Given(String),
    Private,
    Docker,
}

/// The running services; stopped on drop.
pub(crate) struct Services(Vec<Up>);

/// A running service.
struct Up {
    service: &'static Service,
    held: Held,
    binaries: Option<PathBuf>,
}

/// `cargo xtask services`: runs the services for a developer until Ctrl-C.
pub(crate) fn run() -> ExitCode {
    let services = match Services::start() {
        Ok(services) => services,
        Err(code) => return code,
    };
    for (name, value) in services.variables() {
        println!("export {name}='{}'", value.display());
    }
    // A reader on a pipe must get the lines at once.
    let _ = io::stdout().flush();
    eprintln!("xtask services: running until Ctrl-C");
    loop {
        // A signal ends the process, and the guards clean up.
        thread::park();
    }
}

impl Services {
    /// Starts all services and prints where each comes from; a missing one is an error.
    pub(crate) fn start() -> Result<Self, ExitCode> {
        Self::try_start().map_err(|problem| {
            eprintln!("xtask services: {problem}");
            ExitCode::from(UNAVAILABLE)
        })
    }

    fn try_start() -> Result<Self, String> {
        let ways = choose()?;
        let starting = ways.map(|(service, way)| thread::spawn(move || service.start_from(way)));
        // Joins all threads before it returns an error, so that no service is left half started.
        let ended = starting.map(|thread| thread.join());
        let mut services = Vec::new();
        for up in ended {
            services.push(up.map_err(|_| "the thread of a service panicked")??);
        }
        Ok(Self(services))
    }

    /// Sets the services' environment variables for a command.
    pub(crate) fn set_variables(&self, command: &mut Command) {
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

/// Chooses the source of each service; installs all missing packages at once.
fn choose() -> Result<[(&'static Service, ServiceOrigin); SERVICES.len()], String> {
    let has_docker = std::cell::LazyCell::new(container::has_docker);
    let is_missing = |service: &&&Service| {
        service.given_url().is_none() && (service.binaries)().is_none() && !*has_docker
    };
    let missing: Vec<_> = SERVICES.iter().filter(is_missing).copied().collect();
    package::install(&missing)?;
    Ok(SERVICES.map(|service| (service, service.origin())))
}

impl Service {
    fn given_url(&self) -> Option<String> {
        let url = env::var(self.url_variable).ok();
        url.filter(|url| !url.is_empty())
    }

    fn origin(&self) -> ServiceOrigin {
        match (self.given_url(), (self.binaries)()) {
            (Some(url), _) => ServiceOrigin::Given(url),
            (None, Some(_)) => ServiceOrigin::Private,
            (None, None) => ServiceOrigin::Docker,
        }
    }

    fn start_from(&'static self, way: ServiceOrigin) -> Result<Up, String> {
        let failed = |error: io::Error| format!("{}: {error}", self.name);
        let (how, held) = match way {
            ServiceOrigin::Given(url) => (
                format!("from {}", self.url_variable),
                self.check(url).map_err(failed)?,
            ),
            ServiceOrigin::Private => {
                ("a private instance".into(), (self.start)().map_err(failed)?)
            }
            ServiceOrigin::Docker => (
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

    /// Checks that a server given by its address is reachable.
    fn check(&self, url: String) -> io::Result<Held> {
        address::reach(&url, self.port)?;
        Ok(Held {
            url,
            _server: Box::new(()),
        })
    }

    /// Crash tests kill private servers, so the programs are needed even if the shared server runs elsewhere.
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
