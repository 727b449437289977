// snippet: sync.Once key and a retrying loop
package pay

type Intent struct {
	Key string
}

func NewIntent() Intent {
	return Intent{Key: uuid.NewString()}
}

func (c *Client) Pay(ctx context.Context, intent Intent, body []byte) error {
	for attempt := 0; attempt < 3; attempt++ {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/payments", bytes.NewReader(body))
		req.Header.Set("Idempotency-Key", intent.Key)
		resp, err := c.http.Do(req)
		if err == nil {
			return resp.Body.Close()
		}
		time.Sleep(time.Second)
	}
	return ErrGaveUp
}

// snippet: pgx BeginFunc with nats
package orders

func (s *Service) Place(ctx context.Context, o Order) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (id) VALUES ($1)", o.ID); err != nil {
			return err
		}
		return s.nc.Publish("orders.placed", o.JSON()) // expect: publish-in-transaction
	})
}

// snippet: redis get then set with a claim elsewhere
package idem

func (s *Store) Begin(ctx context.Context, tenant, key string) (bool, error) {
	return s.rdb.SetNX(ctx, "idem:"+tenant+":"+key, "pending", time.Minute).Result()
}

func (h *Handler) Create(w http.ResponseWriter, r *http.Request) {
	tenant, key := tenantOf(r), r.Header.Get("Idempotency-Key")
	granted, err := h.store.Begin(r.Context(), tenant, key)
	if err != nil || !granted {
		h.replay(w, r, tenant, key)
		return
	}
	receipt := h.charge(r)
	h.store.Finish(r.Context(), tenant, key, receipt)
	writeJSON(w, receipt)
}

// snippet: pubsub receive acks first
package worker

func run(ctx context.Context, sub *pubsub.Subscription) error {
	return sub.Receive(ctx, func(ctx context.Context, m *pubsub.Message) {
		m.Ack() // expect: ack-before-handle
		if err := importInvoice(ctx, m.Data); err != nil {
			log.Println(err)
		}
	})
}
