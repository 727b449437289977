// snippet: key-in-retry-loop
package pay

func Pay(client *http.Client, body []byte) (*http.Response, error) {
	for attempt := 0; attempt < 3; attempt++ {
		req, _ := http.NewRequest("POST", "https://api.example.com/payments", bytes.NewReader(body))
		req.Header.Set("Idempotency-Key", uuid.NewString()) // expect: key-in-retry-loop
		resp, err := client.Do(req)
		if err == nil {
			return resp, nil
		}
		time.Sleep(time.Second)
	}
	return nil, errors.New("gave up")
}

// snippet: key-per-attempt
package jobs

func HandlePayment(ctx context.Context, t *asynq.Task) error {
	key := uuid.New().String() // expect: key-per-attempt
	params := &stripe.ChargeParams{Amount: stripe.Int64(100)}
	params.IdempotencyKey = stripe.String(key)
	_, err := charge.New(params)
	return err
}

func main() {
	mux := asynq.NewServeMux()
	mux.HandleFunc("payment:charge", HandlePayment)
}

// snippet: key-per-attempt, backoff
package pay

func Send(client *http.Client, order Order) error {
	return backoff.Retry(func() error {
		req, _ := http.NewRequest("POST", "https://api.example.com/orders", order.Body())
		req.Header.Set("Idempotency-Key", uuid.NewString()) // expect: key-per-attempt
		_, err := client.Do(req)
		return err
	}, backoff.NewExponentialBackOff())
}

// snippet: key-from-clock
package pay

func Pay(client *http.Client, order Order) (*http.Response, error) {
	key := fmt.Sprintf("%s-%d", order.ID, time.Now().UnixNano()) // expect: key-from-clock
	req, _ := http.NewRequest("POST", "https://api.example.com/payments", order.Body())
	req.Header.Set("Idempotency-Key", key)
	return client.Do(req)
}

// snippet: key-truncated
package pay

func makeKey(customerID, cartID string) string {
	sum := sha256.Sum256([]byte(customerID + "-" + cartID))
	idempotencyKey := hex.EncodeToString(sum[:])[:8] // expect: key-truncated
	return idempotencyKey
}

// snippet: unscoped-key
package api

func createOrder(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	cached, err := rdb.Get(r.Context(), "idempotency:"+key).Result() // expect: unscoped-key
	if err == nil {
		w.Write([]byte(cached))
		return
	}
	w.WriteHeader(http.StatusConflict)
}

// snippet: money-call-without-key
package pay

import "github.com/stripe/stripe-go/v76/paymentintent"

func Charge(amount int64) (*stripe.PaymentIntent, error) {
	params := &stripe.PaymentIntentParams{Amount: stripe.Int64(amount), Currency: stripe.String("eur")}
	return paymentintent.New(params) // expect: money-call-without-key
}

// snippet: money-call-without-key, generic
package pay

func Pay(body []byte) (*http.Response, error) {
	return http.Post("https://psp.example.com/v1/payments", "application/json", bytes.NewReader(body)) // expect: money-call-without-key
}

// snippet: retry-post-without-key
package orders

func CreateOrder(body []byte) error {
	var err error
	for i := 0; i < 3; i++ {
		_, err = http.Post("https://api.example.com/orders", "application/json", bytes.NewReader(body)) // expect: retry-post-without-key
		if err == nil {
			return nil
		}
		time.Sleep(time.Second)
	}
	return err
}

// snippet: resend-on-closed-connection
package orders

func Send(body []byte) (*http.Response, error) {
	resp, err := http.Post("https://api.example.com/orders", "application/json", bytes.NewReader(body))
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) { // expect: resend-on-closed-connection
		return http.Post("https://api.example.com/orders", "application/json", bytes.NewReader(body))
	}
	return resp, err
}

// snippet: check-then-act
package api

func (s *Server) createOrder(w http.ResponseWriter, r *http.Request) {
	key := "idempotency:" + tenantID(r) + ":" + r.Header.Get("Idempotency-Key")
	cached, err := s.rdb.Get(r.Context(), key).Result() // expect: check-then-act
	if err == nil {
		w.Write([]byte(cached))
		return
	}
	order := s.placeOrder(r)
	s.rdb.Set(r.Context(), key, order.JSON(), 24*time.Hour)
	w.Write(order.JSON())
}

// snippet: mark-before-handle
package worker

func handleEvent(ctx context.Context, event Event) error {
	seen, _ := rdb.Exists(ctx, "processed:"+event.ID).Result()
	if seen > 0 {
		return nil
	}
	rdb.Set(ctx, "processed:"+event.ID, "1", 7*24*time.Hour) // expect: mark-before-handle
	return shipOrder(ctx, event.OrderID)
}

// snippet: ack-before-handle
package worker

func main() {
	msgs, _ := ch.Consume("orders", "", false, false, false, false, nil)
	for d := range msgs {
		d.Ack(false) // expect: ack-before-handle
		processOrder(d.Body)
	}
}

// snippet: ack-before-handle, automatic
package worker

func main() {
	msgs, err := ch.Consume("orders", "", true, false, false, false, nil) // expect: ack-before-handle
	if err != nil {
		log.Fatal(err)
	}
	for d := range msgs {
		processOrder(d.Body)
	}
}

// snippet: publish-in-transaction
package orders

func Create(ctx context.Context, db *sql.DB, order Order) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.Exec("INSERT INTO orders (id, total) VALUES ($1, $2)", order.ID, order.Total); err != nil {
		return err
	}
	if err := producer.Publish("orders", order); err != nil { // expect: publish-in-transaction
		return err
	}
	return tx.Commit()
}

// snippet: error-outcome-kept
package api

func handle(ctx context.Context, key string, req Request) (Response, error) {
	resp, err := charge(ctx, req)
	if err != nil {
		rdb.Set(ctx, "idempotency:"+key, `{"status":500}`, 24*time.Hour) // expect: error-outcome-kept
		return Response{}, err
	}
	rdb.Set(ctx, "idempotency:"+key, resp.JSON(), 24*time.Hour)
	return resp, nil
}

// snippet: error-outcome-dropped
package api

func pay(ctx context.Context, tenant, idempotencyKey string, order Order) error {
	key := "idem:" + tenant + ":" + idempotencyKey
	ok, err := rdb.SetNX(ctx, key, "in_progress", time.Minute).Result()
	if err != nil || !ok {
		return ErrConflict
	}
	if err := gateway.Charge(ctx, order); err != nil {
		rdb.Del(ctx, key) // expect: error-outcome-dropped
		return err
	}
	return nil
}

// snippet: unlock-without-owner-check
package jobs

func run(ctx context.Context) {
	ok, _ := rdb.SetNX(ctx, "lock:report", "1", 30*time.Second).Result()
	if !ok {
		return
	}
	defer rdb.Del(ctx, "lock:report") // expect: unlock-without-owner-check
	buildReport(ctx)
}

// snippet: insert-without-conflict
package store

func save(ctx context.Context, db *sql.DB, key string, amount int64) error {
	_, err := db.ExecContext(ctx, "INSERT INTO payments (idempotency_key, amount) VALUES ($1, $2)", key, amount) // expect: insert-without-conflict
	return err
}

// snippet: ttl-shorter-than-retries
package config

const (
	idempotencyTTL = 1 * time.Minute // expect: ttl-shorter-than-retries
	maxRetries     = 10
	retryDelay     = 1 * time.Minute
)
