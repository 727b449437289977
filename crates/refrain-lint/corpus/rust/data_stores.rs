// snippet: tokio-retry around a payment
pub async fn pay(client: &Client, intent: &Intent) -> Result<Receipt, Error> {
    let strategy = ExponentialBackoff::from_millis(50).take(4);
    Retry::spawn(strategy, || async {
        client
            .post(format!("{BASE}/payments")) // expect: retry-post-without-key
            .json(intent)
            .send()
            .await
    })
    .await?
    .json()
    .await
    .map_err(Error::from)
}

// snippet: key from the clock in a format
pub async fn refund(client: &Client, charge: &str) -> Result<Response, Error> {
    let key = format!("{charge}-{}", Utc::now().timestamp_millis()); // expect: key-from-clock
    let response = client
        .post(format!("{BASE}/refunds"))
        .header("Idempotency-Key", key)
        .json(&json!({ "charge": charge }))
        .send()
        .await?;
    Ok(response)
}

// snippet: claim dropped when the gateway fails
pub async fn charge(store: &mut Connection, gateway: &Gateway, idempotency_key: &str, body: &Body) -> Result<Receipt, Error> {
    let name = format!("idem:{}:{idempotency_key}", body.tenant);
    if !store.set_nx::<_, _, bool>(&name, "pending").await? {
        return Err(Error::InFlight);
    }
    match gateway.charge(body).await {
        Ok(receipt) => Ok(receipt),
        Err(error) => {
            store.del::<_, ()>(&name).await?; // expect: error-outcome-dropped
            Err(error.into())
        }
    }
}

// snippet: reading retries
pub async fn orders(client: &Client) -> Result<Vec<Order>, Error> {
    let mut attempts = 0;
    loop {
        match client.get(format!("{BASE}/orders")).send().await {
            Ok(response) => return Ok(response.json().await?),
            Err(_) if attempts < 3 => attempts += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

// snippet: sqs message deleted after the work
pub async fn drain(sqs: &aws_sdk_sqs::Client, url: &str) -> anyhow::Result<()> {
    let answer = sqs.receive_message().queue_url(url).wait_time_seconds(20).send().await?;
    for message in answer.messages() {
        import(message.body().unwrap_or_default()).await?;
        sqs.delete_message().queue_url(url).set_receipt_handle(message.receipt_handle.clone()).send().await?;
    }
    Ok(())
}
