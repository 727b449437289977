// snippet: r1
async fn run(mut consumer: Consumer) -> Result<()> {
    while let Some(delivery) = consumer.next().await {
        let delivery = delivery?;
        process(&delivery.data).await?;
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}

// snippet: r2
async fn handle(pool: &PgPool, event: Event) -> Result<()> {
    let mut tx = pool.begin().await?;
    let done = sqlx::query("INSERT INTO processed (event_id) VALUES ($1) ON CONFLICT DO NOTHING").bind(event.id).execute(&mut *tx).await?;
    if done.rows_affected() == 1 {
        apply(&mut tx, &event).await?;
    }
    tx.commit().await?;
    Ok(())
}

// snippet: r3
fn dedup(events: Vec<Event>) -> Vec<Event> {
    let mut seen = HashSet::new();
    let mut kept = Vec::new();
    for event in events {
        if seen.insert(event.id) {
            kept.push(event);
        }
    }
    kept
}

// snippet: r4
async fn run(mut rx: Receiver<Event>, seen: &mut HashSet<Uuid>) {
    while let Some(event) = rx.recv().await {
        if !seen.insert(event.id) {
            continue;
        }
        handle(event).await;
    }
}
