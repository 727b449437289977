//! Connects to the servers of an address, and checks them.

use std::sync::Arc;

use ::redis::{
    Client,
    sentinel::{SentinelClientBuilder, SentinelServerType},
};
use refrain::Result;
use tokio::runtime::Handle;

use super::{
    address::{Address, RedisTopology, Sentinels},
    cluster::Cluster,
    connection::{Patience, RedisEndpoint, SharedConnection},
    errors,
    reception::{self, AddressSettings, Node, OpenedServer},
};

/// Installs a crypto provider for TLS, unless the program has chosen one.
pub(super) fn choose_crypto() {
    use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
    if CryptoProvider::get_default().is_none() {
        let _ = ring::default_provider().install_default();
    }
}

/// Connected server or cluster of a store.
pub(super) enum Met {
    One(SharedConnection),
    Cluster(Cluster),
}

pub(super) async fn connect(
    address: &Address,
    patience: Patience,
    runtime: &Handle,
) -> Result<(Met, Arc<OpenedServer>)> {
    let Address {
        shown,
        prefix,
        place,
        start,
    } = address;
    let start = *start;
    let convert = |error| errors::convert_error(error, shown);
    if let RedisTopology::Cluster(seeds) = place {
        let cluster = Cluster::connect(seeds.clone(), patience).await;
        let cluster = cluster.map_err(convert)?;
        let nodes = cluster.primaries().await.map_err(convert)?;
        let asked = AddressSettings {
            prefix,
            shown,
            start,
        };
        let known = reception::check_servers(&nodes, &cluster.any(), asked, None).await?;
        return Ok((Met::Cluster(cluster), Arc::new(known)));
    }
    let always = match place {
        RedisTopology::Sentinel(_) => {
            Some("Sentinel may fail over to a replica that has not received the latest writes")
        }
        RedisTopology::One(_) | RedisTopology::Cluster(_) => None,
    };
    let dialed = dial(place).map_err(convert)?;
    let line = SharedConnection::new(dialed, shown, patience, runtime.clone());
    let node = Node::One(line.dial().await?);
    let nodes = std::slice::from_ref(&node);
    let asked = AddressSettings {
        prefix,
        shown,
        start,
    };
    let known = Arc::new(reception::check_servers(nodes, &node, asked, always).await?);
    line.set_expected(known.clone());
    Ok((Met::One(line), known))
}

/// Client for the connection to a primary.
pub(super) fn dial(place: &RedisTopology) -> ::redis::RedisResult<RedisEndpoint> {
    match place {
        RedisTopology::One(info) => Ok(RedisEndpoint::One(Client::open((**info).clone())?)),
        RedisTopology::Sentinel(sentinels) => sentinel(sentinels),
        // A cluster has several primaries; see `Cluster`.
        RedisTopology::Cluster(_) => Err((
            ::redis::ErrorKind::InvalidClientConfig,
            "a cluster has no one primary",
        )
            .into()),
    }
}

fn sentinel(sentinels: &Sentinels) -> ::redis::RedisResult<RedisEndpoint> {
    let settings = sentinels.server.redis_settings();
    let mut builder = SentinelClientBuilder::new(
        sentinels.nodes.clone(),
        &sentinels.service,
        SentinelServerType::Master,
    )?
    .set_client_to_redis_db(settings.db());
    if let ::redis::ConnectionAddr::TcpTls { .. } = sentinels.server.addr() {
        builder = builder
            .set_client_to_redis_tls_mode(::redis::TlsMode::Secure)
            .set_client_to_sentinel_tls_mode(::redis::TlsMode::Secure);
    }
    if let Some(user) = settings.username() {
        builder = builder.set_client_to_redis_username(user);
        if sentinels.same_login {
            builder = builder.set_client_to_sentinel_username(user);
        }
    }
    if let Some(password) = settings.password() {
        builder = builder.set_client_to_redis_password(password);
        if sentinels.same_login {
            builder = builder.set_client_to_sentinel_password(password);
        }
    }
    Ok(RedisEndpoint::Sentinel(tokio::sync::Mutex::new(
        builder.build()?,
    )))
}
