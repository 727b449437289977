// snippet: laravel middleware without a scope
class Idempotent
{
    public function handle(Request $request, Closure $next)
    {
        $key = $request->header('Idempotency-Key');
        if (! Cache::add("idempotency:{$key}", 'pending', 60)) { // expect: unscoped-key
            abort(409);
        }
        return $next($request);
    }
}

// snippet: laravel middleware with the user's scope
class Idempotent
{
    public function handle(Request $request, Closure $next)
    {
        $key = sprintf('idempotency:%s:%s', $request->user()->getKey(), $request->header('Idempotency-Key'));
        if (! Cache::add($key, 'pending', 60)) {
            abort(409);
        }
        return $next($request);
    }
}

// snippet: messenger handler that mints
#[AsMessageHandler]
final class CapturePaymentHandler
{
    public function __construct(private StripeClient $stripe)
    {
    }

    public function __invoke(CapturePayment $message): void
    {
        $this->stripe->paymentIntents->capture($message->intent, [], [
            'idempotency_key' => Uuid::v4()->toRfc4122(), // expect: key-per-attempt
        ]);
    }
}

// snippet: laravel http with retry and a key
class ErpClient
{
    public function create(Order $order): array
    {
        return Http::retry(3, 200)
            ->withHeader('Idempotency-Key', "order-{$order->id}")
            ->post('https://erp.example/orders', $order->toArray())
            ->json();
    }

    public function createBlindly(Order $order): array
    {
        return Http::retry(3, 200)
            ->acceptJson()
            ->post('https://erp.example/orders', $order->toArray()) // expect: retry-post-without-key
            ->json();
    }
}

// snippet: eloquent look and create
class OrderService
{
    public function create(int $userId, string $idempotencyKey, array $data): Order
    {
        $existing = Order::where('user_id', $userId)->where('idempotency_key', $idempotencyKey)->first(); // expect: check-then-act
        if ($existing) {
            return $existing;
        }
        $receipt = $this->gateway->charge($data['card'], $data['total']);
        return Order::create($data + ['user_id' => $userId, 'idempotency_key' => $idempotencyKey, 'receipt' => $receipt->id]);
    }
}

// snippet: pdo with an outbox
class Orders
{
    public function place(array $order): void
    {
        $this->pdo->beginTransaction();
        $this->pdo->prepare('INSERT INTO orders (id, total) VALUES (?, ?)')->execute([$order['id'], $order['total']]);
        $this->publish('order.placed', $order);
        $this->pdo->commit();
    }

    private function publish(string $topic, array $payload): void
    {
        $this->pdo->prepare('INSERT INTO outbox (topic, payload) VALUES (?, ?)')->execute([$topic, json_encode($payload)]);
    }
}
