//! Where the receipts of exactly-once operations are read.

use refrain::{
    Result,
    http::RefrainLayer,
    policy::{Address, Settings},
};
use refrain_stores::receipts::{self, PostgresReceipts};

/// Receipts, and the address that the policy has for them.
pub(super) type Opened = Vec<(Address, PostgresReceipts)>;

/// Opens each place that an exactly-once operation names, before anything is promised.
pub(super) async fn open(settings: &Settings) -> Result<Opened> {
    let mut opened = Opened::new();
    for address in addresses(settings) {
        let receipts = receipts::open(&address).await?;
        opened.push((address, receipts));
    }
    Ok(opened)
}

/// The layer with receipts to read.
pub(super) fn read(layer: RefrainLayer, opened: Opened) -> RefrainLayer {
    let named = |layer: RefrainLayer, (address, receipts): (Address, _)| {
        layer.with_receipts(address.as_str(), receipts)
    };
    opened.into_iter().fold(layer, named)
}

/// Every place once.
pub(super) fn addresses(settings: &Settings) -> Vec<Address> {
    let mut addresses = Vec::new();
    let operations = settings.policy.operations();
    let receipted = operations.filter(|operation| operation.is_receipted());
    for address in receipted.filter_map(|operation| operation.receipts.as_ref()) {
        if !addresses.contains(address) {
            addresses.push(address.clone());
        }
    }
    addresses
}
