// snippet: retry-go with a closure
package pay

func Capture(ctx context.Context, id string) error {
	return retry.Do(func() error {
		params := &stripe.PaymentIntentCaptureParams{}
		params.SetIdempotencyKey(uuid.NewString()) // expect: key-per-attempt
		_, err := paymentintent.Capture(id, params)
		return err
	}, retry.Attempts(3))
}

// snippet: delivery handled, then acknowledged
package worker

func run(deliveries <-chan amqp.Delivery) {
	for d := range deliveries {
		if err := process(d.Body); err != nil {
			d.Nack(false, true)
			continue
		}
		d.Ack(false)
	}
}

// snippet: claim dropped on any error
package api

func (s *Service) Pay(ctx context.Context, tenant, idemKey string, p Payment) error {
	key := "idem:" + tenant + ":" + idemKey
	if ok, _ := s.rdb.SetNX(ctx, key, "in_progress", time.Minute).Result(); !ok {
		return ErrInFlight
	}
	if err := s.gateway.Charge(ctx, p); err != nil {
		s.rdb.Del(ctx, key) // expect: error-outcome-dropped
		return err
	}
	return s.rdb.Set(ctx, key, "done", 24*time.Hour).Err()
}
