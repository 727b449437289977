//! Lists the dead letters of a queue without consuming them.

use refrain::{
    Result,
    clock::Timestamp,
    consume::{DeadLetter, Source},
};
use refrain_stores::postgres::Dial;

use super::{row::Taken, table};

/// The columns of [`Taken`] with an empty payload, then the payload's size in bytes and the publish time in
/// milliseconds.
const LIST: &str = "SELECT id, attempts, message_id, group_key, content_type, headers, ''::bytea, \
         octet_length(payload)::bigint, (extract(epoch FROM published_at) * 1000)::bigint \
     FROM refrain_queue WHERE queue = $1 ORDER BY id LIMIT $2";

pub(crate) async fn dead_letters(source: &Source, at_most: usize) -> Result<Vec<DeadLetter>> {
    let dial = Dial::new(source.url.as_str())?;
    let wire = dial.look().await?;
    let failed = |error: tokio_postgres::Error| table::convert_error(&dial, &error);
    table::choose_schema(&dial, &wire).await.map_err(failed)?;
    let limit = i64::try_from(at_most).unwrap_or(i64::MAX);
    let rows = wire.client().query(LIST, &[&source.queue, &limit]).await;
    let rows = rows.map_err(failed)?;
    let letters = rows.iter().map(|row| {
        let message = Taken::read(&source.queue, row)?.message;
        let (bytes, millis): (i64, i64) = (row.try_get(7)?, row.try_get(8)?);
        let time = u64::try_from(millis).ok().map(Timestamp);
        let mut letter = DeadLetter::of(&message, time);
        letter.payload_bytes = u64::try_from(bytes).unwrap_or_default();
        Ok(letter)
    });
    letters.collect::<Result<_, _>>().map_err(failed)
}
