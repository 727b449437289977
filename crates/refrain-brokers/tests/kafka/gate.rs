//! A proxy that adds TLS and SASL, as brokers of a secured cluster do, to an unsecured cluster.

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use ring::{digest, hmac, pbkdf2};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use crate::support::pki::Pki;

pub(crate) const USER: &str = "worker";
pub(crate) const PASSWORD: &str = "pass/word";
/// API key of ApiVersions requests.
const VERSIONS: [u8; 2] = [0, 18];
/// API key of SaslHandshake requests.
const HANDSHAKE: [u8; 2] = [0, 17];
/// From this version on, ApiVersions responses use the flexible encoding.
const FLEXIBLE: [u8; 2] = [0, 3];
const ROUNDS: u32 = 4_096;
const SALT: &[u8] = b"salt of the test";

/// The SASL mechanism that the proxy requires.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Login {
    None,
    Plain,
    Scram256,
    Scram512,
}

pub(crate) struct Gate {
    pub(crate) port: u16,
    /// Number of successful logins.
    pub(crate) logins: Arc<Mutex<u32>>,
}

trait Line: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Line for T {}

impl Gate {
    /// Starts the proxy in front of the cluster at this address, with or without TLS.
    pub(crate) async fn start(servers: &str, pki: Option<&Pki>, login: Login) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let behind: u16 = servers.rsplit(':').next().unwrap().parse().unwrap();
        let tls = pki.map(|pki| TlsAcceptor::from(pki.server()));
        let logins = Arc::new(Mutex::new(0));
        let counted = logins.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (tls, counted) = (tls.clone(), counted.clone());
                tokio::spawn(async move {
                    let client: Box<dyn Line> = match tls {
                        Some(tls) => Box::new(tls.accept(client).await.ok()?),
                        None => Box::new(client),
                    };
                    pass(client, behind, port, login, &counted).await
                });
            }
        });
        Self { port, logins }
    }
}

async fn pass(
    mut client: Box<dyn Line>,
    behind: u16,
    port: u16,
    login: Login,
    logins: &Mutex<u32>,
) -> Option<()> {
    let mut server = TcpStream::connect(("127.0.0.1", behind)).await.ok()?;
    if login != Login::None {
        // Clients send ApiVersions before the login, and again with a lower version if the first one was too new.
        let mut asked = frame(&mut client).await?;
        while asked.starts_with(&VERSIONS) {
            send(&mut server, &asked).await?;
            let versions = frame(&mut server).await?;
            let version = asked.get(2..4)?;
            send(&mut client, &with_handshake(versions, version)?).await?;
            asked = frame(&mut client).await?;
        }
        let asked = shaken(&mut client, &asked, login).await?;
        match login {
            Login::Plain => plain(&mut client, &asked).await?,
            Login::Scram256 => {
                let hash = (
                    hmac::HMAC_SHA256,
                    pbkdf2::PBKDF2_HMAC_SHA256,
                    &digest::SHA256,
                );
                scram(&mut client, &asked, hash).await?;
            }
            _ => {
                let hash = (
                    hmac::HMAC_SHA512,
                    pbkdf2::PBKDF2_HMAC_SHA512,
                    &digest::SHA512,
                );
                scram(&mut client, &asked, hash).await?;
            }
        }
        *logins.lock().unwrap() += 1;
    }
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = server.into_split();
    tokio::spawn(async move {
        let _ = copy(&mut from_client, &mut to_server).await;
    });
    // Replaces the port that brokers advertise with the proxy's own.
    while let Some(mut answer) = frame(&mut from_server).await {
        let (old, new) = (
            u32::from(behind).to_be_bytes(),
            u32::from(port).to_be_bytes(),
        );
        for at in 0..answer.len().saturating_sub(3) {
            if answer[at..at + 4] == old {
                answer[at..at + 4].copy_from_slice(&new);
            }
        }
        send(&mut to_client, &answer).await?;
    }
    Some(())
}

async fn frame(line: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let size = line.read_i32().await.ok()?;
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    line.read_exact(&mut bytes).await.ok()?;
    Some(bytes)
}

async fn send(line: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Option<()> {
    let size = i32::try_from(bytes.len()).ok()?;
    line.write_i32(size).await.ok()?;
    line.write_all(bytes).await.ok()?;
    line.flush().await.ok()
}

/// Adds SaslHandshake version 0 to an ApiVersions response, because the cluster supports no logins.
fn with_handshake(mut versions: Vec<u8>, version: &[u8]) -> Option<Vec<u8>> {
    // The correlation id is followed by the error code and the list.
    if versions.get(4..6)? != [0, 0] {
        return Some(versions);
    }
    let mut entry = [HANDSHAKE, [0, 0], [0, 0]].concat();
    let at = match version < &FLEXIBLE[..] {
        true => {
            let count = u32::from_be_bytes(versions.get(6..10)?.try_into().ok()?) + 1;
            versions[6..10].copy_from_slice(&count.to_be_bytes());
            10
        }
        false => {
            versions[6] += 1;
            entry.push(0);
            7
        }
    };
    versions.splice(at..at, entry);
    Some(versions)
}

/// Answers the SaslHandshake request, and returns the first message of the login.
async fn shaken(client: &mut Box<dyn Line>, asked: &[u8], login: Login) -> Option<Vec<u8>> {
    let mechanism = match login {
        Login::Plain => "PLAIN",
        Login::Scram256 => "SCRAM-SHA-256",
        _ => "SCRAM-SHA-512",
    };
    if !asked.starts_with(&HANDSHAKE) || !asked.ends_with(mechanism.as_bytes()) {
        return None;
    }
    let mut answer = asked.get(4..8)?.to_vec();
    answer.extend([0, 0, 0, 0, 0, 1]);
    answer.extend(u16::try_from(mechanism.len()).ok()?.to_be_bytes());
    answer.extend(mechanism.as_bytes());
    send(client, &answer).await?;
    frame(client).await
}

async fn plain(client: &mut Box<dyn Line>, said: &[u8]) -> Option<()> {
    if said != format!("\0{USER}\0{PASSWORD}").as_bytes() {
        return None;
    }
    send(client, b"").await
}

type Hash = (
    hmac::Algorithm,
    pbkdf2::Algorithm,
    &'static digest::Algorithm,
);

/// SCRAM, server side (RFC 5802).
async fn scram(client: &mut Box<dyn Line>, first: &[u8], (mac, derive, hash): Hash) -> Option<()> {
    let first = std::str::from_utf8(first).ok()?;
    let bare = first.strip_prefix("n,,")?;
    let nonce = bare.strip_prefix(&format!("n={USER},r="))?;
    let nonce = format!("{nonce}and-ours");
    let challenge = format!("r={nonce},s={},i={ROUNDS}", BASE64.encode(SALT));
    send(client, challenge.as_bytes()).await?;
    let last = String::from_utf8(frame(client).await?).ok()?;
    let (without, proof) = last.rsplit_once(",p=")?;
    let proof = BASE64.decode(proof).ok()?;
    let mut salted = vec![0; hash.output_len()];
    let rounds = NonZeroU32::new(ROUNDS)?;
    pbkdf2::derive(derive, rounds, SALT, PASSWORD.as_bytes(), &mut salted);
    let sign = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(mac, key), text);
    let said = format!("{bare},{challenge},{without}");
    let client_key = sign(&salted, b"Client Key");
    let stored = digest::digest(hash, client_key.as_ref());
    let signature = sign(stored.as_ref(), said.as_bytes());
    let pairs = client_key.as_ref().iter().zip(signature.as_ref());
    let wanted: Vec<u8> = pairs.map(|(one, other)| one ^ other).collect();
    if wanted != proof {
        return None;
    }
    let server_key = sign(&salted, b"Server Key");
    let verdict = BASE64.encode(sign(server_key.as_ref(), said.as_bytes()));
    send(client, format!("v={verdict}").as_bytes()).await
}
