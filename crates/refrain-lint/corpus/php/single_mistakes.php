// snippet: square payment with a new client
use Square\SquareClient;

class Checkout
{
    public function refund(array $payment)
    {
        return Http::withToken($this->token)->post('https://connect.example.com/v2/refunds', [ // expect: money-call-without-key
            'payment_id' => $payment['id'],
            'amount' => $payment['amount'],
        ]);
    }
}

// snippet: pdo lookup
function handle(PDO $pdo, int $tenantId, string $idempotencyKey, array $body): array {
    $select = $pdo->prepare('SELECT response FROM idempotency_keys WHERE tenant_id = ? AND idempotency_key = ?');
    $select->execute([$tenantId, $idempotencyKey]); // expect: check-then-act
    if ($row = $select->fetch()) {
        return json_decode($row['response'], true);
    }
    $response = createOrder($body);
    $insert = $pdo->prepare('INSERT INTO idempotency_keys (tenant_id, idempotency_key, response) VALUES (?, ?, ?)'); // expect: insert-without-conflict
    $insert->execute([$tenantId, $idempotencyKey, json_encode($response)]);
    return $response;
}

// snippet: microtime in the key
class PaymentGateway
{
    public function pay(Order $order): array
    {
        $response = $this->client->request('POST', '/payments', [
            'headers' => ['Idempotency-Key' => md5($order->id . microtime(true))], // expect: key-from-clock
            'json' => ['amount' => $order->total],
        ]);
        return json_decode($response->getBody(), true);
    }
}

// snippet: sqs deletes first
foreach ($result->get('Messages') as $message) {
    $sqs->deleteMessage(['QueueUrl' => $url, 'ReceiptHandle' => $message['ReceiptHandle']]); // expect: ack-before-handle
    processOrder(json_decode($message['Body'], true));
}

// snippet: predis lock
function withLock($redis, string $name, callable $work): void {
    if (!$redis->set("lock:$name", 1, 'EX', 30, 'NX')) {
        return;
    }
    try {
        $work();
    } finally {
        $redis->del("lock:$name"); // expect: unlock-without-owner-check
    }
}

// snippet: loop with a new key
function submit(Client $client, array $payout): void {
    $tries = 0;
    do {
        try {
            $client->post('/payouts', ['json' => $payout, 'headers' => ['Idempotency-Key' => bin2hex(random_bytes(16))]]); // expect: key-in-retry-loop
            return;
        } catch (TransferException $e) {
            $tries++;
        }
    } while ($tries < 3);
}

// snippet: laravel lock knows its owner
function rebuild(): void {
    $lock = Cache::lock('report', 30);
    if (!$lock->get()) {
        return;
    }
    try {
        buildReport();
    } finally {
        $lock->release();
    }
}

// snippet: stripe with the order's key
function charge(\Stripe\StripeClient $stripe, Order $order) {
    return $stripe->paymentIntents->create(
        ['amount' => $order->total, 'currency' => 'eur'],
        ['idempotency_key' => $order->payment_key]
    );
}

// snippet: acknowledged at the end
$callback = function ($msg) {
    processOrder(json_decode($msg->body, true));
    $msg->ack();
};
$channel->basic_consume('orders', '', false, false, false, false, $callback);
