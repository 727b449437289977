// snippet: do while
function submit(HttpClientInterface $client, array $payment): array {
    $tries = 0;
    do {
        try {
            return $client->request('POST', 'https://bank.example/transfers', [
                'headers' => ['Idempotency-Key' => uniqid('pay', true)], // expect: key-in-retry-loop
                'json' => $payment,
            ])->toArray();
        } catch (TransportException $e) {
            sleep(1);
        }
    } while (++$tries < 3);
    throw new GaveUp();
}

// snippet: static stripe call
\Stripe\Stripe::setApiKey($key);

function refund(string $charge): \Stripe\Refund {
    return \Stripe\Refund::create(['charge' => $charge]); // expect: money-call-without-key
}

function refundOnce(string $charge, string $id): \Stripe\Refund {
    return \Stripe\Refund::create(['charge' => $charge], ['idempotency_key' => 'refund-' . $id]);
}

// snippet: options through a property
class Gateway
{
    public function pay(Payment $payment): array
    {
        $options = $this->options();
        $options['headers']['Idempotency-Key'] = $payment->key;
        return $this->client->post('/payments', $options);
    }
}

// snippet: messenger handler marks first
class OrderPlacedHandler
{
    public function __invoke(OrderPlaced $event): void
    {
        if (!$this->redis->set('processed:' . $event->id, 1, ['nx', 'ex' => 604800])) { // expect: mark-before-handle
            return;
        }
        $this->warehouse->pick($event->lines);
    }
}

// snippet: pdo transaction with a publish
function place(PDO $pdo, AMQPChannel $channel, array $order): void {
    $pdo->beginTransaction();
    $pdo->prepare('INSERT INTO orders (id) VALUES (?)')->execute([$order['id']]);
    $channel->basic_publish(new AMQPMessage(json_encode($order)), 'orders'); // expect: publish-in-transaction
    $pdo->commit();
}

// snippet: eloquent check then create
class OrderController
{
    public function store(Request $request)
    {
        $existing = Order::where('idempotency_key', $request->key)->where('tenant_id', $request->tenant)->first(); // expect: check-then-act
        if ($existing) {
            return $existing;
        }
        $receipt = $this->gateway->authorize($request->amount);
        return Order::create(['idempotency_key' => $request->key, 'tenant_id' => $request->tenant, 'receipt' => $receipt]);
    }
}

// snippet: eloquent first or create
class OrderController
{
    public function store(Request $request)
    {
        $order = Order::firstOrCreate(['idempotency_key' => $request->key, 'tenant_id' => $request->tenant]);
        return $order;
    }
}

// snippet: forced release
function settle(string $id): void {
    $lock = Cache::lock("settle:$id", 10);
    if ($lock->get()) {
        run($id);
        $lock->forceRelease(); // expect: unlock-without-owner-check
    }
}

// snippet: today in the key
function headers(Subscription $subscription): array {
    return ['Idempotency-Key' => "renew-{$subscription->id}-{$subscription->period}"];
}
