// snippet: resilience4j decorators by hand
class Crm {
    Created create(Contact contact) {
        Retry retry = Retry.ofDefaults("crm");
        Supplier<Created> call = Retry.decorateSupplier(retry, () -> rest.postForObject("/contacts", contact, Created.class)); // expect: retry-post-without-key
        return call.get();
    }
}

// snippet: okhttp to refunds
class Refunds {
    Response refund(String charge, long cents) throws IOException {
        RequestBody body = RequestBody.create(json(charge, cents), JSON);
        Request request = new Request.Builder()
            .url(base + "/v1/refunds")
            .post(body) // expect: money-call-without-key
            .build();
        return http.newCall(request).execute();
    }

    Response refundOnce(String charge, long cents, String key) throws IOException {
        RequestBody body = RequestBody.create(json(charge, cents), JSON);
        Request request = new Request.Builder()
            .url(base + "/v1/refunds")
            .header("Idempotency-Key", key)
            .post(body)
            .build();
        return http.newCall(request).execute();
    }
}

// snippet: kafka poll loop that commits first
class Meter {
    void run(KafkaConsumer<String, Usage> consumer) {
        while (running) {
            ConsumerRecords<String, Usage> records = consumer.poll(Duration.ofSeconds(1));
            consumer.commitSync(); // expect: ack-before-handle
            for (ConsumerRecord<String, Usage> record : records) {
                store.record(record.value());
            }
        }
    }
}

// snippet: kafka poll loop that commits last
class Meter {
    void run(KafkaConsumer<String, Usage> consumer) {
        while (running) {
            ConsumerRecords<String, Usage> records = consumer.poll(Duration.ofSeconds(1));
            for (ConsumerRecord<String, Usage> record : records) {
                store.record(record.value());
            }
            consumer.commitSync();
        }
    }
}
