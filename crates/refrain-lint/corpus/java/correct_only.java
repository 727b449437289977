// snippet: r1
class C {
    @Scheduled(fixedRate = 60000)
    void heartbeat() {
        restTemplate.postForObject("https://monitor.example.com/heartbeat", Map.of("up", true), Void.class);
    }
}

// snippet: r2
class C {
    @KafkaListener(topics = "orders")
    @Transactional
    public void on(OrderEvent event) {
        if (processed.insertIgnore(event.getId()) == 0) {
            return;
        }
        orders.apply(event);
    }
}

// snippet: r3
class C {
    @KafkaListener(topics = "orders")
    public void on(OrderEvent event, Acknowledgment ack) {
        service.apply(event);
        ack.acknowledge();
    }
}

// snippet: r4
class C {
    @Transactional
    public void create(Order order) {
        orders.save(order);
        outbox.save(new OutboxEvent("orders", order.json()));
    }
}

// snippet: r5
class C {
    void run(RedisTemplate<String, String> redis, String token) {
        redis.execute(UNLOCK_SCRIPT, List.of("lock:report"), token);
    }
}
