//! Mark of the store: one key that identifies the store under a prefix, with its format version and its digest secret.
//!
//! It never expires. A server without it is new, or has lost the records: [`loss`](super::loss) looks for evidence.

use ::redis::cmd;
use refrain::{Error, ErrorKind, Result, Secret};

use super::{
    address::Start,
    errors, loss,
    reception::{AddressSettings, Node},
};

/// Format version of the keys. Records have versions of their own.
const VERSION: u32 = 3;
const START: &str = "refrain store ";

#[derive(Debug)]
pub(super) struct Mark {
    pub(super) key: String,
    pub(super) secret: Secret,
    /// Value of the key.
    pub(super) text: String,
}

impl Mark {
    /// Reads the mark, or creates it unless there is evidence of a loss. With `SET NX`, concurrent processes agree.
    ///
    /// `node` holds the mark; `nodes` are all servers with records.
    pub(super) async fn read_or_create(
        node: &Node,
        nodes: &[Node],
        asked: AddressSettings<'_>,
    ) -> Result<Self> {
        let AddressSettings { prefix, shown, .. } = asked;
        let key = key_of(prefix);
        let mut text = read(node, &key, shown).await?;
        if text.is_none() {
            let lost = loss::find_evidence(node, nodes, asked).await?;
            // Another process may have created the store just now.
            text = read(node, &key, shown).await?;
            if let (None, Some(what)) = (&text, lost) {
                return Err(errors::records_lost(&what, shown));
            }
        }
        if text.is_none() {
            write_if_absent(node, &key, &text_of(&Secret::random()), shown).await?;
            text = read(node, &key, shown).await?;
        }
        let text = text.ok_or_else(|| errors::mark_lost(shown))?;
        let secret = parse(&text, &key, shown)?;
        if asked.start == Start::Fresh {
            loss::delete_note(node, prefix, shown).await?;
        }
        let text = text_of(&secret);
        Ok(Self { key, secret, text })
    }

    /// Checks that the server still has the same mark. A server that is known to lose data gets the mark again.
    pub(super) async fn check(&self, node: &Node, may_forget: bool, shown: &str) -> Result<()> {
        if may_forget {
            self.write_if_absent(node, shown).await?;
        }
        let text = read(node, &self.key, shown).await?;
        let secret = match text {
            Some(text) => parse(&text, &self.key, shown)?,
            None => {
                // For processes that start later: they must not take the server for a new one. Best effort; other
                // processes try it, too.
                let _ = node.send_command::<::redis::Value>(self.note_loss()).await;
                return Err(errors::mark_lost(shown));
            }
        };
        match secret.as_bytes() == self.secret.as_bytes() {
            true => Ok(()),
            false => Err(errors::store_replaced(shown)),
        }
    }

    /// Writes this mark if there is none.
    pub(super) async fn write_if_absent(&self, node: &Node, shown: &str) -> Result<()> {
        write_if_absent(node, &self.key, &self.text, shown).await
    }

    /// Command that reads the mark.
    pub(super) fn read_command(&self) -> ::redis::Cmd {
        let mut get = cmd("GET");
        get.arg(&self.key);
        get
    }

    /// Command that records the loss of the mark for processes that start later.
    pub(super) fn note_loss(&self) -> ::redis::Cmd {
        loss::note(&self.key)
    }

    /// Command that writes this mark if there is none.
    pub(super) fn write_command(&self) -> ::redis::Cmd {
        set(&self.key, &self.text)
    }
}

/// Key of the mark. Every process that has the store open subscribes to a channel of this name, except in a cluster.
pub(super) fn key_of(prefix: &str) -> String {
    format!("{prefix}store")
}

pub(super) fn set(key: &str, text: &str) -> ::redis::Cmd {
    let mut set = cmd("SET");
    set.arg(key).arg(text).arg("NX");
    set
}

async fn write_if_absent(node: &Node, key: &str, text: &str, shown: &str) -> Result<()> {
    let written = node.send_command::<::redis::Value>(set(key, text)).await;
    written
        .map(drop)
        .map_err(|error| errors::convert_error(error, shown))
}

async fn read(node: &Node, key: &str, shown: &str) -> Result<Option<Vec<u8>>> {
    let mut get = cmd("GET");
    get.arg(key);
    let text = node.send_command(get).await;
    text.map_err(|error| match error.code() {
        Some("WRONGTYPE") => foreign(key, shown),
        _ => errors::convert_error(error, shown),
    })
}

fn text_of(secret: &Secret) -> String {
    let mut text = format!("{START}{VERSION} ");
    for byte in secret.as_bytes() {
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn parse(text: &[u8], key: &str, shown: &str) -> Result<Secret> {
    let text = std::str::from_utf8(text).ok();
    let parts = text.and_then(|text| text.strip_prefix(START)?.split_once(' '));
    let Some((version, secret)) = parts else {
        return Err(foreign(key, shown));
    };
    if version != VERSION.to_string() {
        let message = format!(
            "the store at {shown} has format version {version}; this build reads version {VERSION}: use the build that wrote it, or another ?prefix="
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let byte = |at: usize| u8::from_str_radix(secret.get(at * 2..at * 2 + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..32).map(byte).collect();
    let bytes = bytes.filter(|_| secret.len() == 64);
    let bytes = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    bytes.map(Secret::from).ok_or_else(|| foreign(key, shown))
}

fn foreign(key: &str, shown: &str) -> Error {
    let message = format!(
        "the key `{key}` of the Redis server at {shown} was not written by Refrain, or is damaged; use another ?prefix="
    );
    Error::new(ErrorKind::Unsupported, message)
}
