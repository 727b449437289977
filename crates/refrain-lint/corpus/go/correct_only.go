// snippet: r1
package w

func main() {
	for d := range msgs {
		if err := process(d.Body); err != nil {
			d.Nack(false, true)
			continue
		}
		d.Ack(false)
	}
}

// snippet: r2
package w

func poll(ctx context.Context) {
	for i := 0; i < 10; i++ {
		status, err := client.Get(url)
		if err == nil && status.Done {
			return
		}
		time.Sleep(time.Second)
	}
}

// snippet: r3
package w

const (
	idempotencyTTL = 72 * time.Hour
	maxRetries     = 10
	retryDelay     = 1 * time.Minute
)

// snippet: r4
package w

func handle(ctx context.Context, event Event) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	res, err := tx.ExecContext(ctx, "INSERT INTO processed_events (event_id) VALUES ($1) ON CONFLICT DO NOTHING", event.ID)
	if err != nil {
		return err
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return nil
	}
	if err := apply(ctx, tx, event); err != nil {
		return err
	}
	return tx.Commit()
}

// snippet: r5
package w

func pay(ctx context.Context, order Order) error {
	params := &stripe.PaymentIntentParams{Amount: stripe.Int64(order.Total)}
	params.SetIdempotencyKey("order-" + order.ID)
	_, err := paymentintent.New(params)
	return err
}
