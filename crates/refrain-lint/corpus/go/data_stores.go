// snippet: middleware that stores the recorder's status
package idem

func (m *Middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := "idempotency:" + tenantOf(r) + ":" + r.Header.Get("Idempotency-Key")
	ok, err := m.rdb.SetNX(r.Context(), key, "pending", time.Minute).Result()
	if err != nil || !ok {
		m.replay(w, r, key)
		return
	}
	rec := httptest.NewRecorder()
	m.next.ServeHTTP(rec, r)
	raw, _ := json.Marshal(stored{Status: rec.Code, Body: rec.Body.Bytes()})
	m.rdb.Set(r.Context(), key, raw, 24*time.Hour) // expect: error-outcome-kept
	copyTo(w, rec)
}

// snippet: retryablehttp with a key
package erp

func (c *Client) Create(ctx context.Context, o Order) error {
	client := retryablehttp.NewClient()
	client.RetryMax = 4
	req, err := retryablehttp.NewRequestWithContext(ctx, "POST", c.base+"/orders", o.Reader())
	if err != nil {
		return err
	}
	req.Header.Set("Idempotency-Key", o.RequestID)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// snippet: retryablehttp without a key
package erp

func (c *Client) Create(ctx context.Context, o Order) error {
	client := retryablehttp.NewClient()
	client.RetryMax = 4
	req, err := retryablehttp.NewRequestWithContext(ctx, "POST", c.base+"/orders", o.Reader()) // expect: retry-post-without-key
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// snippet: mysql row lock deleted by name
package lock

func (l *Locker) Release(ctx context.Context, name string) error {
	_, err := l.db.ExecContext(ctx, "DELETE FROM locks WHERE name = ?", name) // expect: unlock-without-owner-check
	return err
}

func (l *Locker) ReleaseOwn(ctx context.Context, name, owner string) error {
	_, err := l.db.ExecContext(ctx, "DELETE FROM locks WHERE name = ? AND owner = ?", name, owner)
	return err
}

// snippet: ttl of a day and hours of redelivery
package hooks

const (
	maxAttempts   = 8
	retryInterval = 6 * time.Hour
	keepKeysFor   = 24 * time.Hour
)

func (h *Hooks) Done(ctx context.Context, eventID string) error {
	return h.rdb.Set(ctx, "processed:"+eventID, "done", keepKeysFor).Err() // expect: ttl-shorter-than-retries
}
