// snippet: jpa lookup
@Service
class PaymentService {
    public Payment create(String merchantId, String idempotencyKey, PaymentRequest request) {
        Optional<Payment> existing = payments.findByMerchantIdAndIdempotencyKey(merchantId, idempotencyKey); // expect: check-then-act
        if (existing.isPresent()) {
            return existing.get();
        }
        Receipt receipt = gateway.pay(request);
        return payments.save(new Payment(merchantId, idempotencyKey, receipt));
    }
}

// snippet: jdbc insert
class RequestLog {
    void record(Connection connection, String key, String body) throws SQLException {
        PreparedStatement statement = connection.prepareStatement(
            "INSERT INTO idempotency_records (idempotency_key, response) VALUES (?, ?)"); // expect: insert-without-conflict
        statement.setString(1, key);
        statement.setString(2, body);
        statement.executeUpdate();
    }
}

// snippet: adyen without options
import com.adyen.service.checkout.PaymentsApi;

class Checkout {
    PaymentResponse pay(PaymentRequest request) throws Exception {
        PaymentsApi paymentsApi = new PaymentsApi(client);
        return paymentsApi.payments(request); // expect: money-call-without-key
    }
}

// snippet: no response, sent again
class Erp {
    CloseableHttpResponse send(HttpPost post) throws IOException {
        try {
            return httpClient.execute(post);
        } catch (NoHttpResponseException e) { // expect: resend-on-closed-connection
            return httpClient.execute(post);
        }
    }
}

// snippet: jedis lock
class Locks {
    void withLock(Jedis jedis, String name, Runnable work) {
        String lockKey = "lock:" + name;
        if (jedis.set(lockKey, "1", SetParams.setParams().nx().ex(30)) == null) {
            return;
        }
        try {
            work.run();
        } finally {
            jedis.del(lockKey); // expect: unlock-without-owner-check
        }
    }
}

// snippet: retry template
class Orders {
    Order create(Order order) {
        return retryTemplate.execute(context ->
            restTemplate.postForObject("https://erp.example.com/orders", order, Order.class)); // expect: retry-post-without-key
    }
}

// snippet: stripe with options
import com.stripe.model.PaymentIntent;

class Payments {
    PaymentIntent pay(Order order) throws StripeException {
        RequestOptions options = RequestOptions.builder().setIdempotencyKey(order.getPaymentKey()).build();
        return PaymentIntent.create(order.toParams(), options);
    }
}

// snippet: claim with a lease
class Idempotency {
    Response handle(String tenant, String idempotencyKey, Request request) {
        String key = "idempotency:" + tenant + ":" + idempotencyKey;
        Boolean claimed = redis.opsForValue().setIfAbsent(key, "in_progress", Duration.ofSeconds(60));
        if (!Boolean.TRUE.equals(claimed)) {
            return replayOrConflict(key);
        }
        Response response = service.process(request);
        redis.opsForValue().set(key, response.toJson(), Duration.ofDays(1));
        return response;
    }
}

// snippet: acknowledged when done
class Consumer {
    @RabbitListener(queues = "orders", ackMode = "MANUAL")
    public void onMessage(Order order, Channel channel, @Header(AmqpHeaders.DELIVERY_TAG) long tag) throws IOException {
        orderService.ship(order);
        channel.basicAck(tag, false);
    }
}
