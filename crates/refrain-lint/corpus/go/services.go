// snippet: handler that reads and writes a key with pgx
package payments

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5"
)

func (h *Handler) Create(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	account := accountFrom(ctx)
	key := r.Header.Get("Idempotency-Key")

	var stored []byte
	err := h.pool.QueryRow(ctx, `SELECT response FROM idempotency_keys WHERE account_id = $1 AND key = $2`, account.ID, key).Scan(&stored) // expect: check-then-act
	if err == nil {
		w.Write(stored)
		return
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}

	var req CreateRequest
	json.NewDecoder(r.Body).Decode(&req)
	payment, err := h.acquirer.Authorise(ctx, req.Card, req.Amount)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	body, _ := json.Marshal(payment)
	h.pool.Exec(ctx, `INSERT INTO idempotency_keys (account_id, key, response) VALUES ($1, $2, $3)`, account.ID, key, body)
	w.Write(body)
}

// snippet: handler that claims a row
package payments

import (
	"encoding/json"
	"net/http"
)

func (h *Handler) Create(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	account := accountFrom(ctx)
	key := r.Header.Get("Idempotency-Key")

	tag, err := h.pool.Exec(ctx, `INSERT INTO idempotency_keys (account_id, key, state) VALUES ($1, $2, 'begun') ON CONFLICT DO NOTHING`, account.ID, key)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if tag.RowsAffected() == 0 {
		h.replay(w, r, account.ID, key)
		return
	}
	payment, err := h.acquirer.Authorise(ctx, decode(r))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	body, _ := json.Marshal(payment)
	h.pool.Exec(ctx, `UPDATE idempotency_keys SET state = 'done', response = $3 WHERE account_id = $1 AND key = $2`, account.ID, key, body)
	w.Write(body)
}

// snippet: cenkalti around a request without a key
package crm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v4"
)

func (c *Client) CreateContact(ctx context.Context, contact Contact) error {
	body, err := json.Marshal(contact)
	if err != nil {
		return err
	}
	operation := func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/contacts", bytes.NewReader(body)) // expect: retry-post-without-key
		if err != nil {
			return backoff.Permanent(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.token)
		res, err := c.http.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode >= 500 {
			return fmt.Errorf("crm: %s", res.Status)
		}
		return nil
	}
	policy := backoff.NewExponentialBackOff()
	policy.MaxElapsedTime = 2 * time.Minute
	return backoff.Retry(operation, backoff.WithContext(policy, ctx))
}

// snippet: cenkalti around a request with the contact's key
package crm

func (c *Client) CreateContact(ctx context.Context, contact Contact) error {
	body, err := json.Marshal(contact)
	if err != nil {
		return err
	}
	operation := func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/contacts", bytes.NewReader(body))
		if err != nil {
			return backoff.Permanent(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.token)
		req.Header.Set("Idempotency-Key", contact.RequestID)
		res, err := c.http.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		return nil
	}
	return backoff.Retry(operation, backoff.NewExponentialBackOff())
}

// snippet: loop with a fresh request each time
package notify

import (
	"bytes"
	"net/http"
	"time"

	"github.com/google/uuid"
)

func Send(client *http.Client, url string, payload []byte) (*http.Response, error) {
	var lastErr error
	for i := 0; i < 3; i++ {
		req, err := http.NewRequest("POST", url, bytes.NewBuffer(payload))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", uuid.NewString()) // expect: key-in-retry-loop
		resp, err := client.Do(req)
		if err == nil && resp.StatusCode < 500 {
			return resp, nil
		}
		lastErr = err
		time.Sleep(time.Duration(i+1) * time.Second)
	}
	return nil, lastErr
}

// snippet: loop with the key made before it
package notify

import (
	"bytes"
	"net/http"
	"time"

	"github.com/google/uuid"
)

func Send(client *http.Client, url string, payload []byte) (*http.Response, error) {
	key := uuid.NewString()
	var lastErr error
	for i := 0; i < 3; i++ {
		req, err := http.NewRequest("POST", url, bytes.NewBuffer(payload))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
		resp, err := client.Do(req)
		if err == nil && resp.StatusCode < 500 {
			return resp, nil
		}
		lastErr = err
		time.Sleep(time.Duration(i+1) * time.Second)
	}
	return nil, lastErr
}

// snippet: resty in a constructor
package erp

import "github.com/go-resty/resty/v2"

type Client struct {
	http *resty.Client
}

func New(base string) *Client {
	http := resty.New().
		SetBaseURL(base).
		SetRetryCount(3).
		SetRetryWaitTime(200 * time.Millisecond)
	return &Client{http: http}
}

func (c *Client) CreateInvoice(ctx context.Context, invoice Invoice) (*Created, error) {
	var created Created
	_, err := c.http.R().
		SetContext(ctx).
		SetBody(invoice).
		SetResult(&created).
		Post("/invoices") // expect: retry-post-without-key
	return &created, err
}

// snippet: sarama handler marks last
package usage

import (
	"encoding/json"

	"github.com/IBM/sarama"
)

type handler struct{ meter *Meter }

func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		var usage Usage
		if err := json.Unmarshal(message.Value, &usage); err != nil {
			session.MarkMessage(message, "unreadable")
			continue
		}
		if err := h.meter.Record(session.Context(), usage); err != nil {
			return err
		}
		session.MarkMessage(message, "")
	}
	return nil
}

// snippet: segmentio reader commits first
package usage

import (
	"context"
	"log"

	"github.com/segmentio/kafka-go"
)

func Run(ctx context.Context, reader *kafka.Reader, meter *Meter) error {
	for {
		m, err := reader.FetchMessage(ctx)
		if err != nil {
			return err
		}
		if err := reader.CommitMessages(ctx, m); err != nil { // expect: ack-before-handle
			log.Printf("commit: %v", err)
		}
		if err := meter.Record(ctx, m.Key, m.Value); err != nil {
			log.Printf("record: %v", err)
		}
	}
}

// snippet: segmentio reader commits last
package usage

func Run(ctx context.Context, reader *kafka.Reader, meter *Meter) error {
	for {
		m, err := reader.FetchMessage(ctx)
		if err != nil {
			return err
		}
		if err := meter.Record(ctx, m.Key, m.Value); err != nil {
			return err
		}
		if err := reader.CommitMessages(ctx, m); err != nil {
			log.Printf("commit: %v", err)
		}
	}
}

// snippet: sqlx transaction that publishes before commit
package orders

import (
	"context"

	"github.com/jmoiron/sqlx"
	amqp "github.com/rabbitmq/amqp091-go"
)

func (s *Service) Place(ctx context.Context, o Order) error {
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.NamedExecContext(ctx, `INSERT INTO orders (id, total) VALUES (:id, :total)`, o); err != nil {
		return err
	}
	err = s.channel.PublishWithContext(ctx, "shop", "order.placed", false, false, amqp.Publishing{Body: o.JSON()}) // expect: publish-in-transaction
	if err != nil {
		return err
	}
	return tx.Commit()
}

func (s *Service) PlaceWithOutbox(ctx context.Context, o Order) error {
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.NamedExecContext(ctx, `INSERT INTO orders (id, total) VALUES (:id, :total)`, o); err != nil {
		return err
	}
	if err := s.publish(ctx, tx, "order.placed", o.JSON()); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *Service) publish(ctx context.Context, tx *sqlx.Tx, topic string, body []byte) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO outbox (topic, body) VALUES ($1, $2)`, topic, body)
	return err
}

// snippet: stripe-go with and without
package billing

import (
	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/paymentintent"
	"github.com/stripe/stripe-go/v76/refund"
)

func Collect(invoice Invoice) (*stripe.PaymentIntent, error) {
	params := &stripe.PaymentIntentParams{
		Amount:   stripe.Int64(invoice.Cents),
		Currency: stripe.String(invoice.Currency),
	}
	params.SetIdempotencyKey("collect-" + invoice.ID)
	return paymentintent.New(params)
}

func GiveBack(intent string, cents int64) (*stripe.Refund, error) {
	params := &stripe.RefundParams{
		PaymentIntent: stripe.String(intent),
		Amount:        stripe.Int64(cents),
	}
	return refund.New(params) // expect: money-call-without-key
}

// snippet: webhook marked with SetNX before the work
package hooks

import (
	"net/http"
	"time"
)

func (h *Hooks) HandleWebhook(w http.ResponseWriter, r *http.Request) {
	event, err := h.parse(r)
	if err != nil {
		http.Error(w, "bad signature", http.StatusBadRequest)
		return
	}
	fresh, err := h.rdb.SetNX(r.Context(), "webhook:"+event.ID, "1", 72*time.Hour).Result() // expect: mark-before-handle
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if !fresh {
		w.WriteHeader(http.StatusOK)
		return
	}
	if err := h.subscriptions.Extend(r.Context(), event.Subscription); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// snippet: key cut to fit
package transfer

func idempotencyKey(sender, receiver, reference string) string {
	key := sender + ":" + receiver + ":" + reference
	if len(key) > 32 {
		key = key[:32] // expect: key-truncated
	}
	return key
}
