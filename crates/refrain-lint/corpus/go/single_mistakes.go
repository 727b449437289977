// snippet: post again after EOF
package erp

func (c *Client) CreateOrder(ctx context.Context, body []byte) (*http.Response, error) {
	resp, err := c.http.Post(c.base+"/orders", "application/json", bytes.NewReader(body))
	if err != nil && strings.Contains(err.Error(), "connection reset by peer") { // expect: resend-on-closed-connection
		resp, err = c.http.Post(c.base+"/orders", "application/json", bytes.NewReader(body))
	}
	return resp, err
}

// snippet: claim given up after a timeout
package api

func (s *Service) Charge(ctx context.Context, tenant, idempotencyKey string, req ChargeRequest) error {
	key := fmt.Sprintf("idem:%s:%s", tenant, idempotencyKey)
	claimed, err := s.rdb.SetNX(ctx, key, "in_progress", time.Minute).Result()
	if err != nil {
		return err
	}
	if !claimed {
		return ErrInProgress
	}
	_, err = s.psp.Charge(ctx, req)
	if err != nil {
		s.rdb.Del(ctx, key) // expect: error-outcome-dropped
		return err
	}
	return s.rdb.Set(ctx, key, "done", 24*time.Hour).Err()
}

// snippet: record shorter than the retries
package worker

const (
	maxAttempts = 12
	retryDelay  = 10 * time.Minute
)

func (w *Worker) finish(ctx context.Context, messageID string) error {
	return w.rdb.Set(ctx, "processed:"+messageID, "done", 15*time.Minute).Err() // expect: ttl-shorter-than-retries
}

// snippet: kafka-go commits first
package worker

func run(ctx context.Context, reader *kafka.Reader) error {
	for {
		m, err := reader.FetchMessage(ctx)
		if err != nil {
			return err
		}
		if err := reader.CommitMessages(ctx, m); err != nil { // expect: ack-before-handle
			return err
		}
		if err := applyPayment(ctx, m.Value); err != nil {
			return err
		}
	}
}

// snippet: stripe refund
package pay

import (
	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/refund"
)

func Refund(charge string) error {
	_, err := refund.New(&stripe.RefundParams{Charge: stripe.String(charge)}) // expect: money-call-without-key
	return err
}

// snippet: kafka-go commits last
package worker

func run(ctx context.Context, reader *kafka.Reader) error {
	for {
		m, err := reader.FetchMessage(ctx)
		if err != nil {
			return err
		}
		if err := applyPayment(ctx, m.Value); err != nil {
			return err
		}
		if err := reader.CommitMessages(ctx, m); err != nil {
			return err
		}
	}
}

// snippet: one key for all attempts
package pay

func Send(ctx context.Context, client *http.Client, order Order) error {
	key := "order-" + order.ID + "-pay"
	for attempt := 0; attempt < 5; attempt++ {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.example.com/payments", order.Reader())
		if err != nil {
			return err
		}
		req.Header.Set("Idempotency-Key", key)
		resp, err := client.Do(req)
		if err == nil && resp.StatusCode < 500 {
			return nil
		}
		time.Sleep(time.Duration(attempt) * time.Second)
	}
	return errors.New("gave up")
}
