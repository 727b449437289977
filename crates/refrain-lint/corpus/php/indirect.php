// snippet: guzzle middleware retries posts
$stack = HandlerStack::create();
$stack->push(Middleware::retry(fn ($retries, $request, $response) => $retries < 3 && (!$response || $response->getStatusCode() >= 500)));
$client = new Client(['handler' => $stack]);

function createOrder(Client $client, array $order) {
    return $client->post('https://erp.example.com/orders', ['json' => $order]); // expect: retry-post-without-key
}

// snippet: redis marker in a consumer
class PaymentConsumer
{
    public function consume(AMQPMessage $message): void
    {
        $id = $message->get('message_id');
        if (!$this->redis->set("processed:$id", 1, ['nx', 'ex' => 2592000])) { // expect: mark-before-handle
            return;
        }
        $this->ledger->book(json_decode($message->body, true));
    }
}

// snippet: symfony messenger in a transaction
class OrderService
{
    public function place(Order $order): void
    {
        $this->em->wrapInTransaction(function () use ($order) {
            $this->em->persist($order);
            $this->bus->dispatch(new OrderPlaced($order->getId())); // expect: publish-in-transaction
        });
    }
}

// snippet: server variable as the key
function lookup(Redis $redis): ?string {
    $key = $_SERVER['HTTP_IDEMPOTENCY_KEY'];
    return $redis->get("idempotency:$key") ?: null; // expect: unscoped-key
}

// snippet: short hash
function idempotencyKey(int $customer, string $reference): string {
    return substr(sha1($customer . ':' . $reference), 0, 12); // expect: key-truncated
}

// snippet: laravel job with its own retries and a short mark
class SettleInvoice implements ShouldQueue
{
    public $tries = 10;
    public $backoff = 3600;

    public function handle(): void
    {
        $this->ledger->settle($this->invoiceId);
        Cache::put("processed:{$this->eventId}", true, 600); // expect: ttl-shorter-than-retries
    }
}

// snippet: claim removed on failure
function transfer(Redis $redis, Bank $bank, string $account, string $idempotencyKey, array $body) {
    $key = "idem:$account:$idempotencyKey";
    if (!$redis->set($key, 'in_progress', ['nx', 'ex' => 60])) {
        throw new ConflictException();
    }
    try {
        return $bank->transfer($body);
    } catch (\Throwable $e) {
        $redis->del($key); // expect: error-outcome-dropped
        throw $e;
    }
}

// snippet: stripe without options
\Stripe\Stripe::setApiKey($key);

function refund(string $charge) {
    return \Stripe\Refund::create(['charge' => $charge]); // expect: money-call-without-key
}

// snippet: dispatched after the commit
function place(array $data): void {
    DB::transaction(function () use ($data) {
        $order = Order::create($data);
        ShipOrder::dispatch($order)->afterCommit();
    });
}
