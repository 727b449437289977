// snippet: retryable http
package shop

import "github.com/hashicorp/go-retryablehttp"

func Create(order []byte) error {
	client := retryablehttp.NewClient()
	client.RetryMax = 4
	resp, err := client.Post("https://shop.example/orders", "application/json", order) // expect: retry-post-without-key
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// snippet: key made by a helper in a loop
package pay

func newKey() string { return uuid.NewString() }

func (c *Client) Pay(ctx context.Context, p Payment) (err error) {
	for i := 0; i < 3; i++ {
		req, _ := http.NewRequest("POST", c.url+"/payments", p.Reader())
		req.Header.Set("Idempotency-Key", newKey()) // expect: key-in-retry-loop
		if _, err = c.hc.Do(req); err == nil {
			return nil
		}
		time.Sleep(time.Second)
	}
	return err
}

// snippet: post to refunds without a key
package pay

func (c *Client) Refund(ctx context.Context, id string) error {
	req, err := http.NewRequestWithContext(ctx, "POST", c.url+"/payments/"+id+"/refunds", nil) // expect: money-call-without-key
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", c.token)
	_, err = c.hc.Do(req)
	return err
}

// snippet: post with a key further down
package pay

func (c *Client) Refund(ctx context.Context, id, key string) error {
	req, err := http.NewRequestWithContext(ctx, "POST", c.url+"/payments/"+id+"/refunds", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", c.token)
	req.Header.Set("Idempotency-Key", key)
	_, err = c.hc.Do(req)
	return err
}

// snippet: nats ack first
package worker

func handle(msg *nats.Msg) {
	msg.Ack() // expect: ack-before-handle
	if err := settle(msg.Data); err != nil {
		log.Printf("settle: %v", err)
	}
}

// snippet: asynq task
package worker

func (p *PayoutProcessor) ProcessTask(ctx context.Context, t *asynq.Task) error {
	params := &stripe.PayoutParams{Amount: stripe.Int64(amountOf(t))}
	params.SetIdempotencyKey("payout-" + t.ResultWriter().TaskID())
	_, err := payout.New(params)
	return err
}

// snippet: middleware without a scope
package api

func Idempotent(rdb *redis.Client, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		ok, _ := rdb.SetNX(r.Context(), "idem:"+key, "pending", time.Minute).Result() // expect: unscoped-key
		if !ok {
			w.WriteHeader(http.StatusConflict)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// snippet: gorm transaction
package orders

func (s *Service) Place(order *Order) error {
	return s.db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(order).Error; err != nil {
			return err
		}
		return s.writer.WriteMessages(context.Background(), kafka.Message{Value: order.JSON()}) // expect: publish-in-transaction
	})
}

// snippet: digest that keeps enough
package keys

func idempotencyKey(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:16])
}

// snippet: lock released by its owner
package lock

func (l *Locker) Unlock(ctx context.Context, id, token string) error {
	held, err := l.rdb.Get(ctx, "lock:"+id).Result()
	if err != nil || held != token {
		return ErrNotMine
	}
	return l.rdb.Del(ctx, "lock:"+id).Err()
}

func (l *Locker) Lock(ctx context.Context, id, token string) (bool, error) {
	return l.rdb.SetNX(ctx, "lock:"+id, token, time.Minute).Result()
}
