// snippet: resty v2 retries posts
package erp

import "github.com/go-resty/resty/v2"

var client = resty.New().SetRetryCount(3)

func CreateOrder(order Order) error {
	_, err := client.R().SetBody(order).Post("https://erp.example.com/orders") // expect: retry-post-without-key
	return err
}

// snippet: handler of a webhook looks first
package hooks

func (h *Handler) Webhook(w http.ResponseWriter, r *http.Request) {
	event := parse(r)
	var count int
	h.db.QueryRow("SELECT count(*) FROM processed_events WHERE event_id = $1", event.ID).Scan(&count) // expect: check-then-act
	if count > 0 {
		w.WriteHeader(http.StatusOK)
		return
	}
	if err := h.apply(event); err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	h.db.Exec("INSERT INTO processed_events (event_id) VALUES ($1)", event.ID) // expect: insert-without-conflict
	w.WriteHeader(http.StatusOK)
}

// snippet: range over deliveries with a marker
package worker

func consume(ctx context.Context, deliveries <-chan amqp.Delivery) {
	for message := range deliveries {
		ok, err := rdb.SetNX(ctx, "processed:"+message.MessageId, 1, 30*24*time.Hour).Result() // expect: mark-before-handle
		if err != nil || !ok {
			message.Ack(false)
			continue
		}
		createShipment(ctx, message.Body)
		message.Ack(false)
	}
}

// snippet: gorm transaction with nats
package orders

func Place(db *gorm.DB, nc *nats.Conn, order *Order) error {
	return db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(order).Error; err != nil {
			return err
		}
		return nc.Publish("orders.placed", order.JSON()) // expect: publish-in-transaction
	})
}

// snippet: date and time key
package pay

func request(order Order) *http.Request {
	req, _ := http.NewRequest(http.MethodPost, "https://api.example.com/payments", order.Reader())
	req.Header.Set("Idempotency-Key", order.ID+time.Now().Format(time.RFC3339)) // expect: key-from-clock
	return req
}

// snippet: unlock with a script
package locks

var unlock = redis.NewScript(`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end return 0`)

func Release(ctx context.Context, rdb *redis.Client, name, token string) error {
	return unlock.Run(ctx, rdb, []string{"lock:" + name}, token).Err()
}

// snippet: gin looks up by key alone
package api

func Create(c *gin.Context) {
	key := c.GetHeader("Idempotency-Key")
	if val, err := rdb.Get(c, "idem:"+key).Result(); err == nil { // expect: unscoped-key
		c.Data(200, "application/json", []byte(val))
		return
	}
	c.Status(409)
}

// snippet: insert with conflict
package store

func Claim(ctx context.Context, db *sql.DB, tenant, key string) (bool, error) {
	res, err := db.ExecContext(ctx, `INSERT INTO claims (tenant, idempotency_key) VALUES ($1, $2) ON CONFLICT DO NOTHING`, tenant, key)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}
