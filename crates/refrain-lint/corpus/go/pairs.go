// snippet: key in a for loop
package pay

func (c *Client) Charge(ctx context.Context, order Order) error {
	for attempt := 0; attempt < c.maxAttempts; attempt++ {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/charges", order.Body())
		req.Header.Set("Idempotency-Key", uuid.NewString()) // expect: key-in-retry-loop
		resp, err := c.http.Do(req)
		if err == nil && resp.StatusCode < 500 {
			return nil
		}
		time.Sleep(backoff(attempt))
	}
	return ErrGaveUp
}

// snippet: key from the order
package pay

func (c *Client) Charge(ctx context.Context, order Order) error {
	for attempt := 0; attempt < c.maxAttempts; attempt++ {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/charges", order.Body())
		req.Header.Set("Idempotency-Key", "order-"+order.ID)
		resp, err := c.http.Do(req)
		if err == nil && resp.StatusCode < 500 {
			return nil
		}
		time.Sleep(backoff(attempt))
	}
	return ErrGaveUp
}

// snippet: round tripper makes a key
package pay

func (t *keyTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodPost {
		req.Header.Set("Idempotency-Key", uuid.New().String()) // expect: key-per-attempt
	}
	return t.next.RoundTrip(req)
}

// snippet: clock key for stripe
package pay

func Refund(chargeID string) (*stripe.Refund, error) {
	params := &stripe.RefundParams{Charge: stripe.String(chargeID)}
	params.SetIdempotencyKey(fmt.Sprintf("%s-%d", chargeID, time.Now().UnixNano())) // expect: key-from-clock
	return refund.New(params)
}

// snippet: stripe with and without
package pay

func Pay(amount int64) (*stripe.PaymentIntent, error) {
	params := &stripe.PaymentIntentParams{Amount: stripe.Int64(amount), Currency: stripe.String("eur")}
	return paymentintent.New(params) // expect: money-call-without-key
}

func PayOnce(amount int64, key string) (*stripe.PaymentIntent, error) {
	params := &stripe.PaymentIntentParams{Amount: stripe.Int64(amount), Currency: stripe.String("eur")}
	params.SetIdempotencyKey(key)
	return paymentintent.New(params)
}

// snippet: resty v2
package shop

import "github.com/go-resty/resty/v2"

func New(base string) *Client {
	return &Client{rest: resty.New().SetBaseURL(base).SetRetryCount(3)}
}

func (c *Client) Create(order Order) error {
	_, err := c.rest.R().SetBody(order).Post("/orders") // expect: retry-post-without-key
	return err
}

// snippet: resty v3
package shop

import "resty.dev/v3"

func New(base string) *Client {
	return &Client{rest: resty.New().SetBaseURL(base).SetRetryCount(3)}
}

func (c *Client) Create(order Order) error {
	_, err := c.rest.R().SetBody(order).Post("/orders")
	return err
}

// snippet: backoff around a post
package shop

func (c *Client) Notify(ctx context.Context, body []byte) error {
	operation := func() error {
		resp, err := http.Post(c.url, "application/json", bytes.NewReader(body)) // expect: retry-post-without-key
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	return backoff.Retry(operation, backoff.NewExponentialBackOff())
}

// snippet: check then act
package api

func (h *Handler) Create(w http.ResponseWriter, r *http.Request) {
	key := fmt.Sprintf("idem:%s:%s", tenant(r), r.Header.Get("Idempotency-Key"))
	cached, err := h.rdb.Get(r.Context(), key).Result() // expect: check-then-act
	if err == nil {
		w.Write([]byte(cached))
		return
	}
	out, err := h.payments.Charge(r.Context(), r.Body)
	if err != nil {
		http.Error(w, err.Error(), 502)
		return
	}
	h.rdb.Set(r.Context(), key, out, 24*time.Hour)
	w.Write(out)
}

// snippet: claim with SetNX
package api

func (h *Handler) Create(w http.ResponseWriter, r *http.Request) {
	key := fmt.Sprintf("idem:%s:%s", tenant(r), r.Header.Get("Idempotency-Key"))
	won, err := h.rdb.SetNX(r.Context(), key, "in_progress", time.Minute).Result()
	if err != nil || !won {
		http.Error(w, "in flight", 409)
		return
	}
	out, _ := h.payments.Charge(r.Context(), r.Body)
	h.rdb.Set(r.Context(), key, out, 24*time.Hour)
	w.Write(out)
}

// snippet: auto-ack
package worker

import amqp "github.com/rabbitmq/amqp091-go"

func Run(ch *amqp.Channel) error {
	msgs, err := ch.Consume("orders", "", true, false, false, false, nil) // expect: ack-before-handle
	if err != nil {
		return err
	}
	for d := range msgs {
		fulfil(d.Body)
	}
	return nil
}

// snippet: sarama marks first
package worker

func (c *consumer) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		session.MarkMessage(message, "") // expect: ack-before-handle
		if err := c.apply(message.Value); err != nil {
			return err
		}
	}
	return nil
}

// snippet: sarama marks last
package worker

func (c *consumer) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		if err := c.apply(message.Value); err != nil {
			return err
		}
		session.MarkMessage(message, "")
	}
	return nil
}

// snippet: publish before commit
package orders

func (s *Service) Place(ctx context.Context, order Order) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id, total) VALUES ($1, $2)", order.ID, order.Total); err != nil {
		return err
	}
	if err := s.nats.Publish("orders.placed", order.JSON()); err != nil { // expect: publish-in-transaction
		return err
	}
	return tx.Commit()
}

// snippet: outbox before commit
package orders

func (s *Service) Place(ctx context.Context, order Order) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := s.publishOrder(ctx, tx, order); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *Service) publishOrder(ctx context.Context, tx *sql.Tx, order Order) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO outbox (topic, body) VALUES ($1, $2)", "orders.placed", order.JSON())
	return err
}

// snippet: unlock in a defer
package lock

func (l *Locker) Do(ctx context.Context, id string, work func() error) error {
	key := "lock:" + id
	ok, err := l.rdb.SetNX(ctx, key, "1", 30*time.Second).Result()
	if err != nil || !ok {
		return ErrBusy
	}
	defer l.rdb.Del(ctx, key) // expect: unlock-without-owner-check
	return work()
}

// snippet: insert
package db

func Save(ctx context.Context, tx *sql.Tx, p Payment) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO payments (id, idempotency_key, amount) VALUES ($1, $2, $3)`, p.ID, p.Key, p.Amount) // expect: insert-without-conflict
	return err
}

func SaveOnce(ctx context.Context, tx *sql.Tx, p Payment) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO payments (id, idempotency_key, amount) VALUES ($1, $2, $3)
		ON CONFLICT (idempotency_key) DO NOTHING`, p.ID, p.Key, p.Amount)
	return err
}

// snippet: eof means send again
package gateway

func (g *Gateway) Submit(body []byte) (*http.Response, error) {
	resp, err := http.Post(g.url, "application/json", bytes.NewReader(body))
	if errors.Is(err, io.EOF) { // expect: resend-on-closed-connection
		return http.Post(g.url, "application/json", bytes.NewReader(body))
	}
	return resp, err
}

// snippet: a key that is a digest of the request
package bridge

func (c *Client) Create(ctx context.Context, payload []byte) error {
	return retry.Do(func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/clusters", bytes.NewReader(payload))
		if err != nil {
			return err
		}
		key := uuid.NewSHA1(namespace, payload)
		req.Header.Set("Idempotency-Key", key.String())
		_, err = c.http.Do(req)
		return err
	})
}
