// snippet: p1 sync loop
while (true) {
    $message = $queue->receive();
    $queue->acknowledge($message); // expect: ack-before-handle
    handleOrder($message->getBody());
}

// snippet: p2 top-level check
$key = "idempotency:$tenant:$idempotencyKey";
if ($redis->exists($key)) { // expect: check-then-act
    echo $redis->get($key);
    exit;
}
$result = chargeCard($order);
$redis->set($key, json_encode($result));

// snippet: p3 callback marks
$callback = function (AMQPMessage $msg) use ($redis) {
    $id = $msg->get('message_id');
    if ($redis->get("processed:$id")) {
        $msg->ack();
        return;
    }
    $redis->set("processed:$id", 1); // expect: mark-before-handle
    shipOrder($msg->body);
    $msg->ack();
};

// snippet: p4 pdo tx
function create(PDO $pdo, array $order): void {
    $pdo->beginTransaction();
    $pdo->prepare('INSERT INTO orders (id) VALUES (?)')->execute([$order['id']]);
    $channel->basic_publish(new AMQPMessage(json_encode($order)), 'orders'); // expect: publish-in-transaction
    $pdo->commit();
}

// snippet: p5 curl loop
function post(array $data) {
    for ($i = 0; $i < 3; $i++) {
        $ch = curl_init('https://erp.example.com/orders');
        curl_setopt($ch, CURLOPT_POST, true); // expect: retry-post-without-key
        curl_setopt($ch, CURLOPT_POSTFIELDS, json_encode($data));
        $result = curl_exec($ch);
        if ($result !== false) {
            return $result;
        }
        sleep(1);
    }
}

// snippet: p6 adyen
use Adyen\Service\Checkout\PaymentsApi;
function pay($client, $request) {
    $service = new PaymentsApi($client);
    return $service->payments($request); // expect: money-call-without-key
}

// snippet: p7 paypal
use PayPalCheckoutSdk\Orders\OrdersCaptureRequest;
function capture($client, $orderId) {
    $request = new OrdersCaptureRequest($orderId); // expect: money-call-without-key
    return $client->execute($request);
}

// snippet: p8 symfony message handler
#[AsMessageHandler]
class ChargeHandler
{
    public function __invoke(Charge $charge): void
    {
        $this->stripe->charges->create(['amount' => $charge->amount], ['idempotency_key' => Uuid::v4()->toRfc4122()]); // expect: key-per-attempt
    }
}

// snippet: p9 kept
function finish(string $tenant, string $key, Response $response): void {
    Cache::put("idempotency:$tenant:$key", ['status' => $response->status(), 'body' => $response->body()], 86400); // expect: error-outcome-kept
}
