//! Lists the dead letters of a stream without consuming them: entries that are pending or not yet delivered
//! to the group.

use std::collections::HashMap;

use ::redis::{Value, cmd, from_redis_value};
use refrain::{
    Result,
    clock::Timestamp,
    consume::{DeadLetter, Source},
};

use super::{
    address::Address,
    choose_crypto,
    connection::StreamConnection,
    entry::{self, Fields},
};

/// The id before the first entry of a stream.
const FIRST: &str = "0-0";

type Entries = Vec<(String, Fields)>;

pub(crate) async fn dead_letters(source: &Source, at_most: usize) -> Result<Vec<DeadLetter>> {
    let address = Address::parse(source.url.as_str())?;
    choose_crypto();
    let line = StreamConnection::new(&address)?;
    let stream = &source.queue;
    let kind: String = line.send_with_retry(cmd("TYPE").arg(stream)).await?;
    if kind == "none" {
        return Ok(Vec::new());
    }
    let mut entries = Entries::new();
    let read_to = match last_delivered_id(&line, source).await? {
        Some(last) => {
            for id in pending(&line, source, at_most).await? {
                let held = cmd("XRANGE").arg(stream).arg(&id).arg(&id).clone();
                entries.extend(line.send_with_retry::<Entries>(&held).await?);
            }
            last
        }
        None => FIRST.into(),
    };
    let room = at_most.saturating_sub(entries.len());
    if room > 0 {
        let mut range = cmd("XRANGE");
        range.arg(stream).arg(format!("({read_to}")).arg("+");
        range.arg("COUNT").arg(room);
        entries.extend(line.send_with_retry::<Entries>(&range).await?);
    }
    let letter = |(id, fields): (String, Fields)| {
        // The first part of an entry's id is its time in milliseconds.
        let millis = id.split('-').next().and_then(|text| text.parse().ok());
        DeadLetter::of(&entry::read(stream, &id, fields), millis.map(Timestamp))
    };
    Ok(entries.into_iter().map(letter).collect())
}

/// Id of the last entry delivered to the group; `None` if the group does not exist.
async fn last_delivered_id(line: &StreamConnection, source: &Source) -> Result<Option<String>> {
    let groups: Vec<HashMap<String, Value>> = line
        .send_with_retry(cmd("XINFO").arg("GROUPS").arg(&source.queue))
        .await?;
    let text = |group: &HashMap<String, Value>, name: &str| {
        let value = group.get(name).cloned()?;
        from_redis_value::<String>(value).ok()
    };
    let group = groups
        .iter()
        .find(|group| text(group, "name").as_deref() == Some(source.consumer.as_str()));
    Ok(group.and_then(|group| text(group, "last-delivered-id")))
}

/// Ids of the pending entries.
async fn pending(line: &StreamConnection, source: &Source, at_most: usize) -> Result<Vec<String>> {
    let mut asked = cmd("XPENDING");
    asked.arg(&source.queue).arg(&source.consumer);
    asked.arg("-").arg("+").arg(at_most);
    let held: Vec<(String, String, u64, u64)> = line.send_with_retry(&asked).await?;
    Ok(held.into_iter().map(|(id, ..)| id).collect())
}
