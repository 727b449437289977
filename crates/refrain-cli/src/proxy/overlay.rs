//! Flags before the environment before the file.

use std::path::Path;

use refrain::policy::{File, Settings};

use super::{Args, Failure};

/// The settings, and what flags and environment say, as a refrain.toml.
pub(super) fn settings(args: &Args) -> Result<(Settings, String), Failure> {
    let said = [
        ("listen", value("listen", args.listen.as_deref())?),
        ("admin", value("admin", args.admin.as_deref())?),
        ("upstream", value("upstream", args.upstream.as_deref())?),
        ("store", value("store", args.store.as_deref())?),
        ("audit_log", value("audit_log", args.audit_log.as_deref())?),
    ];
    let mut text = String::new();
    for (name, value) in &said {
        if let Some(value) = value {
            text += &format!("{name} = {}\n", quoted(value));
        }
    }
    let overlay = File::parse(&text, "flags and environment")?;
    let mut settings = match args.config.as_deref() {
        Some(file) => File::read(file)?,
        None => return Ok((overlay, text)),
    };
    for (name, value) in &said {
        match (*name, value) {
            (_, None) => {}
            ("listen", _) => settings.listen = overlay.listen,
            ("admin", _) => settings.admin = overlay.admin,
            ("upstream", _) => settings.upstream.clone_from(&overlay.upstream),
            ("audit_log", _) => settings.audit_log.clone_from(&overlay.audit_log),
            (_, _) => settings.store.clone_from(&overlay.store),
        }
    }
    if settings.listen == settings.admin && settings.listen.port() != 0 {
        let message = format!(
            "refrain: proxy and admin would both listen on {}; give one of them another port",
            settings.listen
        );
        return Err(Failure::Configuration(message));
    }
    Ok((settings, text))
}

/// A setting from its flag, from `REFRAIN_NAME`, or from the file that `REFRAIN_NAME_FILE` names.
pub(crate) fn value(name: &str, flag: Option<&str>) -> Result<Option<String>, Failure> {
    if let Some(flag) = flag {
        return Ok(Some(flag.into()));
    }
    let variable = format!("REFRAIN_{}", name.to_uppercase());
    if let Ok(value) = std::env::var(&variable) {
        return Ok(Some(value));
    }
    let variable = variable + "_FILE";
    let Some(file) = std::env::var_os(&variable) else {
        return Ok(None);
    };
    let file = Path::new(&file);
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text.trim_end().into())),
        Err(error) => {
            let message = format!(
                "refrain: {variable} names {}, which cannot be read: {error}",
                file.display()
            );
            Err(Failure::Configuration(message))
        }
    }
}

/// As a basic string of TOML, which JSON's strings are.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
