//! Lists the dead letters of a queue: receives them, which hides them for a moment, and then makes them
//! visible again.

use std::{collections::HashSet, time::Duration};

use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry as Change, Message as Received,
    MessageSystemAttributeName as System,
};
use refrain::{
    Error, ErrorKind, Result,
    clock::Timestamp,
    consume::{DeadLetter, Source},
};

use super::{BATCH_MAX, Sqs, SqsQueue, body, errors::convert_error};

/// How long a letter stays hidden if the listing ends before it makes the letter visible again.
const HIDDEN_FOR: Duration = Duration::from_secs(30);
/// A long poll asks all servers of SQS; a short one asks some, and misses letters.
const POLL: Duration = Duration::from_secs(1);

pub(crate) async fn dead_letters(source: &Source, at_most: usize) -> Result<Vec<DeadLetter>> {
    let mut source = source.clone();
    source.ack_wait = HIDDEN_FOR;
    let seat = Sqs::connect(&source).await?.seat.clone();
    let mut handles = Vec::new();
    let letters = read(&seat, at_most, &mut handles).await;
    let shown = make_visible(&seat, &handles).await;
    let mut letters = letters?;
    shown?;
    letters.sort_by_key(|letter| letter.time);
    Ok(letters)
}

async fn read(
    seat: &SqsQueue,
    at_most: usize,
    handles: &mut Vec<String>,
) -> Result<Vec<DeadLetter>> {
    let mut letters = Vec::new();
    let mut ids = HashSet::new();
    while letters.len() < at_most {
        let mut is_new = false;
        for mut received in seat.receive_raw(at_most - letters.len(), POLL).await? {
            handles.extend(received.receipt_handle.take());
            // A long listing meets its first letters again, when they are visible again.
            if ids.insert(received.message_id.clone()) {
                is_new = true;
                letters.push(letter(&seat.queue, received));
            }
        }
        if !is_new {
            break;
        }
    }
    Ok(letters)
}

fn letter(queue: &str, received: Received) -> DeadLetter {
    let told = received.attributes.as_ref();
    let sent = told.and_then(|told| told.get(&System::SentTimestamp));
    let time = sent.and_then(|millis| millis.parse().ok()).map(Timestamp);
    DeadLetter::of(&body::read(queue, received).0, time)
}

/// Makes the letters visible to other consumers.
async fn make_visible(seat: &SqsQueue, handles: &[String]) -> Result<()> {
    let SqsQueue {
        client, queue, url, ..
    } = seat;
    for handles in handles.chunks(BATCH_MAX) {
        let changes = handles.iter().enumerate().map(|(number, handle)| {
            let change = Change::builder().id(number.to_string());
            change.receipt_handle(handle).visibility_timeout(0).build()
        });
        let changes = changes.collect::<Result<_, _>>().map_err(|error| {
            let message =
                format!("SQS, {queue}: cannot make the listed dead letters visible again");
            Error::new(ErrorKind::Invalid, message).with_source(error)
        })?;
        let asking = client.change_message_visibility_batch().queue_url(url);
        let asked = asking.set_entries(Some(changes)).send().await;
        asked.map_err(|error| convert_error(queue, error))?;
    }
    Ok(())
}
