// snippet: moka cache in front of a rate
pub async fn rate(cache: &Cache<String, f64>, pair: &str) -> f64 {
    if let Some(rate) = cache.get(pair).await {
        return rate;
    }
    let rate = fetch_rate(pair).await;
    cache.insert(pair.to_string(), rate).await;
    rate
}

// snippet: check in sqlx and insert later
pub async fn handle(pool: &PgPool, event: Event, bank: &Bank) -> anyhow::Result<()> {
    let seen = sqlx::query("SELECT 1 FROM processed_events WHERE event_id = $1") // expect: check-then-act
        .bind(&event.id)
        .fetch_optional(pool)
        .await?;
    if seen.is_some() {
        return Ok(());
    }
    bank.credit(&event.account, event.cents).await?;
    sqlx::query("INSERT INTO processed_events (event_id) VALUES ($1)").bind(&event.id).execute(pool).await?;
    Ok(())
}
// file: schema.sql
CREATE TABLE processed_events (event_id text PRIMARY KEY);

// snippet: loop without a sleep
pub async fn create(client: &Client, note: &Note) -> Result<Response, Error> {
    let mut last = None;
    for _ in 0..3 {
        match client.post(format!("{BASE}/notes")).json(note).send().await { // expect: retry-post-without-key
            Ok(response) => return Ok(response),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap().into())
}

// snippet: batch of posts
pub async fn push_all(client: &Client, notes: &[Note]) -> Result<(), Error> {
    for note in notes {
        client.post(format!("{BASE}/notes")).json(note).send().await?;
    }
    Ok(())
}
