//! HTTP client for the addresses of a running command: the proxy's admin address, or the control address of `chaos`.

use std::{
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use refrain::policy::{File, Secrets, redacted};
use refrain_tls::{Authorities, Identity, PemFile, TlsError, Verification};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::settings;

const REFUSED: u8 = 1;
const USAGE: u8 = 2;
const BAD_CONFIGURATION: u8 = 64;
const UNREACHABLE: u8 = 69;

const PORT_DEFAULT: u16 = 80;
const TLS_PORT_DEFAULT: u16 = 443;
/// Timeout of a request: longer than the longest request that the admin listener itself makes.
const PATIENCE: Duration = Duration::from_secs(40);
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The admin or control address of a running command: its name in messages, its flag and setting, its default, and the command that serves it.
#[derive(Debug)]
pub(crate) struct ControlEndpoint {
    /// The name in messages, such as "admin address".
    pub(crate) name: &'static str,
    pub(crate) flag: &'static str,
    /// The name of the setting for [`settings::value`].
    pub(crate) setting: &'static str,
    pub(crate) otherwise: &'static str,
    pub(crate) command: &'static str,
}

/// TLS of a client whose address is `https`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct TlsFlags {
    /// PEM file with the CA certificates to trust, if the address is https [default: those of the system]
    #[arg(long, global = true, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// PEM file with the certificate and the private key of this client, if the server requires one
    #[arg(long, global = true, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Trusts every server: only for a look at this machine.
    #[arg(skip)]
    is_unverified: bool,
}

impl TlsFlags {
    /// Trusts every server.
    pub(crate) fn unverified() -> Self {
        Self {
            is_unverified: true,
            ..Self::default()
        }
    }

    fn connector(&self) -> Result<TlsConnector, TlsError> {
        let file = |setting, path| PemFile { setting, path };
        let trusted = self.cacert.as_deref().map(|path| file("--cacert", path));
        let verification = match self.is_unverified {
            true => Verification::None,
            false => Verification::Full(Authorities::read(trusted)?.at_least_one("--cacert FILE")?),
        };
        let own = self.cert.as_deref().map(|path| file("--cert", path));
        let identity = own.map(|file| Identity {
            certificates: file,
            key: file,
        });
        let config = refrain_tls::client(verification, identity)?;
        Ok(Arc::new(config).into())
    }
}

/// The proxy's admin address.
pub(crate) const ADMIN: ControlEndpoint = ControlEndpoint {
    name: "admin address",
    flag: "--admin",
    setting: "admin",
    otherwise: "http://127.0.0.1:8378",
    command: "refrain proxy",
};

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum RequestError {
    Usage(String),
    /// `refrain.toml`, which has the address, is invalid.
    Configuration(String),
    Unreachable(String),
    /// The server refused the request, with the reason and the fix.
    Refused {
        status: StatusCode,
        error: String,
        fix: String,
    },
}

impl RequestError {
    pub(crate) fn usage(message: String) -> Self {
        Self::Usage(message)
    }

    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::Configuration(_) => BAD_CONFIGURATION,
            Self::Unreachable(_) => UNREACHABLE,
            Self::Refused { status, .. } => match *status {
                StatusCode::SERVICE_UNAVAILABLE => UNREACHABLE,
                StatusCode::NOT_FOUND | StatusCode::CONFLICT => REFUSED,
                status if status.is_client_error() => USAGE,
                _ => REFUSED,
            },
        }
    }

    /// Whether the same request may succeed later.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Usage(_) | Self::Configuration(_) => false,
            Self::Unreachable(_) => true,
            Self::Refused { status, .. } => status.is_server_error(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        match self {
            Self::Usage(error) | Self::Configuration(error) | Self::Unreachable(error) => {
                json!({ "error": error })
            }
            Self::Refused { error, fix, .. } => json!({ "error": error, "fix": fix }),
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(error) | Self::Configuration(error) | Self::Unreachable(error) => {
                f.write_str(error)
            }
            Self::Refused { error, fix, .. } => write!(f, "{error}; {fix}"),
        }
    }
}

/// A client of one address.
pub(crate) struct Client {
    place: &'static ControlEndpoint,
    address: String,
    host: String,
    port: u16,
    token: Option<String>,
    /// TLS, if the address is https.
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// The admin address in the `refrain.toml` of this folder, if there is one.
fn admin_of_file() -> Result<Option<String>, RequestError> {
    let Some(file) = settings::config(None) else {
        return Ok(None);
    };
    let read = File::read_with(&file, Secrets::Nothing, &[]);
    let settings = read.map_err(|error| {
        let message = format!(
            "{error}\nfix the file, or pass the address with {}",
            ADMIN.flag
        );
        RequestError::Configuration(message)
    })?;
    let scheme = settings.admin_tls.map_or("http", |_| "https");
    Ok(Some(format!("{scheme}://{}", settings.admin)))
}

impl Client {
    pub(crate) fn new(
        place: &'static ControlEndpoint,
        address: Option<&str>,
        token: Option<&str>,
        tls: &TlsFlags,
    ) -> Result<Self, RequestError> {
        let given = |name, flag| {
            let value = settings::value(name, flag);
            value.map_err(|failure| RequestError::usage(failure.to_string()))
        };
        let address = match given(place.setting, address)? {
            None if place.setting == ADMIN.setting => admin_of_file()?,
            address => address,
        };
        // The proxy's own setting is host and port alone.
        let address = address.map(|it| match it.contains("://") {
            true => it,
            false => format!("http://{it}"),
        });
        let address = address.unwrap_or_else(|| place.otherwise.into());
        let token = given("admin_token", token)?.map(|token| token.trim().to_owned());
        let bad = || {
            RequestError::usage(format!(
                "{} `{}` is not a valid address; use the form {}",
                place.flag,
                redacted(&address),
                place.otherwise
            ))
        };
        let uri: Uri = address.parse().map_err(|_| bad())?;
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad()),
        };
        let host = uri.host().filter(|host| !host.is_empty() && is_bare);
        let host = host.ok_or_else(bad)?.trim_matches(['[', ']']);
        let name = || ServerName::try_from(host.to_owned()).map_err(|_| bad());
        let connector = || {
            let connector = tls.connector();
            connector.map_err(|error| RequestError::usage(error.to_string()))
        };
        let (tls, port) = match is_tls {
            true => (Some((connector()?, name()?)), TLS_PORT_DEFAULT),
            false => (None, PORT_DEFAULT),
        };
        Ok(Self {
            host: host.into(),
            port: uri.port_u16().unwrap_or(port),
            token,
            tls,
            place,
            address,
        })
    }

    /// The address that it sends to, without a password.
    pub(crate) fn address(&self) -> String {
        redacted(&self.address)
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, RequestError> {
        self.send_request(Method::GET, path, None).await
    }

    /// As [`get`](Self::get), with the time in the response's `Date`, since 1970.
    pub(crate) async fn get_dated(
        &self,
        path: &str,
    ) -> Result<(Option<Duration>, Value), RequestError> {
        let response = self.respond(Method::GET, path, None).await?;
        let date = response.headers().get(header::DATE);
        let date = date.and_then(|it| httpdate::parse_http_date(it.to_str().ok()?).ok());
        let date = date.and_then(|it| it.duration_since(UNIX_EPOCH).ok());
        Ok((date, self.read(response)?))
    }

    /// Whether a proxy or layer serves this address: it has the page of a problem.
    pub(crate) async fn is_refrain(&self) -> bool {
        let page = format!("{}outcome-unknown", refrain::http::PROBLEMS_PATH);
        let response = self.respond(Method::GET, &page, None).await;
        response.is_ok_and(|it| it.status().is_success())
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, RequestError> {
        self.send_request(Method::POST, path, Some(body)).await
    }

    pub(crate) async fn delete(&self, path: &str, body: &Value) -> Result<Value, RequestError> {
        self.send_request(Method::DELETE, path, Some(body)).await
    }

    async fn send_request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, RequestError> {
        let response = self.respond(method, path, body).await?;
        self.read(response)
    }

    async fn respond(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response<Bytes>, RequestError> {
        let request = self.build_request(method, path, body)?;
        match timeout(PATIENCE, self.send(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(self.unreachable(&format!("{error:#}"))),
            Err(_) => Err(self.unreachable("timed out")),
        }
    }

    fn read(&self, response: Response<Bytes>) -> Result<Value, RequestError> {
        let status = response.status();
        let answer: Option<Value> = serde_json::from_slice(response.body()).ok();
        match (status.is_success(), answer) {
            (true, Some(answer)) => Ok(answer),
            (false, Some(answer)) if answer["error"].is_string() => {
                let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
                let (error, fix) = match status {
                    StatusCode::UNAUTHORIZED => self.unauthorized(),
                    _ => (text("error"), text("fix")),
                };
                Err(RequestError::Refused { status, error, fix })
            }
            _ => {
                let name = self.place.name;
                let what = format!("the server there (status {status}) is not a Refrain {name}");
                Err(self.unreachable(&what))
            }
        }
    }

    fn build_request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Request<Full<Bytes>>, RequestError> {
        let host = match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, host);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let bytes = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(bytes)));
        request.map_err(|error| RequestError::usage(format!("cannot build the request: {error}")))
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> anyhow::Result<Response<Bytes>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        match &self.tls {
            None => exchange(stream, request).await,
            Some((tls, name)) => exchange(tls.connect(name.clone(), stream).await?, request).await,
        }
    }

    /// What is wrong with the token, and how to set it.
    fn unauthorized(&self) -> (String, String) {
        let (name, command) = (self.place.name, self.place.command);
        let address = redacted(&self.address);
        let error = match self.token {
            None => format!("the {name} {address} requires a token, and none is set"),
            Some(_) => format!("the {name} {address} rejects the token"),
        };
        let fix = format!(
            "set REFRAIN_ADMIN_TOKEN to the token of `{command}`, or REFRAIN_ADMIN_TOKEN_FILE to a file that contains it, \
             or pass --token TOKEN"
        );
        (error, fix)
    }

    fn unreachable(&self, why: &str) -> RequestError {
        let ControlEndpoint {
            name,
            flag,
            command,
            ..
        } = self.place;
        RequestError::Unreachable(format!(
            "cannot reach the {name} {}: {why}; start `{command}`, or pass its address with {flag}",
            self.address
        ))
    }
}

/// Sends a request over a connection, and reads the whole response.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Response<Bytes>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Aborted on drop.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(Response::from_parts(head, body.to_bytes()))
}
