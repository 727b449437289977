// snippet: retryable with a fresh key
@Service
class PayoutService {
    @Retryable(maxAttempts = 4)
    public Payout send(PayoutRequest request) {
        HttpHeaders headers = new HttpHeaders();
        headers.set("Idempotency-Key", UUID.randomUUID().toString()); // expect: key-per-attempt
        return rest.postForObject(base + "/payouts", new HttpEntity<>(request, headers), Payout.class);
    }
}

// snippet: retryable with a stored key
@Service
class PayoutService {
    @Retryable(maxAttempts = 4)
    public Payout send(PayoutRequest request) {
        HttpHeaders headers = new HttpHeaders();
        headers.set("Idempotency-Key", request.getIdempotencyKey());
        return rest.postForObject(base + "/payouts", new HttpEntity<>(request, headers), Payout.class);
    }
}

// snippet: key in a loop
class Charges {
    Charge charge(ChargeCreateParams params) throws StripeException {
        for (int attempt = 1; attempt <= 3; attempt++) {
            try {
                RequestOptions options = RequestOptions.builder()
                    .setIdempotencyKey(UUID.randomUUID().toString()) // expect: key-in-retry-loop
                    .build();
                return Charge.create(params, options);
            } catch (ApiConnectionException e) {
                log.warn("attempt {} failed", attempt);
            }
        }
        throw new IllegalStateException("gave up");
    }
}

// snippet: stripe create
class Checkout {
    PaymentIntent start(Cart cart) throws StripeException {
        PaymentIntentCreateParams params = PaymentIntentCreateParams.builder().setAmount(cart.total()).setCurrency("eur").build();
        return PaymentIntent.create(params); // expect: money-call-without-key
    }

    PaymentIntent startOnce(Cart cart) throws com.stripe.exception.StripeException {
        PaymentIntentCreateParams params = PaymentIntentCreateParams.builder().setAmount(cart.total()).setCurrency("eur").build();
        RequestOptions options = RequestOptions.builder().setIdempotencyKey("cart-" + cart.id()).build();
        return PaymentIntent.create(params, options);
    }
}

// snippet: clock in the key
class Transfers {
    void send(Transfer transfer) {
        String idempotencyKey = transfer.account() + ":" + System.currentTimeMillis(); // expect: key-from-clock
        client.submit(transfer, idempotencyKey);
    }
}

// snippet: interceptor
class KeyInterceptor implements ClientHttpRequestInterceptor {
    @Override
    public ClientHttpResponse intercept(HttpRequest request, byte[] body, ClientHttpRequestExecution execution) throws IOException {
        request.getHeaders().add("Idempotency-Key", UUID.randomUUID().toString()); // expect: key-per-attempt
        return execution.execute(request, body);
    }
}

// snippet: webclient retry
class Orders {
    private final WebClient webClient;

    Mono<Order> create(OrderRequest body) {
        return webClient.post().uri("/orders").bodyValue(body).retrieve().bodyToMono(Order.class) // expect: retry-post-without-key
            .retryWhen(Retry.backoff(3, Duration.ofSeconds(1)));
    }
}

// snippet: rest template under a template
class Orders {
    Order create(OrderRequest body) {
        return retryTemplate.execute(context -> rest.postForObject("/orders", body, Order.class)); // expect: retry-post-without-key
    }

    Order read(String id) {
        return retryTemplate.execute(context -> rest.getForObject("/orders/{id}", Order.class, id));
    }
}

// snippet: check then act
class IdempotencyFilter {
    Response handle(String tenant, String idempotencyKey, Request request) {
        String key = "idem:" + tenant + ":" + idempotencyKey;
        String cached = redis.opsForValue().get(key); // expect: check-then-act
        if (cached != null) {
            return Response.of(cached);
        }
        Response response = payments.charge(request);
        redis.opsForValue().set(key, response.body(), Duration.ofHours(24));
        return response;
    }
}

// snippet: set if absent
class IdempotencyFilter {
    Response handle(String tenant, String idempotencyKey, Request request) {
        String key = "idem:" + tenant + ":" + idempotencyKey;
        if (!redis.opsForValue().setIfAbsent(key, "in_progress", Duration.ofSeconds(60))) {
            return Response.conflict();
        }
        Response response = payments.charge(request);
        redis.opsForValue().set(key, response.body(), Duration.ofHours(24));
        return response;
    }
}

// snippet: listener acknowledges first
class OrderListener {
    @KafkaListener(topics = "orders")
    void onOrder(ConsumerRecord<String, String> record, Acknowledgment ack) {
        ack.acknowledge(); // expect: ack-before-handle
        fulfilment.start(record.value());
    }
}

// snippet: listener acknowledges last
class OrderListener {
    @KafkaListener(topics = "orders")
    void onOrder(ConsumerRecord<String, String> record, Acknowledgment ack) {
        fulfilment.start(record.value());
        ack.acknowledge();
    }
}

// snippet: auto-ack
class Worker {
    void run(Channel channel) throws IOException {
        channel.basicConsume("orders", true, (tag, delivery) -> ship(delivery.getBody()), tag -> {}); // expect: ack-before-handle
    }
}

// snippet: transactional publisher
class OrderService {
    @Transactional
    public Order place(Cart cart) {
        Order order = orders.save(new Order(cart));
        kafkaTemplate.send("orders", order.getId(), order); // expect: publish-in-transaction
        return order;
    }

    @Transactional
    public Order placeWithOutbox(Cart cart) {
        Order order = orders.save(new Order(cart));
        outbox.publish("orders", order);
        return order;
    }
}

// snippet: listener marks first
class PaymentListener {
    @RabbitListener(queues = "payments")
    void onPayment(PaymentEvent event) {
        Boolean first = redis.opsForValue().setIfAbsent("processed:" + event.id(), "1", Duration.ofDays(7)); // expect: mark-before-handle
        if (!Boolean.TRUE.equals(first)) {
            return;
        }
        ledger.book(event);
    }
}

// snippet: unlock
class Locks {
    void run(String id, Runnable work) {
        String lockKey = "lock:" + id;
        if (!redis.opsForValue().setIfAbsent(lockKey, "1", Duration.ofSeconds(30))) {
            throw new Busy();
        }
        try {
            work.run();
        } finally {
            redis.delete(lockKey); // expect: unlock-without-owner-check
        }
    }
}

// snippet: header without a scope
class PaymentController {
    @PostMapping("/payments")
    Response pay(@RequestHeader("Idempotency-Key") String key, @RequestBody Body body) {
        if (!redis.opsForValue().setIfAbsent("idem:" + key, "pending", Duration.ofMinutes(1))) { // expect: unscoped-key
            return Response.conflict();
        }
        return service.pay(body);
    }
}

// snippet: substring
class Keys {
    String idempotencyKey(Order order) {
        return (order.customer() + "-" + order.reference()).substring(0, 20); // expect: key-truncated
    }
}
