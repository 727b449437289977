// snippet: eloquent looks, then creates
class PaymentController
{
    public function store(Request $request)
    {
        $key = $request->header('Idempotency-Key');
        $existing = Payment::where('user_id', $request->user()->id)->where('idempotency_key', $key)->first(); // expect: check-then-act
        if ($existing) {
            return response()->json($existing);
        }
        $receipt = $this->gateway->charge($request->input('amount'));
        $payment = Payment::create(['user_id' => $request->user()->id, 'idempotency_key' => $key, 'receipt' => $receipt]);
        return response()->json($payment, 201);
    }
}

// snippet: eloquent first or create
class PaymentController
{
    public function store(Request $request)
    {
        return Payment::firstOrCreate(
            ['user_id' => $request->user()->id, 'idempotency_key' => $request->header('Idempotency-Key')],
            ['amount' => $request->input('amount')]
        );
    }
}

// snippet: migration without unique
Schema::create('payments', function (Blueprint $table) {
    $table->id();
    $table->string('idempotency_key');
    $table->integer('amount');
});

function record(string $key, int $amount): Payment {
    return Payment::create(['idempotency_key' => $key, 'amount' => $amount]); // expect: insert-without-conflict
}

// snippet: uniqid per send
class Gateway
{
    private function headers(): array
    {
        return ['Accept' => 'application/json', 'Idempotency-Key' => uniqid('', true)]; // expect: key-per-attempt
    }

    public function pay(array $payment): array
    {
        return Http::withHeaders($this->headers())->retry(3, 200)->post('/payments', $payment)->json();
    }
}

// snippet: empty reply
function deliver(Client $client, array $order) {
    try {
        return $client->post('/orders', ['json' => $order]);
    } catch (RequestException $e) {
        if (str_contains($e->getMessage(), 'Empty reply from server')) { // expect: resend-on-closed-connection
            return $client->post('/orders', ['json' => $order]);
        }
        throw $e;
    }
}

// snippet: failures are not kept
function remember(Redis $redis, string $tenant, string $key, ResponseInterface $response): void {
    if ($response->getStatusCode() >= 500) {
        return;
    }
    $redis->setex("idem:$tenant:$key", 86400, json_encode(['status' => $response->getStatusCode(), 'body' => (string) $response->getBody()]));
}

// snippet: constants of a class
class Settings
{
    public const MAX_ATTEMPTS = 6;
    public const RETRY_DELAY_MINUTES = 30;
    public const IDEMPOTENCY_TTL_MINUTES = 10; // expect: ttl-shorter-than-retries
}

// snippet: retry with a key
function pay(array $payment): array {
    return Http::withHeaders(['Idempotency-Key' => $payment['key']])->retry(3, 200)->post('https://psp.example.com/payments', $payment)->json();
}
