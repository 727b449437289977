//! The service's own process, where we may kill and pause it. Nothing else is ever signalled.

use std::{process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::{Instant, sleep},
};

use super::plan::Process;

/// How long a service may take to start.
const START_MAX: Duration = Duration::from_secs(20);
/// How long a killed process may take to be gone.
const END_MAX: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long something without an address has to live to count as started.
const SEEMS_UP: Duration = Duration::from_millis(200);

/// The process. A child of ours is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Service {
    command: Option<String>,
    /// Where it takes connections, which shows that it is up; a consumer has none.
    address: Option<String>,
    running: Running,
}

#[derive(Debug)]
enum Running {
    /// Ours, in a process group of its own.
    Child(Child, Pid),
    /// Somebody else's, which we were told.
    Told(Pid),
    /// Nobody told us.
    Unknown,
}

impl Service {
    /// Starts the service where that is ours to do.
    pub(super) async fn new(process: &Process, address: Option<&str>) -> Result<Self, String> {
        let pid = process.pid.map(|pid| {
            let pid = i32::try_from(pid).ok().filter(|pid| *pid > 1);
            let pid = pid.and_then(Pid::from_raw);
            pid.filter(|pid| test_kill_process(*pid).is_ok())
                .ok_or("--pid names no process that may be signalled")
        });
        let running = match pid.transpose()? {
            Some(pid) => Running::Told(pid),
            None => Running::Unknown,
        };
        let mut service = Self {
            command: process.command.clone(),
            address: address.map(str::to_owned),
            running,
        };
        if service.command.is_some() && process.pid.is_none() {
            if let Some(address) = address
                && service.is_up().await
            {
                return Err(format!(
                    "something answers at {address} already; end it, so that --restart-command can start it, or name it with --pid"
                ));
            }
            service.start().await?;
        }
        Ok(service)
    }

    /// Whether there is a process that we may signal.
    pub(super) fn is_known(&self) -> bool {
        !matches!(self.running, Running::Unknown)
    }

    /// Whether it can be killed more than once.
    pub(super) fn is_ours_to_start(&self) -> bool {
        self.command.is_some()
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        let sent = match &self.running {
            Running::Child(_, group) => kill_process_group(*group, signal),
            Running::Told(pid) => kill_process(*pid, signal),
            Running::Unknown => return Err("no process is known".into()),
        };
        sent.map_err(|error| format!("the service cannot be signalled: {error}"))
    }

    /// `kill -9`.
    pub(super) async fn kill(&mut self) -> Result<(), String> {
        self.signal(Signal::KILL)?;
        match &mut self.running {
            Running::Child(child, _) => drop(child.wait().await),
            Running::Told(pid) => {
                // Until then its port may seem to be open still.
                let since = Instant::now();
                while test_kill_process(*pid).is_ok() && since.elapsed() < END_MAX {
                    sleep(LOOK_EVERY).await;
                }
            }
            Running::Unknown => {}
        }
        self.running = Running::Unknown;
        Ok(())
    }

    /// Starts it again, or waits until somebody did.
    pub(super) async fn restart(&mut self) -> Result<(), String> {
        match self.command.is_some() {
            true => self.start().await,
            false => self.wait().await,
        }
    }

    /// Stands still until what this answers is dropped.
    pub(super) fn pause(&self) -> Result<Paused<'_>, String> {
        self.signal(Signal::STOP)?;
        Ok(Paused(self))
    }

    async fn start(&mut self) -> Result<(), String> {
        let command = self.command.clone().unwrap_or_default();
        let child = Command::new("sh")
            .args(["-c", &command])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("`{command}` cannot be started: {error}"))?;
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        let group = group.and_then(Pid::from_raw).ok_or("the service ended")?;
        self.running = Running::Child(child, group);
        self.wait().await
    }

    async fn wait(&mut self) -> Result<(), String> {
        let since = Instant::now();
        loop {
            let is_up = self.is_up().await;
            if let Running::Child(child, _) = &mut self.running
                && let Ok(Some(status)) = child.try_wait()
            {
                return Err(format!(
                    "the service ended when it was started ({status}); run the command by hand to see why"
                ));
            }
            if is_up {
                return Ok(());
            }
            if since.elapsed() > START_MAX {
                return Err(format!(
                    "the service did not come back within {START_MAX:?}"
                ));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    async fn is_up(&self) -> bool {
        match &self.address {
            Some(address) => TcpStream::connect(address).await.is_ok(),
            None => {
                // One that ends at once is found out; the rest shows when it works.
                sleep(SEEMS_UP).await;
                true
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if matches!(self.running, Running::Child(..)) {
            let _ = self.signal(Signal::KILL);
        }
        if let Running::Child(child, _) = &mut self.running {
            // It is as good as dead; a moment is enough for nothing of it to be left.
            for _ in 0..100 {
                if !matches!(child.try_wait(), Ok(None)) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// A service that stands still; it goes on when this is dropped.
#[derive(Debug)]
pub(super) struct Paused<'s>(&'s Service);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        let _ = self.0.signal(Signal::CONT);
    }
}
