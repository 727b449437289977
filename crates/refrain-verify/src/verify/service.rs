//! The process of the service under test. No other process is ever signalled.

use std::{process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::{Instant, sleep},
};

use super::plan::Process;

/// Timeout for the service to start.
const START_MAX: Duration = Duration::from_secs(20);
/// Timeout for a killed process to exit.
const END_MAX: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A process without an address counts as started after this time.
const SEEMS_UP: Duration = Duration::from_millis(200);

/// The process. A child process is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Service {
    command: Option<String>,
    /// Address on which it accepts connections once it has started; a consumer has none.
    address: Option<String>,
    running: Running,
}

#[derive(Debug)]
enum Running {
    /// A child process, in its own process group.
    Child(Child, Pid),
    /// A process started by others, given by its pid.
    Told(Pid),
    /// No process is known.
    Unknown,
}

impl Service {
    /// Starts the service if a command and no pid is given.
    pub(super) async fn new(process: &Process, address: Option<&str>) -> Result<Self, String> {
        let pid = process.pid.map(|pid| {
            let pid = i32::try_from(pid).ok().filter(|pid| *pid > 1);
            let pid = pid.and_then(Pid::from_raw);
            pid.filter(|pid| test_kill_process(*pid).is_ok())
                .ok_or("--pid: no such process, or no permission to signal it")
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
                    "a service already listens on {address}; stop it so that --restart-command can start it, or pass its process id with --pid"
                ));
            }
            service.start().await?;
        }
        Ok(service)
    }

    /// Whether there is a process to signal.
    pub(super) fn is_known(&self) -> bool {
        !matches!(self.running, Running::Unknown)
    }

    /// Whether it can be started again, and thus killed more than once.
    pub(super) fn is_ours_to_start(&self) -> bool {
        self.command.is_some()
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        let sent = match &self.running {
            Running::Child(_, group) => kill_process_group(*group, signal),
            Running::Told(pid) => kill_process(*pid, signal),
            Running::Unknown => return Err("the process id of the service is unknown".into()),
        };
        sent.map_err(|error| format!("cannot signal the service: {error}"))
    }

    /// Kills the process with SIGKILL and waits until it is gone.
    pub(super) async fn kill(&mut self) -> Result<(), String> {
        self.signal(Signal::KILL)?;
        match &mut self.running {
            Running::Child(child, _) => drop(child.wait().await),
            Running::Told(pid) => {
                // Until it is gone, its port may still look open.
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

    /// Starts the service again, or waits until others have.
    pub(super) async fn restart(&mut self) -> Result<(), String> {
        match self.command.is_some() {
            true => self.start().await,
            false => self.wait().await,
        }
    }

    /// Pauses the process with SIGSTOP until the returned guard is dropped.
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
            .map_err(|error| format!("cannot start `{command}`: {error}"))?;
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        let group = group.and_then(Pid::from_raw).ok_or("the service exited")?;
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
                    "the service exited at startup ({status}); run the command by hand to see why"
                ));
            }
            if is_up {
                return Ok(());
            }
            if since.elapsed() > START_MAX {
                return Err(format!(
                    "the service did not start to listen within {START_MAX:?}"
                ));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    async fn is_up(&self) -> bool {
        match &self.address {
            Some(address) => TcpStream::connect(address).await.is_ok(),
            None => {
                // Detects a process that exits at once; later failures show up in the cases.
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
            // Already killed: wait up to 500 ms to reap it.
            for _ in 0..100 {
                if !matches!(child.try_wait(), Ok(None)) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// A paused service; it resumes when this is dropped.
#[derive(Debug)]
pub(super) struct Paused<'s>(&'s Service);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        let _ = self.0.signal(Signal::CONT);
    }
}
