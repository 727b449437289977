//! `/api/operations`: the promised guarantees, and those in force.

use std::sync::Arc;

use axum::{Json, extract::State};
use refrain::{Guarantee, Operation, policy::Mode, receipts::Witness};
use serde_json::{Value, json};

use super::Admin;

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Json<Value> {
    let operations: Vec<_> = admin
        .layer
        .policy()
        .operations()
        .filter(|operation| operation.guarded)
        .map(|operation| describe(operation, witness(&admin, operation)))
        .collect();
    let warnings: Vec<_> = admin.layer.policy().warnings().collect();
    Json(json!({ "operations": operations, "warnings": warnings }))
}

/// The guarantee in force; `None` if the operation is only observed.
pub(crate) fn in_force(operation: &Operation, witness: Option<&Arc<Witness>>) -> Option<Guarantee> {
    match (operation.mode, operation.terms.guarantee, witness) {
        // Only counted: nothing is refused and nothing replayed.
        (Mode::Observe, ..) => None,
        (_, Guarantee::ExactlyOnce, Some(witness)) => Some(witness.guarantee()),
        (_, Guarantee::ExactlyOnce, None) => Some(Guarantee::AtMostOnce),
        (_, other, _) => Some(other),
    }
}

/// The reader of the receipts of an operation, if it has any.
pub(crate) fn witness<'a>(admin: &'a Admin, operation: &Operation) -> Option<&'a Arc<Witness>> {
    let mut witnesses = admin.layer.witnesses();
    witnesses.find(|it| it.operation() == operation.name)
}

fn describe(operation: &Operation, witness: Option<&Arc<Witness>>) -> Value {
    let promised = operation.terms.guarantee;
    let in_force = in_force(operation, witness);
    let mut shown = json!({
        "name": operation.name,
        "guarantee": promised,
        "in_force": in_force,
        "audited": operation.is_audited(),
    });
    if operation.mode == Mode::Observe {
        shown["mode"] = json!(operation.mode);
    }
    if let Some(witness) = witness {
        shown["receipts"] = json!({
            "standing": witness.standing(),
            "missing": witness.missing(),
        });
    }
    shown
}
