// snippet: spring controller with a redis template
package shop.payments;

import java.time.Duration;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.web.bind.annotation.*;

@RestController
@RequestMapping("/payments")
class PaymentController {
    private final StringRedisTemplate redis;
    private final PaymentService service;

    PaymentController(StringRedisTemplate redis, PaymentService service) {
        this.redis = redis;
        this.service = service;
    }

    @PostMapping
    ResponseEntity<String> create(@RequestHeader("Idempotency-Key") String key, @AuthenticationPrincipal User user, @RequestBody PaymentRequest request) {
        String name = "idempotency:" + user.getId() + ":" + key;
        String stored = redis.opsForValue().get(name); // expect: check-then-act
        if (stored != null) {
            return ResponseEntity.ok(stored);
        }
        String body = service.pay(request).toJson();
        redis.opsForValue().set(name, body, Duration.ofHours(24));
        return ResponseEntity.status(201).body(body);
    }
}

// snippet: spring controller that claims
package shop.payments;

@RestController
class PaymentController {
    private final StringRedisTemplate redis;
    private final PaymentService service;

    @PostMapping("/payments")
    ResponseEntity<String> create(@RequestHeader("Idempotency-Key") String key, @AuthenticationPrincipal User user, @RequestBody PaymentRequest request) {
        String name = "idempotency:" + user.getId() + ":" + key;
        Boolean claimed = redis.opsForValue().setIfAbsent(name, "in_progress", Duration.ofSeconds(60));
        if (!Boolean.TRUE.equals(claimed)) {
            String stored = redis.opsForValue().get(name);
            return "in_progress".equals(stored) ? ResponseEntity.status(409).build() : ResponseEntity.ok(stored);
        }
        String body = service.pay(request).toJson();
        redis.opsForValue().set(name, body, Duration.ofHours(24));
        return ResponseEntity.status(201).body(body);
    }
}

// snippet: retryable method with rest template
package shop.erp;

import org.springframework.retry.annotation.Backoff;
import org.springframework.retry.annotation.Retryable;
import org.springframework.stereotype.Component;
import org.springframework.web.client.ResourceAccessException;
import org.springframework.web.client.RestTemplate;

@Component
class ErpClient {
    private final RestTemplate rest;

    ErpClient(RestTemplate rest) {
        this.rest = rest;
    }

    @Retryable(retryFor = ResourceAccessException.class, maxAttempts = 4, backoff = @Backoff(delay = 500, multiplier = 2))
    public Created createOrder(OrderDto order) {
        return rest.postForObject("/orders", order, Created.class); // expect: retry-post-without-key
    }

    @Retryable(retryFor = ResourceAccessException.class)
    public OrderDto order(String id) {
        return rest.getForObject("/orders/{id}", OrderDto.class, id);
    }
}

// snippet: retryable method that sends the order's key
package shop.erp;

@Component
class ErpClient {
    private final RestTemplate rest;

    @Retryable(retryFor = ResourceAccessException.class, maxAttempts = 4)
    public Created createOrder(OrderDto order) {
        HttpHeaders headers = new HttpHeaders();
        headers.setContentType(MediaType.APPLICATION_JSON);
        headers.set("Idempotency-Key", order.getRequestId());
        HttpEntity<OrderDto> entity = new HttpEntity<>(order, headers);
        return rest.exchange("/orders", HttpMethod.POST, entity, Created.class).getBody();
    }
}

// snippet: rest template exchange in a retryable method
package shop.erp;

@Component
class ErpClient {
    private final RestTemplate rest;

    @Retryable(retryFor = ResourceAccessException.class, maxAttempts = 4)
    public Created createOrder(OrderDto order) {
        HttpHeaders headers = new HttpHeaders();
        headers.setBearerAuth(token());
        HttpEntity<OrderDto> entity = new HttpEntity<>(order, headers);
        return rest.exchange("/orders", HttpMethod.POST, entity, Created.class).getBody(); // expect: retry-post-without-key
    }
}

// snippet: rest client under resilience4j
package shop.shipping;

import io.github.resilience4j.retry.annotation.Retry;
import org.springframework.web.client.RestClient;

@Service
class ShippingClient {
    private final RestClient client;

    ShippingClient(RestClient.Builder builder) {
        this.client = builder.baseUrl("https://shipping.example").build();
    }

    @Retry(name = "shipping")
    public Label book(Parcel parcel) {
        return client.post() // expect: retry-post-without-key
            .uri("/labels")
            .contentType(MediaType.APPLICATION_JSON)
            .body(parcel)
            .retrieve()
            .body(Label.class);
    }

    @Retry(name = "shipping")
    public Label label(String id) {
        return client.get().uri("/labels/{id}", id).retrieve().body(Label.class);
    }
}

// snippet: web client that retries with the parcel's key
package shop.shipping;

@Service
class ShippingClient {
    private final WebClient client;

    public Mono<Label> book(Parcel parcel) {
        return client.post()
            .uri("/labels")
            .header("Idempotency-Key", parcel.bookingKey())
            .bodyValue(parcel)
            .retrieve()
            .bodyToMono(Label.class)
            .retryWhen(Retry.backoff(3, Duration.ofMillis(200)));
    }
}

// snippet: kafka listener with manual acknowledgement
package shop.orders;

@Component
class OrderListener {
    private final Warehouse warehouse;

    @KafkaListener(topics = "orders", groupId = "warehouse")
    public void onOrder(OrderEvent event, Acknowledgment ack) {
        ack.acknowledge(); // expect: ack-before-handle
        warehouse.reserve(event.orderId(), event.lines());
    }

    @KafkaListener(topics = "cancellations", groupId = "warehouse")
    public void onCancel(OrderEvent event, Acknowledgment ack) {
        warehouse.release(event.orderId());
        ack.acknowledge();
    }
}

// snippet: listener with a processed table in one transaction
package shop.orders;

@Component
class OrderListener {
    private final JdbcTemplate jdbc;
    private final Stock stock;

    @Transactional
    @KafkaListener(topics = "orders")
    public void onOrder(ConsumerRecord<String, OrderEvent> record) {
        int rows = jdbc.update("INSERT INTO processed_messages (message_id) VALUES (?) ON CONFLICT DO NOTHING", record.value().id());
        if (rows == 0) {
            return;
        }
        stock.reserve(record.value().lines());
    }
}

// snippet: service that publishes in its transaction
package shop.orders;

@Service
class OrderService {
    private final OrderRepository orders;
    private final KafkaTemplate<String, OrderPlaced> kafka;

    @Transactional
    public Order place(Cart cart) {
        Order order = orders.save(Order.from(cart));
        kafka.send("orders.placed", order.getId(), new OrderPlaced(order)); // expect: publish-in-transaction
        return order;
    }
}

// snippet: service that writes an outbox and a listener after commit
package shop.orders;

@Service
class OrderService {
    private final OrderRepository orders;
    private final OutboxRepository outbox;
    private final ApplicationEventPublisher events;

    @Transactional
    public Order place(Cart cart) {
        Order order = orders.save(Order.from(cart));
        outbox.save(new OutboxMessage("orders.placed", order.getId(), toJson(order)));
        events.publishEvent(new OrderPlaced(order));
        return order;
    }

    @TransactionalEventListener(phase = TransactionPhase.AFTER_COMMIT)
    public void announce(OrderPlaced placed) {
        rabbit.convertAndSend("shop", "order.placed", placed);
    }
}

// snippet: stripe-java with and without options
package shop.billing;

import com.stripe.model.PaymentIntent;
import com.stripe.model.Refund;
import com.stripe.net.RequestOptions;
import com.stripe.param.PaymentIntentCreateParams;
import com.stripe.param.RefundCreateParams;

class Billing {
    PaymentIntent collect(Invoice invoice) throws StripeException {
        PaymentIntentCreateParams params = PaymentIntentCreateParams.builder()
            .setAmount(invoice.cents())
            .setCurrency("eur")
            .build();
        RequestOptions options = RequestOptions.builder().setIdempotencyKey("collect-" + invoice.id()).build();
        return PaymentIntent.create(params, options);
    }

    Refund giveBack(String intent, long cents) throws StripeException {
        RefundCreateParams params = RefundCreateParams.builder()
            .setPaymentIntent(intent)
            .setAmount(cents)
            .build();
        return Refund.create(params); // expect: money-call-without-key
    }
}

// snippet: clock and random in keys
package shop.wallet;

class WalletClient {
    private final HttpClient http = HttpClient.newHttpClient();

    HttpResponse<String> withdraw(String wallet, long cents) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(base + "/withdrawals"))
            .header("Content-Type", "application/json")
            .header("Idempotency-Key", wallet + "-" + System.currentTimeMillis()) // expect: key-from-clock
            .POST(HttpRequest.BodyPublishers.ofString(body(wallet, cents)))
            .build();
        return http.send(request, HttpResponse.BodyHandlers.ofString());
    }
}

// snippet: jdbc insert of a key with a schema beside it
package shop.store;

class KeyStore {
    void remember(Connection connection, String key, String response) throws SQLException {
        try (PreparedStatement insert = connection.prepareStatement(
                "INSERT INTO request_log (idempotency_key, response) VALUES (?, ?)")) { // expect: insert-without-conflict
            insert.setString(1, key);
            insert.setString(2, response);
            insert.executeUpdate();
        }
    }
}
// file: schema.sql
CREATE TABLE request_log (
    id bigserial PRIMARY KEY,
    idempotency_key text NOT NULL,
    response text
);

// snippet: jdbc insert of a key with a unique index
package shop.store;

class KeyStore {
    void remember(Connection connection, String key, String response) throws SQLException {
        try (PreparedStatement insert = connection.prepareStatement(
                "INSERT INTO request_log (idempotency_key, response) VALUES (?, ?)")) {
            insert.setString(1, key);
            insert.setString(2, response);
            insert.executeUpdate();
        }
    }
}
// file: schema.sql
CREATE TABLE request_log (
    id bigserial PRIMARY KEY,
    idempotency_key text NOT NULL,
    response text
);
CREATE UNIQUE INDEX request_log_key ON request_log (idempotency_key);
