// snippet: feign style client with a header interceptor
class KeyInterceptor implements ClientHttpRequestInterceptor {
    @Override
    public ClientHttpResponse intercept(HttpRequest request, byte[] body, ClientHttpRequestExecution execution) throws IOException {
        request.getHeaders().set("Idempotency-Key", UUID.randomUUID().toString()); // expect: key-per-attempt
        return execution.execute(request, body);
    }
}

// snippet: rabbit consumer with auto ack
class Emails {
    void start(Channel channel) throws IOException {
        DeliverCallback callback = (tag, delivery) -> mailer.deliver(new String(delivery.getBody()));
        channel.basicConsume("emails", true, callback, tag -> { }); // expect: ack-before-handle
    }
}

// snippet: rabbit consumer with its own ack
class Emails {
    void start(Channel channel) throws IOException {
        DeliverCallback callback = (tag, delivery) -> {
            mailer.deliver(new String(delivery.getBody()));
            channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
        };
        channel.basicConsume("emails", false, callback, tag -> { });
    }
}

// snippet: lock released in finally
class Locks {
    <T> T with(String name, Supplier<T> work) {
        String key = "lock:" + name;
        if (!Boolean.TRUE.equals(redis.opsForValue().setIfAbsent(key, "1", Duration.ofSeconds(20)))) {
            throw new Busy();
        }
        try {
            return work.get();
        } finally {
            redis.delete(key); // expect: unlock-without-owner-check
        }
    }
}

// snippet: redisson lock
class Locks {
    <T> T with(String name, Supplier<T> work) {
        RLock lock = redisson.getLock("lock:" + name);
        lock.lock(20, TimeUnit.SECONDS);
        try {
            return work.get();
        } finally {
            if (lock.isHeldByCurrentThread()) {
                lock.unlock();
            }
        }
    }
}
