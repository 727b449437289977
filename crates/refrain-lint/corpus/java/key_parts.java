// snippet: builder of headers
class Client {
    private HttpHeaders buildHeaders() {
        HttpHeaders headers = new HttpHeaders();
        headers.setBearerAuth(token);
        headers.add("Idempotency-Key", UUID.randomUUID().toString()); // expect: key-per-attempt
        return headers;
    }
}

// snippet: jdk client to charges
class Charges {
    HttpResponse<String> charge(String body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(base + "/charges")).header("Authorization", token).POST(BodyPublishers.ofString(body)).build(); // expect: money-call-without-key
        return client.send(request, BodyHandlers.ofString());
    }
}

// snippet: spring retry and ttl
class Settlements {
    @Retryable(maxAttempts = 10, backoff = @Backoff(delay = 600000))
    void settle(String eventId) {
        redis.opsForValue().setIfAbsent("processed:" + eventId, "in_progress", Duration.ofMinutes(5)); // expect: ttl-shorter-than-retries
        ledger.settle(eventId);
    }
}
