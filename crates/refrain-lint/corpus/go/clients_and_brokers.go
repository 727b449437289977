// snippet: retry-go
package erp

func Create(order Order) error {
	return retry.Do(func() error {
		_, err := http.Post("https://erp.example.com/orders", "application/json", order.Reader()) // expect: retry-post-without-key
		return err
	}, retry.Attempts(3))
}

// snippet: attempt in the key
package pay

func pay(client *http.Client, order Order) error {
	for attempt := 1; attempt <= 3; attempt++ {
		req, _ := http.NewRequest("POST", "https://api.example.com/payments", order.Reader())
		req.Header.Set("Idempotency-Key", fmt.Sprintf("%s-%d", order.ID, attempt)) // expect: key-per-attempt
		if _, err := client.Do(req); err == nil {
			return nil
		}
	}
	return errGaveUp
}

// snippet: subscriber acks first
package worker

func subscribe(ctx context.Context, sub *pubsub.Subscription) error {
	return sub.Receive(ctx, func(ctx context.Context, msg *pubsub.Message) {
		msg.Ack() // expect: ack-before-handle
		if err := settle(ctx, msg.Data); err != nil {
			log.Println(err)
		}
	})
}

// snippet: subscriber acks last
package worker

func subscribe(ctx context.Context, sub *pubsub.Subscription) error {
	return sub.Receive(ctx, func(ctx context.Context, msg *pubsub.Message) {
		if err := settle(ctx, msg.Data); err != nil {
			msg.Nack()
			return
		}
		msg.Ack()
	})
}

// snippet: unlock deferred
package jobs

func nightly(ctx context.Context, rdb *redis.Client) error {
	if !rdb.SetNX(ctx, "nightly-lock", "1", time.Hour).Val() {
		return nil
	}
	defer func() { rdb.Del(ctx, "nightly-lock") }() // expect: unlock-without-owner-check
	return rebuild(ctx)
}

// snippet: publish before commit
package orders

func place(ctx context.Context, db *sql.DB, w *kafka.Writer, order Order) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES ($1)", order.ID); err != nil {
		return err
	}
	if err := w.WriteMessages(ctx, kafka.Message{Value: order.JSON()}); err != nil { // expect: publish-in-transaction
		return err
	}
	return tx.Commit()
}

// snippet: publish after commit
package orders

func place(ctx context.Context, db *sql.DB, w *kafka.Writer, order Order) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES ($1)", order.ID); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	return w.WriteMessages(ctx, kafka.Message{Value: order.JSON()})
}

// snippet: error kept
package api

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request) {
	key := "idem:" + tenant(r) + ":" + r.Header.Get("Idempotency-Key")
	rec := httptest.NewRecorder()
	m.next.ServeHTTP(rec, r)
	m.rdb.Set(r.Context(), key, encode(rec.Code, rec.Body), 24*time.Hour) // expect: error-outcome-kept
}

// snippet: square sdk
package pay

import "github.com/square/square-go-sdk/client"

func take(c *client.Client, source string) error {
	_, err := c.Payments.Create(ctx, &square.CreatePaymentRequest{SourceID: source, IdempotencyKey: order.PaymentKey})
	return err
}
