//! Detects whether a server without the store's mark is new or has lost the store.
//!
//! An empty server does not show which. Evidence of a loss is: the address, records without a mark, a note of a process
//! that saw the loss, and processes that have the store open. These all subscribe to a channel with the mark's name,
//! and a server keeps its connections when it is flushed.

use ::redis::{Cmd, Value, cmd};
use refrain::{RecordId, Result};

use super::{
    address::Start,
    errors, mark,
    reception::{AddressSettings, Node},
    scan,
};

/// Maximum number of `SCAN` steps to find a record, 1 000 keys each. Other applications may have many more keys.
const STEPS_MAX: u32 = 1_000;
/// Text of the note, for operators who find it.
const NOTE: &str = "a running node detected the loss of the records under this prefix";

/// Evidence of lost records, as text for an error message; `None` if there is none.
pub(super) async fn find_evidence(
    node: &Node,
    nodes: &[Node],
    asked: AddressSettings<'_>,
) -> Result<Option<String>> {
    match asked.start {
        Start::Fresh => return Ok(None),
        Start::Expected => return Ok(Some("the address has expect_records=true".into())),
        Start::Either => {}
    }
    if is_noted(node, asked).await? {
        return Ok(Some("a running node detected the loss".into()));
    }
    let subscribers = count_subscribers(node, asked.prefix).await;
    if subscribers > 0 {
        let what = format!("{subscribers} running processes still have the store open");
        return Ok(Some(what));
    }
    for node in nodes {
        if let Some(id) = first_record(node, asked).await? {
            return Ok(Some(format!("record {id} is still there")));
        }
    }
    Ok(None)
}

/// Command that writes a note about the loss of this mark.
pub(super) fn note(mark: &str) -> Cmd {
    mark::set(&note_key(mark), NOTE)
}

/// Deletes the note, because a new store was created on purpose.
pub(super) async fn delete_note(node: &Node, prefix: &str, shown: &str) -> Result<()> {
    let mut delete = cmd("DEL");
    delete.arg(note_key(&mark::key_of(prefix)));
    let deleted = node.send_command::<Value>(delete).await;
    deleted
        .map(drop)
        .map_err(|error| errors::convert_error(error, shown))
}

fn note_key(mark: &str) -> String {
    format!("{mark}-lost")
}

async fn is_noted(node: &Node, asked: AddressSettings<'_>) -> Result<bool> {
    let mut exists = cmd("EXISTS");
    exists.arg(note_key(&mark::key_of(asked.prefix)));
    let noted = node.send_command(exists).await;
    noted.map_err(|error| errors::convert_error(error, asked.shown))
}

/// Number of processes that have the store open, or 0 if the server does not tell. In a cluster no process subscribes.
async fn count_subscribers(node: &Node, prefix: &str) -> u64 {
    let mut count = cmd("PUBSUB");
    count.arg("NUMSUB").arg(mark::key_of(prefix));
    let counted = node.send_command::<(String, u64)>(count).await;
    counted.map_or(0, |(_, count)| count)
}

async fn first_record(node: &Node, asked: AddressSettings<'_>) -> Result<Option<RecordId>> {
    let mut cursor = "0".to_owned();
    for _ in 0..STEPS_MAX {
        let scanned = node.send_command(scan::scan(&cursor, asked.prefix)).await;
        let (next, keys): (String, Vec<Vec<u8>>) =
            scanned.map_err(|error| errors::convert_error(error, asked.shown))?;
        let found = keys.iter().find_map(|key| scan::id_of(key, asked.prefix));
        if found.is_some() || next == "0" {
            return Ok(found);
        }
        cursor = next;
    }
    tracing::warn!(
        "the Redis server at {} has too many keys to check all of them for records of a lost store",
        asked.shown
    );
    Ok(None)
}
