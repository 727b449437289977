//! Creates a resource with one operation, for use by the operation under test.

use serde_json::Value;

use super::{
    Trouble, draw,
    plan::{Operation, Plan, TlsSetup},
    stage,
    wire::{ReceivedResponse, send},
};

/// Sends the operation once; returns the id of the created resource: the member `name` or `id` of the response or of
/// its `data`, or the last segment of its `Location`.
///
/// # Errors
/// [`Trouble`] when the service does not respond, refuses the request, or returns no id.
pub async fn create(plan: &Plan, operation: &Operation, name: &str) -> Result<String, Trouble> {
    let place = TlsSetup::new(plan).and_then(|way| way.to(&plan.target));
    let place = place.map_err(Trouble::Plan)?;
    let case = format!("create {}", operation.name());
    let unique = draw::unique(plan.seed, &case, 0);
    let key = draw::key(plan.seed, &case, 0);
    let names = (&*unique, key.as_bytes());
    let request = stage::build_request(plan, operation, &operation.body, names);
    let sent = send(&place, &plan.target.authority, &request, plan.timeout).await;
    let answer = sent.map_err(|lost| {
        Trouble::Unreachable(format!("{} does not respond: {lost}", plan.target))
    })?;
    if !answer.is_success() {
        let why = format!("{} got {}", operation.name(), answer.status);
        return Err(Trouble::Plan(why));
    }
    created_id(&answer, name).ok_or_else(|| {
        let why = format!(
            "the response to {} contains no id of the created resource",
            operation.name()
        );
        Trouble::Plan(why)
    })
}

fn created_id(answer: &ReceivedResponse, name: &str) -> Option<String> {
    let json: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let inner = json.get("data").unwrap_or(&Value::Null);
    let members = [
        json.get(name),
        json.get("id"),
        inner.get(name),
        inner.get("id"),
    ];
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let by_location = || {
        let location = answer.header("location")?.trim_end_matches('/');
        location.rsplit('/').next().map(str::to_owned)
    };
    let found = members.into_iter().flatten().find_map(text);
    found.or_else(by_location).filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_created_resource_by_name_id_or_location() {
        for (body, location, found) in [
            (r#"{"id":7,"order_id":"o1"}"#, "", Some("o1")),
            (r#"{"id":7}"#, "/orders/9", Some("7")),
            (r#"{"data":{"id":"d"}}"#, "", Some("d")),
            ("ok", "/orders/9/", Some("9")),
            (r#"{"id":null}"#, "", None),
        ] {
            let answer = ReceivedResponse {
                status: 201,
                headers: vec![("location".into(), location.into())],
                body: body.into(),
            };
            assert_eq!(created_id(&answer, "order_id").as_deref(), found, "{body}");
        }
    }
}
