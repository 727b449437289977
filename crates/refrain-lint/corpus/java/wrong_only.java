// snippet: p1 deliver callback acks first
class C {
    void start(Channel channel) throws IOException {
        DeliverCallback callback = (tag, delivery) -> {
            channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false); // expect: ack-before-handle
            process(delivery.getBody());
        };
        channel.basicConsume("orders", false, callback, tag -> {});
    }
}

// snippet: p2 concurrent map
class C {
    Response handle(String tenant, String idempotencyKey, Request request) {
        String key = tenant + ":" + idempotencyKey;
        if (cache.containsKey(key)) { // expect: check-then-act
            return cache.get(key);
        }
        Response response = process(request);
        cache.put(key, response);
        return response;
    }
}

// snippet: p3 plain loop post
class C {
    String create(Order order) {
        for (int i = 0; i < 3; i++) {
            try {
                return restTemplate.postForObject(url, order, String.class); // expect: retry-post-without-key
            } catch (RestClientException e) {
                log.warn("failed", e);
            }
        }
        throw new IllegalStateException();
    }
}

// snippet: p4 jdbc tx
class C {
    void create(Connection conn, Order order) throws SQLException {
        conn.setAutoCommit(false);
        insert(conn, order);
        producer.send(new ProducerRecord<>("orders", order.json())); // expect: publish-in-transaction
        conn.commit();
    }
}

// snippet: p5 entity without unique
@Entity
class Payment {
    @Id @GeneratedValue Long id;
    @Column(name = "idempotency_key") String idempotencyKey;
}

class Service {
    Payment create(String tenant, String idempotencyKey) {
        if (repository.existsByTenantAndIdempotencyKey(tenant, idempotencyKey)) { // expect: check-then-act
            return repository.findByTenantAndIdempotencyKey(tenant, idempotencyKey);
        }
        return repository.save(new Payment(tenant, idempotencyKey));
    }
}

// snippet: p6 ttl
class C {
    @Retryable(maxAttempts = 10, backoff = @Backoff(delay = 600000))
    void settle(String eventId) {
        redis.opsForValue().set("processed:" + eventId, "done", Duration.ofMinutes(5)); // expect: ttl-shorter-than-retries
    }
}

// snippet: p7 sqs
class C {
    void poll() {
        for (Message message : sqs.receiveMessage(request).messages()) {
            sqs.deleteMessage(b -> b.queueUrl(url).receiptHandle(message.receiptHandle())); // expect: ack-before-handle
            handle(message.body());
        }
    }
}

// snippet: p8 error kept
class C {
    Response call(String key, Request request) {
        Response response;
        try {
            response = service.process(request);
        } catch (Exception e) {
            response = Response.error(500, e.getMessage());
            idempotencyStore.save(key, response); // expect: error-outcome-kept
        }
        return response;
    }
}

// snippet: p9 square
import com.squareup.square.SquareClient;
class C {
    void pay(CreatePaymentRequest request) {
        squareClient.payments().create(CreatePaymentRequest.builder().sourceId(source).build()); // expect: money-call-without-key
    }
}
