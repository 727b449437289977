// snippet: gorm check and create
package payments

func (s *Service) Create(ctx context.Context, merchantID, idempotencyKey string, req Request) (*Payment, error) {
	var existing Payment
	err := s.db.WithContext(ctx).Where("merchant_id = ? AND idempotency_key = ?", merchantID, idempotencyKey).First(&existing).Error // expect: check-then-act
	if err == nil {
		return &existing, nil
	}
	if !errors.Is(err, gorm.ErrRecordNotFound) {
		return nil, err
	}
	auth, err := s.acquirer.Authorise(ctx, req)
	if err != nil {
		return nil, err
	}
	payment := Payment{MerchantID: merchantID, IdempotencyKey: idempotencyKey, AuthCode: auth.Code}
	if err := s.db.Create(&payment).Error; err != nil {
		return nil, err
	}
	return &payment, nil
}

// snippet: amqp delivery handled in a goroutine
package worker

func (w *Worker) Run(ch *amqp.Channel) error {
	msgs, err := ch.Consume("orders", "worker", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for d := range msgs {
		var order Order
		if err := json.Unmarshal(d.Body, &order); err != nil {
			_ = d.Reject(false)
			continue
		}
		_ = d.Ack(false) // expect: ack-before-handle
		if err := w.fulfil(order); err != nil {
			log.Printf("order %s: %v", order.ID, err)
		}
	}
	return nil
}

// snippet: eof and the request once more
package bank

func (c *Client) Submit(ctx context.Context, t Transfer) (*http.Response, error) {
	resp, err := c.post(ctx, "/transfers", t)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) { // expect: resend-on-closed-connection
		resp, err = c.post(ctx, "/transfers", t)
	}
	return resp, err
}

func (c *Client) post(ctx context.Context, path string, body any) (*http.Response, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return c.http.Do(req)
}

// snippet: lock released with a script
package lock

const release = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) else return 0 end`

func With(ctx context.Context, rdb *redis.Client, name string, work func() error) error {
	token := uuid.NewString()
	key := "lock:" + name
	ok, err := rdb.SetNX(ctx, key, token, 30*time.Second).Result()
	if err != nil {
		return err
	}
	if !ok {
		return ErrBusy
	}
	defer rdb.Eval(ctx, release, []string{key}, token)
	return work()
}

// snippet: asynq handler derives its key
package tasks

func (p *Processor) HandlePayout(ctx context.Context, t *asynq.Task) error {
	var payload PayoutPayload
	if err := json.Unmarshal(t.Payload(), &payload); err != nil {
		return fmt.Errorf("unmarshal: %w: %w", err, asynq.SkipRetry)
	}
	params := &stripe.PayoutParams{Amount: stripe.Int64(payload.Cents), Currency: stripe.String("eur")}
	params.SetIdempotencyKey("payout-" + payload.ID)
	_, err := payout.New(params)
	return err
}

// snippet: time in a key built by a helper of another file
package refunds

func (c *Client) Refund(ctx context.Context, charge string, cents int64) error {
	params := &stripe.RefundParams{Charge: stripe.String(charge), Amount: stripe.Int64(cents)}
	params.IdempotencyKey = stripe.String(refundKey(charge)) // expect: key-from-clock
	_, err := refund.New(params)
	return err
}
// file: keys.go
package refunds

func refundKey(charge string) string {
	return fmt.Sprintf("refund-%s-%d", charge, time.Now().UnixMilli())
}
