//! The admin listener of `refrain work`: that of the proxy, with the records of messages and the workers.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
};

use refrain::{
    Engine,
    http::RefrainLayer,
    policy::{Policy, Settings},
};
use refrain_proxy::{
    admin::{self, Admin, Metrics},
    telemetry::Telemetry,
};
use tokio::task::AbortHandle;

use super::workers::RunningWorkers;
use crate::{
    output::say,
    proxy::{Failure, admin_tls, listen},
};

/// The running listener, which stops on drop.
pub(super) struct Serving(AbortHandle);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// State of the process that the listener reports, beside the workers.
pub(super) struct ProcessState<'a> {
    pub(super) settings: &'a Settings,
    pub(super) engine: Engine,
    pub(super) metrics: Arc<Metrics>,
    pub(super) is_stopping: Arc<AtomicBool>,
}

pub(super) async fn serve(
    address: SocketAddr,
    (token, reader_token): (Option<String>, Option<String>),
    state: ProcessState<'_>,
    workers: Arc<RunningWorkers>,
) -> Result<Serving, Failure> {
    let listener = listen(address).await?;
    let tls = admin_tls(state.settings, &state.metrics)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    say(format!("admin {scheme}://{}", listener.local_addr()?));
    let admin = Admin {
        // No request passes through this process, so no operation guards one.
        layer: RefrainLayer::new(state.engine, Policy::new(Vec::new())?),
        telemetry: Telemetry::new(state.metrics),
        is_draining: state.is_stopping,
        token,
        reader_token,
        hosts: state.settings.admin_hosts.clone(),
        configuration: serde_json::to_value(state.settings).unwrap_or_default(),
        workers: Some(workers),
        reload: None,
        tls,
        search_time: admin::SEARCH_TIME,
    };
    let task = tokio::spawn(admin::serve(listener, admin, std::future::pending()));
    Ok(Serving(task.abort_handle()))
}
