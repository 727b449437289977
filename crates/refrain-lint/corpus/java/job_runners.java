// snippet: resilience4j
class Payments {
    PaymentResponse pay(PaymentRequest request) {
        Supplier<PaymentResponse> call = Retry.decorateSupplier(retry, () -> {
            RequestOptions options = new RequestOptions().idempotencyKey(UUID.randomUUID().toString()); // expect: key-per-attempt
            return paymentsApi.payments(request, options);
        });
        return call.get();
    }
}

// snippet: adyen without options
import com.adyen.service.checkout.PaymentsApi;

class Payments {
    PaymentResponse pay(PaymentRequest request) throws ApiException {
        return paymentsApi.payments(request); // expect: money-call-without-key
    }
}

// snippet: stored in the entity
class Refunds {
    Refund refund(Payment payment) throws StripeException {
        if (payment.getRefundKey() == null) {
            payment.setRefundKey(UUID.randomUUID().toString());
            payments.save(payment);
        }
        RequestOptions options = RequestOptions.builder().setIdempotencyKey(payment.getRefundKey()).build();
        return Refund.create(params(payment), options);
    }
}

// snippet: rabbit template in a transaction
@Service
@Transactional
class Orders {
    public void place(Cart cart) {
        repository.save(new Order(cart));
        rabbitTemplate.convertAndSend("orders", "placed", cart.id()); // expect: publish-in-transaction
    }
}

// snippet: application event
class Orders {
    @Transactional
    public void place(Cart cart) {
        Order order = repository.save(new Order(cart));
        eventPublisher.publishEvent(new OrderPlaced(order));
    }
}

// snippet: repository check
class Handler {
    public Payment create(String merchantId, String idempotencyKey, PaymentRequest request) {
        Optional<Payment> existing = payments.findByMerchantIdAndIdempotencyKey(merchantId, idempotencyKey); // expect: check-then-act
        if (existing.isPresent()) {
            return existing.get();
        }
        Receipt receipt = acquirer.authorize(request);
        return payments.save(new Payment(merchantId, idempotencyKey, receipt));
    }
}

// snippet: repository with the violation caught
class Handler {
    public Payment create(String merchantId, String idempotencyKey, PaymentRequest request) {
        try {
            return payments.saveAndFlush(new Payment(merchantId, idempotencyKey, request));
        } catch (DataIntegrityViolationException duplicate) {
            return payments.findByMerchantIdAndIdempotencyKey(merchantId, idempotencyKey).orElseThrow();
        }
    }
}

// snippet: no response from the server
class Gateway {
    CloseableHttpResponse submit(HttpPost post) throws IOException {
        try {
            return client.execute(post);
        } catch (NoHttpResponseException e) { // expect: resend-on-closed-connection
            return client.execute(post);
        }
    }
}

// snippet: jdbc delete of a lock
class Locks {
    void release(String name) {
        jdbc.update("DELETE FROM locks WHERE name = ?", name); // expect: unlock-without-owner-check
    }

    void releaseMine(String name, String owner) {
        jdbc.update("DELETE FROM locks WHERE name = ? AND owner = ?", name, owner);
    }
}

// snippet: loop over invoices
class Billing {
    void billAll(List<Invoice> invoices) throws StripeException {
        for (Invoice invoice : invoices) {
            RequestOptions options = RequestOptions.builder().setIdempotencyKey("invoice-" + invoice.id()).build();
            Charge.create(params(invoice), options);
        }
    }
}
