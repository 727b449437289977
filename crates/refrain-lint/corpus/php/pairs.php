// snippet: key in a for loop
function charge(Client $client, Order $order) {
    for ($attempt = 0; $attempt < 3; $attempt++) {
        try {
            return $client->post('/charges', [
                'headers' => ['Idempotency-Key' => Uuid::uuid4()->toString()], // expect: key-in-retry-loop
                'json' => $order->toArray(),
            ]);
        } catch (ConnectException $e) {
            usleep(100000 * $attempt);
        }
    }
}

// snippet: key before the loop
function charge(Client $client, Order $order) {
    $key = $order->payment_key;
    for ($attempt = 0; $attempt < 3; $attempt++) {
        try {
            return $client->post('/charges', ['headers' => ['Idempotency-Key' => $key], 'json' => $order->toArray()]);
        } catch (ConnectException $e) {
            usleep(100000 * $attempt);
        }
    }
}

// snippet: laravel job
class CapturePayment implements ShouldQueue
{
    use Queueable;
    public $tries = 5;

    public function handle(StripeClient $stripe): void
    {
        $stripe->paymentIntents->capture($this->order->intent, [], [
            'idempotency_key' => (string) Str::uuid(), // expect: key-per-attempt
        ]);
    }
}

// snippet: laravel job with a key from its constructor
class CapturePayment implements ShouldQueue
{
    use Queueable;
    public $tries = 5;

    public function __construct(private Order $order, private string $key) {}

    public function handle(StripeClient $stripe): void
    {
        $stripe->paymentIntents->capture($this->order->intent, [], ['idempotency_key' => $this->key]);
    }
}

// snippet: header builder
class Gateway
{
    private function headers(): array
    {
        return [
            'Authorization' => 'Bearer ' . $this->token,
            'Idempotency-Key' => bin2hex(random_bytes(16)), // expect: key-per-attempt
        ];
    }

    public function refund(string $id): array
    {
        return $this->client->post("/payments/{$id}/refunds", ['headers' => $this->headers()]);
    }
}

// snippet: clock
function payout(Client $client, Account $account, int $amount) {
    $key = $account->id . '-' . microtime(true); // expect: key-from-clock
    return $client->post('/payouts', ['headers' => ['Idempotency-Key' => $key], 'json' => ['amount' => $amount]]);
}

// snippet: stripe with and without
class Checkout
{
    public function pay(Cart $cart)
    {
        return $this->stripe->paymentIntents->create(['amount' => $cart->total, 'currency' => 'eur']); // expect: money-call-without-key
    }

    public function payOnce(Cart $cart)
    {
        return $this->stripe->paymentIntents->create(
            ['amount' => $cart->total, 'currency' => 'eur'],
            ['idempotency_key' => "cart-{$cart->id}"]
        );
    }
}

// snippet: laravel http retry
class Orders
{
    public function create(array $order)
    {
        return Http::retry(3, 200)->post($this->base . '/orders', $order); // expect: retry-post-without-key
    }

    public function createOnce(array $order, string $key)
    {
        return Http::withHeaders(['Idempotency-Key' => $key])->retry(3, 200)->post($this->base . '/orders', $order);
    }
}

// snippet: guzzle retry middleware
class Shop
{
    public function __construct(string $base)
    {
        $stack = HandlerStack::create();
        $stack->push(Middleware::retry(fn ($n, $req, $res, $e) => $n < 3 && ($e !== null || $res->getStatusCode() >= 500)));
        $this->client = new Client(['base_uri' => $base, 'handler' => $stack]);
    }

    public function create(array $order)
    {
        return $this->client->post('/orders', ['json' => $order]); // expect: retry-post-without-key
    }
}

// snippet: check then act
class PaymentController
{
    public function store(Request $request)
    {
        $key = 'idem:' . $request->user()->id . ':' . $request->header('Idempotency-Key');
        $cached = Cache::get($key); // expect: check-then-act
        if ($cached) {
            return response()->json($cached);
        }
        $payment = $this->gateway->charge($request->input('amount'));
        Cache::put($key, $payment, 86400);
        return response()->json($payment, 201);
    }
}

// snippet: cache add is a claim
class PaymentController
{
    public function store(Request $request)
    {
        $key = 'idem:' . $request->user()->id . ':' . $request->header('Idempotency-Key');
        if (!Cache::add($key, 'in_progress', 60)) {
            return response()->json(['error' => 'in flight'], 409);
        }
        $payment = $this->gateway->charge($request->input('amount'));
        Cache::put($key, $payment, 86400);
        return response()->json($payment, 201);
    }
}

// snippet: no_ack
$channel->basic_consume('orders', '', false, true, false, false, $callback); // expect: ack-before-handle

// snippet: ack first
$callback = function ($message) use ($warehouse) {
    $message->ack(); // expect: ack-before-handle
    $warehouse->ship(json_decode($message->getBody(), true));
};

// snippet: ack last
$callback = function ($message) use ($warehouse) {
    $warehouse->ship(json_decode($message->getBody(), true));
    $message->ack();
};

// snippet: dispatch in a transaction
class PlaceOrder
{
    public function __invoke(Cart $cart)
    {
        DB::transaction(function () use ($cart) {
            $order = Order::create(['cart_id' => $cart->id]);
            ShipOrder::dispatch($order); // expect: publish-in-transaction
        });
    }

    public function later(Cart $cart)
    {
        DB::transaction(function () use ($cart) {
            $order = Order::create(['cart_id' => $cart->id]);
            ShipOrder::dispatch($order)->afterCommit();
        });
    }
}

// snippet: unlock
function withLock(Redis $redis, string $id, callable $work) {
    $lockKey = "lock:$id";
    if (!$redis->set($lockKey, '1', ['nx', 'ex' => 30])) {
        throw new Busy();
    }
    try {
        return $work();
    } finally {
        $redis->del($lockKey); // expect: unlock-without-owner-check
    }
}

// snippet: insert
function record(PDO $pdo, string $key, int $amount): void {
    $insert = $pdo->prepare('INSERT INTO payments (idempotency_key, amount) VALUES (?, ?)'); // expect: insert-without-conflict
    $insert->execute([$key, $amount]);
}

function recordOnce(PDO $pdo, string $key, int $amount): void {
    $insert = $pdo->prepare('INSERT IGNORE INTO payments (idempotency_key, amount) VALUES (?, ?)');
    $insert->execute([$key, $amount]);
}

// snippet: key cut
function headersFor(Order $order): array {
    $idempotencyKey = substr($order->customer . '-' . $order->reference, 0, 16); // expect: key-truncated
    return ['Idempotency-Key' => $idempotencyKey];
}
