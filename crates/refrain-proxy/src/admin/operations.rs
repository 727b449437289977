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
        .map(|operation| {
            let named = |it: &&Arc<Witness>| it.operation() == operation.name;
            describe(operation, admin.layer.witnesses().find(named))
        })
        .collect();
    let warnings: Vec<_> = admin.layer.policy().warnings().collect();
    Json(json!({ "operations": operations, "warnings": warnings }))
}

fn describe(operation: &Operation, witness: Option<&Arc<Witness>>) -> Value {
    let promised = operation.terms.guarantee;
    let in_force = match (operation.mode, promised, witness) {
        // Only counted: nothing is refused and nothing replayed.
        (Mode::Observe, ..) => None,
        (_, Guarantee::ExactlyOnce, Some(witness)) => Some(witness.guarantee()),
        (_, Guarantee::ExactlyOnce, None) => Some(Guarantee::AtMostOnce),
        (_, other, _) => Some(other),
    };
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
