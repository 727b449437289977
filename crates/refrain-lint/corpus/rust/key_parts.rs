// snippet: tokio-retry with a strategy
async fn refund(client: &Client, id: &str) -> Result<(), Error> {
    Retry::spawn(strategy(), || async {
        client.post(format!("{BASE}/refunds/{id}")).send().await?.error_for_status()?; // expect: retry-post-without-key
        Ok(())
    })
    .await
}

// snippet: insert and effect in one transaction
async fn handle(pool: &PgPool, event: &Event) -> Result<()> {
    let mut tx = pool.begin().await?;
    let fresh = sqlx::query("INSERT INTO processed_events (event_id) VALUES ($1) ON CONFLICT DO NOTHING").bind(event.id).execute(&mut *tx).await?;
    if fresh.rows_affected() == 1 {
        apply(&mut tx, event).await?;
    }
    tx.commit().await?;
    Ok(())
}

// snippet: nats without acknowledgement
fn config() -> pull::Config {
    pull::Config { ack_policy: AckPolicy::None, ..Default::default() } // expect: ack-before-handle
}
