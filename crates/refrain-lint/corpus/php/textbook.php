// snippet: key-in-retry-loop
function pay(array $order) {
    for ($attempt = 0; $attempt < 3; $attempt++) {
        try {
            return $this->client->post('https://api.example.com/payments', [
                'json' => $order,
                'headers' => ['Idempotency-Key' => Uuid::uuid4()->toString()], // expect: key-in-retry-loop
            ]);
        } catch (ConnectException $e) {
            sleep(1);
        }
    }
}

// snippet: key-per-attempt, laravel job
class ChargeOrder implements ShouldQueue
{
    public $tries = 5;

    public function handle(StripeClient $stripe): void
    {
        $key = (string) Str::uuid(); // expect: key-per-attempt
        $stripe->charges->create(['amount' => $this->order->total], ['idempotency_key' => $key]);
    }
}

// snippet: key-per-attempt, attempts
class ChargeOrder implements ShouldQueue
{
    public function handle(StripeClient $stripe): void
    {
        $stripe->charges->create(
            ['amount' => $this->order->total],
            ['idempotency_key' => $this->order->id . '-' . $this->attempts()] // expect: key-per-attempt
        );
    }
}

// snippet: key-from-clock
function pay(Client $client, array $order) {
    $idempotencyKey = $order['id'] . '-' . time(); // expect: key-from-clock
    return $client->post('https://api.example.com/payments', ['json' => $order, 'headers' => ['Idempotency-Key' => $idempotencyKey]]);
}

// snippet: key-truncated
function makeKey(string $customerId, string $cartId): string {
    $idempotencyKey = substr(hash('sha256', $customerId . '-' . $cartId), 0, 8); // expect: key-truncated
    return $idempotencyKey;
}

// snippet: unscoped-key
class OrderController
{
    public function store(Request $request)
    {
        $key = $request->header('Idempotency-Key');
        $cached = Cache::get("idempotency:{$key}"); // expect: unscoped-key
        if ($cached) {
            return response()->json($cached);
        }
        abort(409);
    }
}

// snippet: money-call-without-key
$stripe = new \Stripe\StripeClient($secret);

function charge($stripe, int $amount) {
    return $stripe->paymentIntents->create(['amount' => $amount, 'currency' => 'eur']); // expect: money-call-without-key
}

// snippet: money-call-without-key, generic
function pay(Client $client, array $order) {
    return $client->post('https://psp.example.com/v1/payments', ['json' => ['amount' => $order['total']]]); // expect: money-call-without-key
}

// snippet: retry-post-without-key
function createOrder(array $order) {
    return Http::retry(3, 100)->post('https://api.example.com/orders', $order); // expect: retry-post-without-key
}

// snippet: retry-post-without-key, loop
function createOrder(Client $client, array $order) {
    $attempts = 0;
    while ($attempts < 3) {
        try {
            return $client->post('https://api.example.com/orders', ['json' => $order]); // expect: retry-post-without-key
        } catch (RequestException $e) {
            $attempts++;
        }
    }
}

// snippet: resend-on-closed-connection
function send(Client $client, array $order) {
    try {
        return $client->post('https://api.example.com/orders', ['json' => $order]);
    } catch (ConnectException $e) {
        if (str_contains($e->getMessage(), 'cURL error 52')) { // expect: resend-on-closed-connection
            return $client->post('https://api.example.com/orders', ['json' => $order]);
        }
        throw $e;
    }
}

// snippet: check-then-act
class OrderController
{
    public function store(Request $request)
    {
        $key = 'idempotency:' . $request->user()->id . ':' . $request->header('Idempotency-Key');
        if (Cache::has($key)) { // expect: check-then-act
            return Cache::get($key);
        }
        $order = $this->orders->place($request->all());
        Cache::put($key, $order, 86400);
        return $order;
    }
}

// snippet: mark-before-handle
class EventHandler
{
    public function handleEvent(Event $event): void
    {
        if (ProcessedEvent::where('event_id', $event->id)->exists()) {
            return;
        }
        ProcessedEvent::create(['event_id' => $event->id]); // expect: mark-before-handle
        $this->shipping->ship($event->orderId);
    }
}

// snippet: ack-before-handle
$callback = function ($msg) {
    $msg->ack(); // expect: ack-before-handle
    processOrder(json_decode($msg->body));
};
$channel->basic_consume('orders', '', false, false, false, false, $callback);

// snippet: ack-before-handle, automatic
$channel->basic_consume('orders', '', false, true, false, false, $callback); // expect: ack-before-handle

// snippet: publish-in-transaction
function createOrder(array $data) {
    DB::transaction(function () use ($data) {
        $order = Order::create($data);
        ShipOrder::dispatch($order); // expect: publish-in-transaction
    });
}

// snippet: error-outcome-kept
function handle(string $key, array $request) {
    try {
        $response = charge($request);
        Cache::put("idempotency:$key", ['status' => 200, 'body' => $response], 86400);
        return $response;
    } catch (\Exception $e) {
        Cache::put("idempotency:$key", ['status' => 500, 'error' => $e->getMessage()], 86400); // expect: error-outcome-kept
        throw $e;
    }
}

// snippet: error-outcome-dropped
function pay(string $tenant, string $idempotencyKey, Order $order) {
    $key = "idem:$tenant:$idempotencyKey";
    if (!Cache::add($key, 'in_progress', 60)) {
        throw new ConflictException();
    }
    try {
        $this->gateway->charge($order);
    } catch (\Exception $e) {
        Cache::forget($key); // expect: error-outcome-dropped
        throw $e;
    }
}

// snippet: unlock-without-owner-check
function run(\Redis $redis) {
    if (!$redis->set('lock:report', '1', ['nx', 'ex' => 30])) {
        return;
    }
    try {
        buildReport();
    } finally {
        $redis->del('lock:report'); // expect: unlock-without-owner-check
    }
}

// snippet: insert-without-conflict
function save(PDO $pdo, string $key, int $amount) {
    $stmt = $pdo->prepare('INSERT INTO payments (idempotency_key, amount) VALUES (?, ?)'); // expect: insert-without-conflict
    $stmt->execute([$key, $amount]);
}

// snippet: ttl-shorter-than-retries
const IDEMPOTENCY_TTL_SECONDS = 60; // expect: ttl-shorter-than-retries
const MAX_RETRIES = 10;
const RETRY_DELAY_SECONDS = 60;
