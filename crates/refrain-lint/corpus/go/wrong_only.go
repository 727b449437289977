// snippet: p1 sarama
package w

func (h handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		session.MarkMessage(message, "") // expect: ack-before-handle
		process(message.Value)
	}
	return nil
}

// snippet: p2 in-memory map
package w

func handle(w http.ResponseWriter, r *http.Request) {
	key := tenant(r) + r.Header.Get("Idempotency-Key")
	if v, ok := store.Get(key); ok { // expect: check-then-act
		write(w, v)
		return
	}
	res := charge(r)
	store.Set(key, res)
	write(w, res)
}

// snippet: p3 sql
package w

func create(db *sql.DB, tenant, key string, amount int) error {
	var id int
	err := db.QueryRow("SELECT id FROM payments WHERE tenant = $1 AND idempotency_key = $2", tenant, key).Scan(&id) // expect: check-then-act
	if err == nil {
		return nil
	}
	if err := chargeCard(amount); err != nil {
		return err
	}
	_, err = db.Exec("INSERT INTO payments (tenant, idempotency_key, amount) VALUES ($1, $2, $3)", tenant, key, amount) // expect: insert-without-conflict
	return err
}

// snippet: p4 temporal activity
package w

func ChargeActivity(ctx context.Context, order Order) error {
	info := activity.GetInfo(ctx)
	key := fmt.Sprintf("%s-%d", order.ID, info.Attempt) // expect: key-per-attempt
	params := &stripe.ChargeParams{}
	params.SetIdempotencyKey(key)
	_, err := charge.New(params)
	return err
}

// snippet: p5 sqs
package w

func poll(ctx context.Context, client *sqs.Client) {
	out, _ := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &url})
	for _, msg := range out.Messages {
		client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: msg.ReceiptHandle}) // expect: ack-before-handle
		handleOrder(ctx, *msg.Body)
	}
}

// snippet: p6 ttl loop
package w

const maxRetries = 20
const retryInterval = 5 * time.Minute

func remember(ctx context.Context, key string) {
	rdb.Set(ctx, "idempotency:"+key, "done", 10*time.Minute) // expect: ttl-shorter-than-retries
}

// snippet: p7 retryablehttp
package w

func create(body []byte) error {
	client := retryablehttp.NewClient()
	_, err := client.Post("https://erp.example.com/orders", "application/json", body) // expect: retry-post-without-key
	return err
}

// snippet: p8 short
package w

func key(a, b string) string {
	idempotencyKey := (a + "-" + b)[:16] // expect: key-truncated
	return idempotencyKey
}
