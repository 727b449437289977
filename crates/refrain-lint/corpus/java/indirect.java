// snippet: resilience4j
class Orders {
    @Retry(name = "erp")
    public OrderId create(Order order) {
        return webClient.post().uri("/orders").bodyValue(order).retrieve().bodyToMono(OrderId.class).block(); // expect: retry-post-without-key
    }
}

// snippet: listener marks first
@Component
class OrderListener {
    @RabbitListener(queues = "orders")
    public void onOrder(OrderPlaced event) {
        Boolean first = redisTemplate.opsForValue().setIfAbsent("processed:" + event.id(), "1", Duration.ofDays(30)); // expect: mark-before-handle
        if (!Boolean.TRUE.equals(first)) {
            return;
        }
        warehouse.reserve(event.items());
    }
}

// snippet: kafka loop commits first
class Loop {
    void run() {
        while (running) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(500));
            consumer.commitSync(); // expect: ack-before-handle
            for (ConsumerRecord<String, String> record : records) {
                ledger.book(record.value());
            }
        }
    }
}

// snippet: rabbit template in a transaction
@Service
class Registration {
    @Transactional
    public User register(NewUser form) {
        User user = users.save(new User(form));
        rabbitTemplate.convertAndSend("users", "registered", user.getId()); // expect: publish-in-transaction
        return user;
    }
}

// snippet: event after the commit
@Component
class Relay {
    @TransactionalEventListener(phase = TransactionPhase.AFTER_COMMIT)
    public void on(UserRegistered event) {
        rabbitTemplate.convertAndSend("users", "registered", event.id());
    }
}

// snippet: key of the day and time
class Keys {
    String idempotencyKey(Order order) {
        return order.getId() + "-" + LocalDateTime.now();
    }

    void pay(Order order) {
        HttpRequest request = HttpRequest.newBuilder(PAYMENTS)
            .header("Idempotency-Key", idempotencyKey(order)) // expect: key-from-clock
            .POST(BodyPublishers.ofString(order.json()))
            .build();
        http.send(request, BodyHandlers.discarding());
    }
}

// snippet: jdbc with a caught violation
class Store {
    boolean claim(String tenant, String key) {
        try {
            jdbc.update("INSERT INTO idempotency (tenant, idempotency_key) VALUES (?, ?)", tenant, key);
            return true;
        } catch (DuplicateKeyException e) {
            return false;
        }
    }
}

// snippet: error stored for the key
class Filter {
    void handle(String tenant, String idempotencyKey, Exchange exchange) {
        String key = "idem:" + tenant + ":" + idempotencyKey;
        try {
            exchange.proceed();
            cache.put(key, exchange.response());
        } catch (RuntimeException e) {
            cache.put(key, Response.serverError(e.getMessage())); // expect: error-outcome-kept
            throw e;
        }
    }
}
