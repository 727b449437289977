//! Resolves `[encryption]`: the keys are read here, before anything starts.

use std::ops::Range;

use toml::de::DeTable;

use super::{
    problem::Report,
    table::{self, ConfigTable},
    typed::{self, List},
};
use crate::{
    Encryption, Result,
    encryption::{MasterKey, PREVIOUS_MAX},
    policy::outside::{self, Outside},
};

/// Reads a secret from the environment or a file; arguments are the name of the setting without its ending, and its value.
type ReadOutside = fn(&str, &str) -> Result<Outside>;

/// Resolves the table into the keys; `None` if secrets are not read, or if there is a problem.
pub(super) fn resolve(
    mut table: DeTable<'_>,
    at: Range<usize>,
    report: &mut Report<'_>,
) -> Option<Encryption> {
    table::refuse_unknown(&mut table, ConfigTable::Encryption, report);
    let part = table::read::<typed::Encryption>(table, report);
    let values = &part.values;
    let place = |name: &str| part.places.get(name).cloned().unwrap_or_default();
    let list = |list: &Option<List>| list.as_ref().map(|it| it.0.clone()).unwrap_or_default();
    let (envs, files) = (
        list(&values.previous_key_envs),
        list(&values.previous_key_files),
    );
    if values.key_env.is_some() && values.key_file.is_some() {
        let help = "keep one of `key_env` and `key_file`";
        report.push(place("key_file"), "the key is set twice", help);
    }
    let has_key = values.key_env.is_some() || values.key_file.is_some();
    if !has_key && envs.is_empty() && files.is_empty() {
        let help = "write key_file = \"/run/secrets/refrain-key\" or key_env = \"REFRAIN_KEY\"; \
                    `refrain store generate-key` generates a key";
        report.push(at.clone(), "`[encryption]` has no key", help);
    }
    if envs.len() + files.len() > PREVIOUS_MAX {
        let message = format!("more than {PREVIOUS_MAX} previous keys");
        report.push(at, message, "remove those that no record needs");
        return None;
    }
    if !report.reads_secrets {
        return None;
    }
    let current = match (&values.key_env, &values.key_file) {
        (Some(name), _) => master_key(name, place("key_env"), outside::from_env, "key", report),
        (_, Some(path)) => master_key(path, place("key_file"), outside::from_file, "key", report),
        (None, None) => None,
    };
    let mut previous = Vec::new();
    let lists = [
        (envs, "previous_key_envs", outside::from_env as ReadOutside),
        (files, "previous_key_files", outside::from_file),
    ];
    for (names, setting, read) in lists {
        for (name, at) in names {
            let at = at.unwrap_or_else(|| place(setting));
            previous.extend(master_key(&name, at, read, "previous_key", report));
        }
    }
    let keys = current.map_or_else(Encryption::default, Encryption::new);
    Some(keys.with_previous(previous))
}

fn master_key(
    name: &str,
    at: Range<usize>,
    read: ReadOutside,
    setting: &str,
    report: &mut Report<'_>,
) -> Option<MasterKey> {
    let key = read(setting, name).and_then(|outside| {
        let Outside { text, origin } = outside;
        MasterKey::parse(&text).map_err(|error| {
            let message = format!("{origin}: {error}");
            crate::Error::new(error.kind(), message)
        })
    });
    key.map_err(|error| report.push_error(at, &error)).ok()
}
