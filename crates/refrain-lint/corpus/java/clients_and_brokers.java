// snippet: while loop with a fresh key
class Payouts {
    void send(Payout payout) throws InterruptedException {
        int tries = 0;
        while (tries < 3) {
            HttpHeaders headers = new HttpHeaders();
            headers.add("Idempotency-Key", UUID.randomUUID().toString()); // expect: key-in-retry-loop
            try {
                rest.exchange(PAYOUTS, HttpMethod.POST, new HttpEntity<>(payout, headers), Void.class);
                return;
            } catch (ResourceAccessException e) {
                tries++;
            }
        }
    }
}

// snippet: quartz job
class SettleJob implements Job {
    @Override
    public void execute(JobExecutionContext context) {
        String idempotencyKey = UUID.randomUUID().toString(); // expect: key-per-attempt
        bank.post("/settlements", body, Map.of("Idempotency-Key", idempotencyKey));
    }
}

// snippet: temporal activity
class ChargeActivityImpl implements ChargeActivity {
    @ActivityMethod
    public String charge(Order order) throws StripeException {
        RequestOptions options = RequestOptions.builder().setIdempotencyKey(order.getId() + Instant.now().toEpochMilli()).build(); // expect: key-from-clock
        return com.stripe.model.Charge.create(order.params(), options).getId();
    }
}

// snippet: substring
class Keys {
    String idempotencyKey(String customer, String reference) {
        return (customer + reference).substring(0, 16); // expect: key-truncated
    }
}

// snippet: unscoped in a filter
class IdempotencyFilter extends OncePerRequestFilter {
    protected void doFilterInternal(HttpServletRequest request, HttpServletResponse response, FilterChain chain) throws IOException {
        String key = request.getHeader("Idempotency-Key");
        String cached = redis.opsForValue().get("idem:" + key); // expect: unscoped-key
        if (cached != null) {
            response.getWriter().write(cached);
            return;
        }
        response.setStatus(409);
    }
}

// snippet: redisson lock
class Nightly {
    void run() {
        RLock lock = redisson.getLock("nightly");
        if (!lock.tryLock()) {
            return;
        }
        try {
            rebuild();
        } finally {
            lock.unlock();
        }
    }
}

// snippet: claim dropped
class Gateway {
    Receipt pay(String merchant, String idempotencyKey, Payment payment) {
        String key = "idem:" + merchant + ":" + idempotencyKey;
        if (!claims.setIfAbsent(key, "in_progress", Duration.ofMinutes(2))) {
            throw new Conflict();
        }
        try {
            return psp.charge(payment);
        } catch (SocketTimeoutException e) {
            claims.delete(key); // expect: error-outcome-dropped
            throw new Unavailable(e);
        }
    }
}

// snippet: paypal with its header
class PayPal {
    String capture(String orderId, String requestId) {
        return rest.post().uri("/v2/checkout/orders/{id}/capture", orderId).header("PayPal-Request-Id", requestId).retrieve().body(String.class);
    }
}
