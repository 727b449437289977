//! Connections to the receipts of exactly-once operations.

use refrain::{
    Result,
    http::RefrainLayer,
    policy::{Address, Settings},
    receipts::AnyReceipts,
};
use refrain_stores::receipts;

/// Open receipts, each with its address in the policy.
pub(crate) type Opened = Vec<(Address, AnyReceipts)>;

/// Opens the receipts of each exactly-once operation, before the policy is in force. Those in use stay open.
pub(super) async fn open(settings: &Settings, in_use: Opened) -> Result<Opened> {
    let mut opened = Opened::new();
    for address in addresses(settings) {
        let known = in_use.iter().find(|(known, _)| *known == address);
        let receipts = match known {
            Some((_, receipts)) => receipts.clone(),
            None => AnyReceipts::new(receipts::open(&address).await?),
        };
        opened.push((address, receipts));
    }
    Ok(opened)
}

/// Adds the opened receipts to the layer.
pub(crate) fn read(layer: RefrainLayer, opened: &Opened) -> RefrainLayer {
    let named = |layer: RefrainLayer, (address, receipts): &(Address, AnyReceipts)| {
        layer.with_receipts(address.as_str(), receipts.clone())
    };
    opened.iter().fold(layer, named)
}

/// The address of each receipts table, without duplicates.
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
