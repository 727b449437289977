// snippet: laravel controller with a cache of answers
class PaymentController extends Controller
{
    public function store(Request $request, Gateway $gateway)
    {
        $key = 'idempotency:' . $request->user()->id . ':' . $request->header('Idempotency-Key');
        if (Cache::has($key)) { // expect: check-then-act
            return response()->json(Cache::get($key));
        }

        $payment = $gateway->authorise($request->input('card'), $request->integer('amount'));
        Cache::put($key, $payment->toArray(), now()->addDay());

        return response()->json($payment, 201);
    }
}

// snippet: laravel controller with an atomic lock
class PaymentController extends Controller
{
    public function store(Request $request, Gateway $gateway)
    {
        $key = 'idempotency:' . $request->user()->id . ':' . $request->header('Idempotency-Key');
        if (! Cache::add($key, 'in_progress', 60)) {
            $kept = Cache::get($key);
            return $kept === 'in_progress' ? response()->noContent(409) : response()->json($kept);
        }

        $payment = $gateway->authorise($request->input('card'), $request->integer('amount'));
        Cache::put($key, $payment->toArray(), now()->addDay());

        return response()->json($payment, 201);
    }
}

// snippet: laravel job with http client
class PushOrderToErp implements ShouldQueue
{
    use Dispatchable, InteractsWithQueue, Queueable, SerializesModels;

    public int $tries = 5;

    public function __construct(public Order $order)
    {
    }

    public function handle(): void
    {
        Http::withToken(config('erp.token'))
            ->timeout(10)
            ->post(config('erp.url') . '/orders', $this->order->toErp()) // expect: retry-post-without-key
            ->throw();
    }
}

// snippet: laravel job with http client and the order's key
class PushOrderToErp implements ShouldQueue
{
    use Dispatchable, InteractsWithQueue, Queueable, SerializesModels;

    public int $tries = 5;

    public function __construct(public Order $order)
    {
    }

    public function handle(): void
    {
        Http::withToken(config('erp.token'))
            ->withHeaders(['Idempotency-Key' => 'order-' . $this->order->id])
            ->timeout(10)
            ->post(config('erp.url') . '/orders', $this->order->toErp())
            ->throw();
    }
}

// snippet: guzzle with a retry decider
final class BankClient
{
    private Client $client;

    public function __construct(string $base)
    {
        $stack = HandlerStack::create();
        $stack->push(Middleware::retry(function (int $retries, RequestInterface $request, ?ResponseInterface $response = null, ?\Throwable $error = null) {
            return $retries < 3 && ($error instanceof ConnectException || ($response && $response->getStatusCode() >= 500));
        }));
        $this->client = new Client(['base_uri' => $base, 'handler' => $stack]);
    }

    public function order(array $standingOrder): array
    {
        $response = $this->client->post('/standing-orders', ['json' => $standingOrder]); // expect: retry-post-without-key
        return json_decode((string) $response->getBody(), true);
    }
}

// snippet: guzzle retry only for get
final class BankClient
{
    private Client $client;

    public function __construct(string $base)
    {
        $stack = HandlerStack::create();
        $stack->push(Middleware::retry(function (int $retries, RequestInterface $request, ?ResponseInterface $response = null) {
            return $request->getMethod() === 'GET' && $retries < 3;
        }));
        $this->client = new Client(['base_uri' => $base, 'handler' => $stack]);
    }

    public function order(array $standingOrder): array
    {
        $response = $this->client->post('/standing-orders', ['json' => $standingOrder]);
        return json_decode((string) $response->getBody(), true);
    }
}

// snippet: stripe-php with and without
class Billing
{
    private \Stripe\StripeClient $stripe;

    public function collect(Invoice $invoice)
    {
        return $this->stripe->paymentIntents->create(
            ['amount' => $invoice->cents, 'currency' => 'eur', 'customer' => $invoice->customer],
            ['idempotency_key' => "collect-{$invoice->id}"]
        );
    }

    public function giveBack(string $intent, int $cents)
    {
        return $this->stripe->refunds->create(['payment_intent' => $intent, 'amount' => $cents]); // expect: money-call-without-key
    }

    public function customer(array $details)
    {
        return $this->stripe->customers->create($details);
    }
}

// snippet: symfony messenger inside wrapInTransaction
final class PlaceOrder
{
    public function __construct(private EntityManagerInterface $em, private MessageBusInterface $bus)
    {
    }

    public function __invoke(Cart $cart): Order
    {
        return $this->em->wrapInTransaction(function () use ($cart) {
            $order = Order::from($cart);
            $this->em->persist($order);
            $this->bus->dispatch(new OrderPlaced($order->id())); // expect: publish-in-transaction
            return $order;
        });
    }
}

// snippet: laravel after commit
class PlaceOrder
{
    public function handle(Cart $cart): Order
    {
        return DB::transaction(function () use ($cart) {
            $order = Order::create(['total' => $cart->total()]);
            SendReceipt::dispatch($order)->afterCommit();
            DB::afterCommit(fn () => ShipOrder::dispatch($order));
            return $order;
        });
    }

    public function handleThenDispatch(Cart $cart): Order
    {
        $order = DB::transaction(fn () => Order::create(['total' => $cart->total()]));
        SendReceipt::dispatch($order);
        return $order;
    }
}

// snippet: php-amqplib callback acks first
$callback = function (AMQPMessage $message) use ($importer) {
    $message->ack(); // expect: ack-before-handle
    $invoice = json_decode($message->getBody(), true);
    $importer->import($invoice);
};
$channel->basic_qos(0, 10, false);
$channel->basic_consume('invoices', '', false, false, false, false, $callback);

// snippet: php-amqplib callback acks last
$callback = function (AMQPMessage $message) use ($importer) {
    $invoice = json_decode($message->getBody(), true);
    try {
        $importer->import($invoice);
    } catch (TemporaryFailure $e) {
        $message->nack(true);
        return;
    }
    $message->ack();
};
$channel->basic_consume('invoices', '', false, false, false, false, $callback);

// snippet: key with microtime
class Wallet
{
    public function withdraw(string $wallet, int $cents): array
    {
        $key = sprintf('%s-%s', $wallet, microtime(true)); // expect: key-from-clock
        $response = $this->http->request('POST', '/withdrawals', [
            'headers' => ['Idempotency-Key' => $key],
            'json' => ['wallet' => $wallet, 'cents' => $cents],
        ]);
        return $response->toArray();
    }
}

// snippet: loop with a fresh key in php
function transfer(Client $client, array $transfer): array
{
    $tries = 0;
    while (true) {
        try {
            $response = $client->request('POST', '/transfers', [
                'headers' => ['Idempotency-Key' => Uuid::uuid4()->toString()], // expect: key-in-retry-loop
                'json' => $transfer,
            ]);
            return json_decode((string) $response->getBody(), true);
        } catch (ConnectException $e) {
            if (++$tries >= 3) {
                throw $e;
            }
            usleep(200000);
        }
    }
}

// snippet: redis lock without a token
class Exclusive
{
    public function run(string $name, callable $work)
    {
        $lock = "lock:{$name}";
        if (! Redis::set($lock, 1, 'EX', 30, 'NX')) {
            throw new Busy();
        }
        try {
            return $work();
        } finally {
            Redis::del($lock); // expect: unlock-without-owner-check
        }
    }
}

// snippet: laravel's own lock
class Exclusive
{
    public function run(string $name, callable $work)
    {
        $lock = Cache::lock("lock:{$name}", 30);
        if (! $lock->get()) {
            throw new Busy();
        }
        try {
            return $work();
        } finally {
            $lock->release();
        }
    }
}
