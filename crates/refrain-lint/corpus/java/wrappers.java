// snippet: kafka listener with a redis mark before the work
@Component
class ShipmentListener {
    private final StringRedisTemplate redis;
    private final Carrier carrier;

    @KafkaListener(topics = "shipments", groupId = "carrier")
    public void onMessage(ShipmentEvent event) {
        Boolean first = redis.opsForValue().setIfAbsent("processed:" + event.id(), "1", Duration.ofDays(7)); // expect: mark-before-handle
        if (Boolean.FALSE.equals(first)) {
            return;
        }
        carrier.book(event.parcel());
    }
}

// snippet: jpa with a unique violation caught
@Service
class Payments {
    private final PaymentRepository repository;
    private final Acquirer acquirer;

    public Payment create(String merchant, String idempotencyKey, PaymentRequest request) {
        Payment payment = new Payment(merchant, idempotencyKey, State.BEGUN);
        try {
            repository.saveAndFlush(payment);
        } catch (DataIntegrityViolationException duplicate) {
            return repository.findByMerchantAndIdempotencyKey(merchant, idempotencyKey).orElseThrow();
        }
        payment.authorised(acquirer.authorise(request));
        return repository.save(payment);
    }
}

// snippet: loop that mints in a helper
class TransferClient {
    private final RestTemplate rest = new RestTemplate();

    Transfer send(TransferRequest request) {
        int tries = 0;
        while (true) {
            try {
                return rest.postForObject(url, entity(request), Transfer.class);
            } catch (ResourceAccessException e) {
                if (++tries == 3) {
                    throw e;
                }
            }
        }
    }

    private HttpEntity<TransferRequest> entity(TransferRequest request) {
        HttpHeaders headers = new HttpHeaders();
        headers.set("Idempotency-Key", UUID.randomUUID().toString()); // expect: key-per-attempt
        return new HttpEntity<>(request, headers);
    }
}

// snippet: sqs listener with a manual acknowledgement at the end
class InvoiceListener {
    @SqsListener(value = "invoices", acknowledgementMode = "MANUAL")
    public void listen(Invoice invoice, Acknowledgement acknowledgement) {
        if (importer.knows(invoice.number())) {
            acknowledgement.acknowledge();
            return;
        }
        importer.importInvoice(invoice);
        acknowledgement.acknowledge();
    }
}

// snippet: substring of a reference
class Keys {
    static RequestOptions options(String customer, String reference) {
        String idempotencyKey = (customer + "-" + reference).substring(0, 20); // expect: key-truncated
        return RequestOptions.builder().setIdempotencyKey(idempotencyKey).build();
    }
}

// snippet: transaction template and a rabbit template behind it
class Orders {
    public Order place(Cart cart) {
        Order order = transactions.execute(status -> repository.save(Order.from(cart)));
        rabbit.convertAndSend("shop", "order.placed", order.toMessage());
        return order;
    }

    public Order placeInside(Cart cart) {
        return transactionTemplate.execute(status -> {
            Order order = repository.save(Order.from(cart));
            rabbit.convertAndSend("shop", "order.placed", order.toMessage()); // expect: publish-in-transaction
            return order;
        });
    }
}
