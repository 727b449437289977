//! Counts what each scope holds, for quotas: scans all records, and asks for the lengths of their outcomes.
//!
//! `SCAN` returns a key twice if the server resizes its table meanwhile; such a record is counted twice, until the next count.

use ::redis::{Value, cmd};
use futures_util::future::try_join_all;
use refrain::{RecordId, Result, store::Usage};

use super::{
    RedisState, codec, errors,
    reception::Node,
    scan::{STEP, aged},
};

impl RedisState {
    pub(super) async fn usage(&self, scopes_max: usize) -> Result<Usage> {
        let mut usage = Usage::new(scopes_max);
        for node in self.nodes().await? {
            let mut cursor = "0".to_owned();
            loop {
                let (next, ids) = self.scan_step(&node, &cursor).await?;
                for ids in ids.chunks(STEP as usize) {
                    self.count(&node, ids, &mut usage).await?;
                }
                cursor = next;
                if cursor == "0" {
                    break;
                }
            }
        }
        Ok(usage)
    }

    /// Counts these records. Invalid ones belong to no scope.
    async fn count(&self, node: &Node, ids: &[RecordId], usage: &mut Usage) -> Result<()> {
        let now = self.now_of(node).await?;
        let values = self.values(node, ids).await?;
        let mut records = Vec::with_capacity(ids.len());
        let mut asks = Vec::with_capacity(ids.len());
        for (id, value) in ids.iter().zip(values) {
            let Value::BulkString(bytes) = value else {
                continue;
            };
            let record = codec::record(&bytes, *id).and_then(|record| aged(record, now));
            if let Some(record) = record {
                records.push(record);
                asks.push(self.outcome_len(node, *id, codec::place(&bytes)));
            }
        }
        // Concurrent commands share one round trip.
        let lengths = try_join_all(asks).await?;
        for (record, len) in records.iter().zip(lengths) {
            usage.add_record_of(record, len, now);
        }
        Ok(())
    }

    /// The length of an outcome: 0 if the record has none.
    async fn outcome_len(
        &self,
        node: &Node,
        id: RecordId,
        place: Option<[u8; 8]>,
    ) -> Result<usize> {
        let Some(place) = place else {
            return Ok(0);
        };
        let mut len = cmd("STRLEN");
        self.calls.key(&mut len, id, &[&b"o"[..], &place].concat());
        let len = node.send_command::<usize>(len).await;
        let len = len.map_err(|error| errors::convert_error(error, &self.shown))?;
        Ok(len.saturating_sub(codec::KEPT_BEGINS))
    }
}
