//! Settings for every command: flags, then the environment, then the file.
//!
//! A setting comes from its flag, from `REFRAIN_NAME`, from the file that `REFRAIN_NAME_FILE` names, or from `refrain.toml`.

use std::{
    env,
    fs::File as SecretFile,
    io::Read as _,
    path::{Path, PathBuf},
};

use refrain::policy::{Address, File, Secrets, Settings};

use crate::proxy::Failure;

/// The default configuration file.
pub(crate) const CONFIG: &str = "refrain.toml";
/// The most bytes read from a file with one value.
const VALUE_BYTES_MAX: u64 = 64 << 10;

/// The flags of a command.
#[derive(Debug, Default)]
pub(crate) struct Flags<'a> {
    pub(crate) listen: Option<&'a str>,
    pub(crate) admin: Option<&'a str>,
    pub(crate) upstream: Option<&'a str>,
    pub(crate) store: Option<&'a str>,
    pub(crate) audit_log: Option<&'a str>,
    pub(crate) access_log: Option<&'a str>,
    /// Has no flag of its own: it comes from the variables of OpenTelemetry.
    pub(crate) otlp_endpoint: Option<&'a str>,
    pub(crate) tls_certificate: Option<&'a str>,
    pub(crate) tls_key: Option<&'a str>,
}

/// Settings, with those that came from flags and environment.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) settings: Settings,
    /// Names and values as TOML, without secrets; in the order of [`Flags`].
    pub(crate) overrides: Vec<(&'static str, String)>,
}

impl Loaded {
    /// The overrides as a refrain.toml without secrets.
    pub(crate) fn as_file(&self) -> String {
        let lines = self.overrides.iter();
        lines
            .map(|(name, value)| format!("{name} = {value}\n"))
            .collect()
    }
}

/// Checks whether the build supports the broker at an address: [`refrain_brokers::check_support`], except in tests.
pub(crate) type Supports = fn(&Address) -> refrain::Result<()>;

/// Loads the settings of a command: flags and environment override those of the file, if there is one.
/// `secrets` selects those that the command uses.
pub(crate) fn load(
    config: Option<&Path>,
    secrets: Secrets<'_>,
    flags: &Flags<'_>,
) -> Result<Loaded, Failure> {
    let given = [
        ("listen", flags.listen),
        ("admin", flags.admin),
        ("upstream", flags.upstream),
        ("store", flags.store),
        ("audit_log", flags.audit_log),
        ("proxy.access_log", flags.access_log),
        ("proxy.otlp_endpoint", flags.otlp_endpoint),
        ("tls.certificate", flags.tls_certificate),
        ("tls.key", flags.tls_key),
    ];
    let mut said = Vec::new();
    let mut text = String::new();
    for (name, flag) in given {
        if let Some(value) = value(&override_name(name), flag)? {
            if name.starts_with("tls.") {
                refuse_pem(name, &value)?;
            }
            text += &format!("{name} = {}\n", quoted(&value));
            said.push((name, value));
        }
    }
    let above = File::parse(&text, "flags and environment")?;
    let overrides = said.iter().map(|(name, value)| {
        let shown = match *name {
            "store" => listed(&above),
            _ => quoted(value),
        };
        (*name, shown)
    });
    let overrides = overrides.collect();
    let settings = match config {
        Some(file) => {
            let said = said.iter();
            let said = said.map(|(name, value)| (override_name(name), value.as_str()));
            let said: Vec<_> = said.collect();
            let said = said.iter().map(|(name, value)| (name.as_str(), *value));
            File::read_with(file, secrets, &said.collect::<Vec<_>>())?
        }
        None => above,
    };
    Ok(Loaded {
        settings,
        overrides,
    })
}

/// Rejects the content of a PEM file where its path belongs, without showing it: it may be a private key.
fn refuse_pem(name: &str, value: &str) -> Result<(), Failure> {
    if !value.contains('\n') && !value.contains("-----BEGIN") {
        return Ok(());
    }
    let flag = override_name(name).replace('_', "-");
    let variable = override_name(name).to_uppercase();
    Err(Failure::Configuration(format!(
        "refrain: --{flag} or REFRAIN_{variable} has the content of a file; write the path of the PEM file"
    )))
}

/// The name by which flags, variables and overrides know a setting: without `[proxy]`, and with any other table.
fn override_name(name: &str) -> String {
    name.trim_start_matches("proxy.").replace('.', "_")
}

/// The file that is named, or `refrain.toml` if it exists.
pub(crate) fn config(named: Option<&Path>) -> Option<PathBuf> {
    let usual = || Some(Path::new(CONFIG)).filter(|file| file.exists());
    named.or_else(usual).map(Path::to_owned)
}

/// A setting from its flag, from `REFRAIN_NAME`, or from the file that `REFRAIN_NAME_FILE` names.
pub(crate) fn value(name: &str, flag: Option<&str>) -> Result<Option<String>, Failure> {
    if let Some(flag) = flag {
        return Ok(Some(flag.into()));
    }
    let bad = |message: String| Failure::Configuration(format!("refrain: {message}"));
    let variable = format!("REFRAIN_{}", name.to_uppercase());
    if let Some(value) = env::var_os(&variable) {
        let value = value.into_string();
        let value = value.map_err(|_| bad(format!("{variable} is not UTF-8")))?;
        return Ok(Some(value));
    }
    let variable = variable + "_FILE";
    let Some(file) = env::var_os(&variable) else {
        return Ok(None);
    };
    let file = Path::new(&file);
    let mut text = String::new();
    let read = SecretFile::open(file)
        .and_then(|file| file.take(VALUE_BYTES_MAX).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(Some(text.trim_end().into())),
        Err(error) => Err(bad(format!(
            "{variable} names {}, which cannot be read: {error}; check the path and its permissions",
            file.display()
        ))),
    }
}

/// The stores as text, without secrets.
pub(crate) fn stores(settings: &Settings) -> String {
    let stores: Vec<_> = settings.store.iter().map(ToString::to_string).collect();
    stores.join(", ")
}

/// The stores as a TOML value, without secrets.
fn listed(settings: &Settings) -> String {
    let stores = settings.store.iter();
    let stores: Vec<_> = stores.map(|it| quoted(&it.to_string())).collect();
    match &stores[..] {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// Text as a TOML basic string; a JSON string is one.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
