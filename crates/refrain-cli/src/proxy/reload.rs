//! Reloads the configuration of a running proxy, on SIGHUP or `POST /api/reload`.
//!
//! The file is read and checked as at start-up. Each [`Reloadable`] prepares its part, and only when all of them
//! succeeded they put it in force. Settings that none of them knows need a restart.

use std::{
    pin::Pin,
    sync::{Arc, PoisonError},
};

use refrain::{
    AuditLog,
    audit::{Entry, Event},
    policy::Settings,
};
use refrain_proxy::{
    CurrentLayer, ServerTls, StartError,
    admin::{
        CurrentAdmin, Metrics, OperationChanges, Reload, ReloadFuture, ReloadRejection,
        ReloadReport,
    },
};
use serde_json::Value;
use tokio::signal::unix::Signal;

use super::{Args, Failure, notify::Notifier, receipts, tell};

/// Settings that the proxy does not use.
const UNUSED: [&str; 2] = ["workers", "relays"];
/// The operations, which the report names one by one.
const OPERATIONS: &str = "operations";

/// Puts a prepared part in force; cannot fail.
pub(super) type Commit = Box<dyn FnOnce() + Send>;

/// Future of [`Reloadable::prepare`].
pub(super) type Preparation<'a> =
    Pin<Box<dyn Future<Output = Result<Commit, Failure>> + Send + 'a>>;

/// A part of the proxy that follows the configuration without a new process.
pub(super) trait Reloadable: Send + Sync {
    /// The settings that it puts in force, by their names in [`Settings`] as JSON.
    fn settings(&self) -> &'static [&'static str];

    /// Checks the settings, and acquires what they need; changes nothing yet.
    fn prepare<'a>(&'a self, settings: &'a Settings) -> Preparation<'a>;
}

/// Reloads the configuration that the proxy was started with.
pub(super) struct Reloader {
    args: Args,
    parts: Vec<Box<dyn Reloadable>>,
    admin: CurrentAdmin,
    metrics: Arc<Metrics>,
    notifier: Arc<Notifier>,
    /// Reloads run one at a time.
    in_force: tokio::sync::Mutex<InForce>,
}

/// The settings in force.
struct InForce {
    settings: Settings,
    /// As JSON, without secrets.
    shown: Value,
}

impl Reloader {
    pub(super) fn new(
        args: Args,
        settings: Settings,
        admin: CurrentAdmin,
        metrics: Arc<Metrics>,
        notifier: Arc<Notifier>,
        parts: Vec<Box<dyn Reloadable>>,
    ) -> Arc<Self> {
        let shown = admin.get().configuration.clone();
        Arc::new(Self {
            args,
            parts,
            admin,
            metrics,
            notifier,
            in_force: tokio::sync::Mutex::new(InForce { settings, shown }),
        })
    }

    /// Reloads on every SIGHUP.
    pub(super) async fn follow(self: Arc<Self>, mut hangups: Signal) {
        while hangups.recv().await.is_some() {
            // The result is logged.
            let _ = self.clone().reload().await;
        }
    }

    async fn run(&self) -> Result<ReloadReport, ReloadRejection> {
        let mut in_force = self.in_force.lock().await;
        self.notifier.reloading();
        let result = self.replace(&mut in_force).await;
        self.notifier.ready();
        self.metrics.reloads().count(result.is_ok());
        match &result {
            Ok(report) => tell(&in_force.settings, summary(report)),
            Err(rejection) => {
                let why = &rejection.error;
                tracing::error!(
                    "the new configuration is rejected, and the old one stays in force: {why}"
                );
            }
        }
        result
    }

    async fn replace(&self, in_force: &mut InForce) -> Result<ReloadReport, ReloadRejection> {
        if self.args.config.is_none() {
            let message =
                "refrain: no configuration file is in use; start the proxy with --config FILE";
            return Err(rejection(&Failure::Configuration(message.into())));
        }
        let settings = super::load(&self.args)
            .map_err(|it| rejection(&it))?
            .settings;
        let mut commits = Vec::new();
        for part in &self.parts {
            let prepared = part.prepare(&settings).await;
            commits.push(prepared.map_err(|it| rejection(&it))?);
        }
        // From here on nothing can fail, and nothing waits.
        commits.into_iter().for_each(|commit| commit());
        let report = self.compare(in_force, &settings);
        let new = serde_json::to_value(&settings).unwrap_or_default();
        for name in self.parts.iter().flat_map(|part| part.settings()) {
            in_force.shown[*name] = new[*name].clone();
        }
        in_force.settings.policy = settings.policy;
        let shown = in_force.shown.clone();
        self.admin.change(|admin| admin.configuration = shown);
        Ok(report)
    }

    fn compare(&self, in_force: &InForce, settings: &Settings) -> ReloadReport {
        let new = serde_json::to_value(settings).unwrap_or_default();
        let mut report = ReloadReport {
            operations: OperationChanges::between(&in_force.settings.policy, &settings.policy),
            warnings: settings.policy.warnings().collect(),
            ..ReloadReport::default()
        };
        let reloaded: Vec<_> = self.parts.iter().flat_map(|part| part.settings()).collect();
        for name in differences(&in_force.shown, &new) {
            match reloaded.iter().any(|it| **it == name) {
                true if name == OPERATIONS => {}
                true => report.changed.push(name),
                false => report.needs_restart.push(name),
            }
        }
        // JSON shows no passwords.
        let is_named = report.needs_restart.iter().any(|it| it == "store");
        if in_force.settings.store != settings.store && !is_named {
            report.needs_restart.push("store".into());
        }
        report
    }
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").finish_non_exhaustive()
    }
}

impl Reload for Reloader {
    fn reload(self: Arc<Self>) -> ReloadFuture {
        Box::pin(async move { self.run().await })
    }
}

/// The names of the settings that differ; those of a table with its name, such as `proxy.threads`.
fn differences(old: &Value, new: &Value) -> Vec<String> {
    let mut names = Vec::new();
    for (name, value) in new.as_object().into_iter().flatten() {
        if UNUSED.contains(&name.as_str()) || old[name] == *value {
            continue;
        }
        match (old[name].as_object(), value.as_object()) {
            (Some(old), Some(new)) => {
                let members = new
                    .iter()
                    .filter(|(member, value)| old.get(*member) != Some(value));
                names.extend(members.map(|(member, _)| format!("{name}.{member}")));
            }
            _ => names.push(name.clone()),
        }
    }
    names
}

/// A report as a line.
fn summary(report: &ReloadReport) -> String {
    let operations = &report.operations;
    let counts = [
        (operations.added.len(), "added"),
        (operations.changed.len(), "changed"),
        (operations.removed.len(), "removed"),
    ];
    let counts = counts.map(|(count, what)| format!("{count} {what}"));
    let mut line = format!(
        "reloaded the configuration; operations: {}",
        counts.join(", ")
    );
    if !report.changed.is_empty() {
        line += &format!("; changed: {}", report.changed.join(", "));
    }
    if !report.needs_restart.is_empty() {
        line += &format!("; needs a restart: {}", report.needs_restart.join(", "));
    }
    line
}

fn rejection(failure: &Failure) -> ReloadRejection {
    let fix = match failure {
        Failure::File(_) | Failure::Configuration(_) => {
            "correct the configuration, check it with `refrain check`, and reload again"
        }
        Failure::Unavailable(_) => "make it available, and reload again",
    };
    let problems = match failure {
        Failure::File(error) => serde_json::to_value(error.problems()).unwrap_or_default(),
        _ => Value::Array(Vec::new()),
    };
    ReloadRejection {
        error: one_line(failure),
        fix: fix.into(),
        problems,
        is_invalid: !matches!(failure, Failure::Unavailable(_)),
    }
}

/// A failure without line breaks and source lines.
fn one_line(failure: &Failure) -> String {
    let Failure::File(error) = failure else {
        let text = failure.to_string();
        return text.strip_prefix("refrain: ").unwrap_or(&text).into();
    };
    let problems = error.problems().iter().map(|problem| {
        let place = match (problem.line, problem.column) {
            (Some(line), Some(column)) => format!("{}:{line}:{column}", error.file()),
            _ => error.file().to_owned(),
        };
        match problem.help.as_str() {
            "" => format!("{place}: {}", problem.message),
            help => format!("{place}: {}; {help}", problem.message),
        }
    });
    let problems: Vec<_> = problems.map(|it| it.replace('\n', " ")).collect();
    problems.join(" | ")
}

/// Reloads the policy: the operations, their probes, receipts and secrets.
pub(super) struct PolicyReload {
    pub(super) layer: Arc<CurrentLayer>,
    pub(super) admin: CurrentAdmin,
    pub(super) metrics: Arc<Metrics>,
    /// The receipts in use.
    pub(super) receipts: Arc<std::sync::Mutex<receipts::Opened>>,
}

impl Reloadable for PolicyReload {
    fn settings(&self) -> &'static [&'static str] {
        &[OPERATIONS]
    }

    fn prepare<'a>(&'a self, settings: &'a Settings) -> Preparation<'a> {
        Box::pin(self.checked(settings))
    }
}

impl PolicyReload {
    async fn checked(&self, settings: &Settings) -> Result<Commit, Failure> {
        let old = self.layer.get();
        let engine = old.engine();
        settings.policy.check_store(engine.store())?;
        if let Some(log) = engine
            .audit()
            .filter(|_| settings.audited().next().is_some())
        {
            open_audit_log(log).await?;
        }
        let in_use = self.lock_receipts().clone();
        let opened = receipts::open(settings, in_use).await?;
        let layer = receipts::read(old.with_policy(settings.policy.clone()), &opened);
        layer.check()?;
        for witness in layer.witnesses() {
            engine.learn_standing(witness).await?;
        }
        let (current, admin, metrics) =
            (self.layer.clone(), self.admin.clone(), self.metrics.clone());
        let receipts = self.receipts.clone();
        Ok(Box::new(move || {
            metrics.follow(layer.policy());
            current.replace(layer.clone());
            admin.change(|admin| admin.layer = layer);
            *receipts.lock().unwrap_or_else(PoisonError::into_inner) = opened;
        }))
    }

    fn lock_receipts(&self) -> std::sync::MutexGuard<'_, receipts::Opened> {
        self.receipts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Loads the TLS certificates again. Other files, and TLS where there was none, need a restart.
pub(super) struct CertificateReload(pub(super) Vec<Arc<ServerTls>>);

impl Reloadable for CertificateReload {
    fn settings(&self) -> &'static [&'static str] {
        &[]
    }

    fn prepare<'a>(&'a self, _: &'a Settings) -> Preparation<'a> {
        let listeners = self.0.clone();
        Box::pin(async move {
            let reading = tokio::task::spawn_blocking(move || {
                let read = listeners.into_iter().map(ServerTls::prepare);
                read.collect::<Result<Vec<_>, _>>()
            });
            let prepared = reading.await.map_err(std::io::Error::from)?;
            let prepared = prepared.map_err(StartError::from)?;
            let commit = move || prepared.into_iter().for_each(|commit| commit());
            Ok(Box::new(commit) as Commit)
        })
    }
}

/// Opens the audit log, which was not needed before. A log that cannot be opened must not be latched shut:
/// a later reload may succeed.
async fn open_audit_log(log: &AuditLog) -> Result<(), Failure> {
    if log.entries() > 0 {
        return Ok(log.check()?);
    }
    let folder = log.folder().to_owned();
    let trial = tokio::task::spawn_blocking(move || AuditLog::open(folder).map(drop));
    trial.await.map_err(std::io::Error::from)??;
    let entry = Entry::new(Event::Reopened).with_detail("a reload of the policy audits operations");
    Ok(log.write(entry).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_members_of_tables_and_no_unused_ones() {
        let old = serde_json::json!({"listen": "a", "proxy": {"drain": "1s", "threads": 1}, "workers": []});
        let new = serde_json::json!({"listen": "b", "proxy": {"drain": "2s", "threads": 1}, "workers": [1]});
        assert_eq!(differences(&old, &new), ["listen", "proxy.drain"]);
        assert!(differences(&old, &old).is_empty());
    }
}
