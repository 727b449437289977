// snippet: key-in-retry-loop
class Payments {
    Response pay(Order order) throws Exception {
        for (int attempt = 0; attempt < 3; attempt++) {
            try {
                HttpRequest request = HttpRequest.newBuilder(URI.create("https://api.example.com/payments"))
                    .header("Idempotency-Key", UUID.randomUUID().toString()) // expect: key-in-retry-loop
                    .POST(HttpRequest.BodyPublishers.ofString(order.json()))
                    .build();
                return client.send(request, BodyHandlers.ofString());
            } catch (IOException e) {
                Thread.sleep(1000);
            }
        }
        throw new IllegalStateException();
    }
}

// snippet: key-per-attempt, spring retry
class Payments {
    @Retryable(maxAttempts = 3)
    public Charge charge(Order order) throws StripeException {
        String key = UUID.randomUUID().toString(); // expect: key-per-attempt
        RequestOptions options = RequestOptions.builder().setIdempotencyKey(key).build();
        return Charge.create(order.params(), options);
    }
}

// snippet: key-per-attempt, scheduled
import com.stripe.model.Payout;

class Settlement {
    @Scheduled(fixedDelay = 60000)
    public void settle() throws StripeException {
        for (Merchant merchant : merchants.due()) {
            RequestOptions options = RequestOptions.builder()
                .setIdempotencyKey(UUID.randomUUID().toString()) // expect: key-per-attempt
                .build();
            Payout.create(merchant.payout(), options);
        }
    }
}

// snippet: key-per-attempt, kafka listener
class Payments {
    @KafkaListener(topics = "orders")
    public void onOrder(OrderPlaced event) {
        HttpHeaders headers = new HttpHeaders();
        headers.set("Idempotency-Key", UUID.randomUUID().toString()); // expect: key-per-attempt
        restTemplate.postForEntity("https://api.example.com/payments", new HttpEntity<>(event, headers), Void.class);
    }
}

// snippet: key-from-clock
class Payments {
    void pay(Order order) {
        HttpHeaders headers = new HttpHeaders();
        headers.set("Idempotency-Key", order.getId() + "-" + System.currentTimeMillis()); // expect: key-from-clock
        restTemplate.postForEntity(url, new HttpEntity<>(order, headers), String.class);
    }
}

// snippet: key-truncated
class Keys {
    String make(String customerId, String cartId) {
        String idempotencyKey = DigestUtils.sha256Hex(customerId + "-" + cartId).substring(0, 8); // expect: key-truncated
        return idempotencyKey;
    }
}

// snippet: unscoped-key
@RestController
class Orders {
    @PostMapping("/orders")
    ResponseEntity<String> create(@RequestHeader("Idempotency-Key") String idempotencyKey, @RequestBody Order order) {
        String cached = redis.opsForValue().get("idempotency:" + idempotencyKey); // expect: unscoped-key
        if (cached != null) {
            return ResponseEntity.ok(cached);
        }
        return ResponseEntity.status(409).build();
    }
}

// snippet: money-call-without-key
import com.stripe.model.PaymentIntent;

class Payments {
    PaymentIntent charge(long amount) throws StripeException {
        PaymentIntentCreateParams params = PaymentIntentCreateParams.builder().setAmount(amount).setCurrency("eur").build();
        return PaymentIntent.create(params); // expect: money-call-without-key
    }
}

// snippet: money-call-without-key, generic
class Payments {
    String pay(Order order) {
        return restTemplate.postForObject("https://psp.example.com/v1/payments", order, String.class); // expect: money-call-without-key
    }
}

// snippet: retry-post-without-key
class Orders {
    @Retryable(maxAttempts = 3)
    public String createOrder(Order order) {
        return restTemplate.postForObject("https://api.example.com/orders", order, String.class); // expect: retry-post-without-key
    }
}

// snippet: resend-on-closed-connection
class Orders {
    HttpResponse<String> send(HttpRequest request) throws Exception {
        HttpRequest post = HttpRequest.newBuilder(URI.create("https://api.example.com/orders")).POST(BodyPublishers.ofString(body)).build();
        try {
            return client.send(post, BodyHandlers.ofString());
        } catch (IOException e) {
            if (e.getMessage().contains("Connection reset")) { // expect: resend-on-closed-connection
                return client.send(post, BodyHandlers.ofString());
            }
            throw e;
        }
    }
}

// snippet: check-then-act
@RestController
class Orders {
    @PostMapping("/orders")
    Order create(@RequestHeader("Idempotency-Key") String idempotencyKey, @RequestBody Order order, Principal principal) {
        String key = "idempotency:" + principal.getName() + ":" + idempotencyKey;
        Order existing = redisTemplate.opsForValue().get(key); // expect: check-then-act
        if (existing != null) {
            return existing;
        }
        Order created = orderService.place(order);
        redisTemplate.opsForValue().set(key, created, Duration.ofHours(24));
        return created;
    }
}

// snippet: mark-before-handle
class Consumer {
    @KafkaListener(topics = "orders")
    public void onMessage(OrderEvent event) {
        if (processedRepository.existsById(event.getId())) {
            return;
        }
        processedRepository.save(new ProcessedEvent(event.getId())); // expect: mark-before-handle
        shippingService.ship(event.getOrderId());
    }
}

// snippet: ack-before-handle
class Consumer {
    @KafkaListener(topics = "orders")
    public void onMessage(OrderEvent event, Acknowledgment ack) {
        ack.acknowledge(); // expect: ack-before-handle
        orderService.process(event);
    }
}

// snippet: ack-before-handle, automatic
class Consumer {
    void start(Channel channel) throws IOException {
        channel.basicConsume("orders", true, (tag, delivery) -> process(delivery.getBody()), tag -> {}); // expect: ack-before-handle
    }
}

// snippet: publish-in-transaction
class Orders {
    @Transactional
    public void create(Order order) {
        orderRepository.save(order);
        kafkaTemplate.send("orders", order); // expect: publish-in-transaction
    }
}

// snippet: error-outcome-kept
class Handler {
    Response handle(String key, Request request) {
        try {
            Response response = charge(request);
            redis.opsForValue().set("idempotency:" + key, response.json());
            return response;
        } catch (Exception e) {
            redis.opsForValue().set("idempotency:" + key, "{\"status\":500}"); // expect: error-outcome-kept
            throw e;
        }
    }
}

// snippet: error-outcome-dropped
class Handler {
    void pay(String tenant, String idempotencyKey, Order order) {
        String key = "idem:" + tenant + ":" + idempotencyKey;
        if (!redis.opsForValue().setIfAbsent(key, "in_progress", Duration.ofMinutes(1))) {
            throw new ConflictException();
        }
        try {
            gateway.charge(order);
        } catch (RuntimeException e) {
            redis.delete(key); // expect: error-outcome-dropped
            throw e;
        }
    }
}

// snippet: unlock-without-owner-check
class Report {
    void run() {
        Boolean locked = redis.opsForValue().setIfAbsent("lock:report", "1", Duration.ofSeconds(30));
        if (!locked) return;
        try {
            buildReport();
        } finally {
            redis.delete("lock:report"); // expect: unlock-without-owner-check
        }
    }
}

// snippet: insert-without-conflict
class Store {
    void save(String key, long amount) {
        jdbcTemplate.update("INSERT INTO payments (idempotency_key, amount) VALUES (?, ?)", key, amount); // expect: insert-without-conflict
    }
}

// snippet: ttl-shorter-than-retries
class Settings {
    static final Duration IDEMPOTENCY_TTL = Duration.ofMinutes(1); // expect: ttl-shorter-than-retries
    static final int MAX_RETRIES = 10;
    static final Duration RETRY_DELAY = Duration.ofMinutes(1);
}
