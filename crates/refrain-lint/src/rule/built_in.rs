//! The built-in rule files.

/// File names and contents.
pub(super) const FILES: [(&str, &str); 5] = [
    ("words.toml", include_str!("../../rules/words.toml")),
    ("keys.toml", include_str!("../../rules/keys.toml")),
    ("calls.toml", include_str!("../../rules/calls.toml")),
    ("messages.toml", include_str!("../../rules/messages.toml")),
    ("stores.toml", include_str!("../../rules/stores.toml")),
];
