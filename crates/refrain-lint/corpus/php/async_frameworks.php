// snippet: symfony retryable client
class Erp
{
    private HttpClientInterface $client;

    public function __construct(HttpClientInterface $client)
    {
        $this->client = new RetryableHttpClient($client);
    }

    public function create(array $order): array
    {
        return $this->client->request('POST', '/orders', ['json' => $order, 'headers' => ['Idempotency-Key' => $order['request_id']]])->toArray();
    }
}

// snippet: for loop around guzzle
function create(Client $client, array $note): array
{
    for ($i = 0; $i < 3; $i++) {
        try {
            $response = $client->post('/notes', ['json' => $note]); // expect: retry-post-without-key
            return json_decode((string) $response->getBody(), true);
        } catch (ConnectException $e) {
            $last = $e;
        }
    }
    throw $last;
}

// snippet: claim forgotten after an exception
class Charges
{
    public function create(string $tenant, string $idempotencyKey, array $body): array
    {
        $name = "idem:{$tenant}:{$idempotencyKey}";
        if (! Cache::add($name, 'pending', 60)) {
            throw new Conflict();
        }
        try {
            return $this->gateway->charge($body);
        } catch (\Throwable $e) {
            Cache::forget($name); // expect: error-outcome-dropped
            throw $e;
        }
    }
}

// snippet: uniqid in a job
class SendPayout implements ShouldQueue
{
    public function handle(Client $client): void
    {
        $client->post('/payouts', [
            'headers' => ['Idempotency-Key' => uniqid('payout', true)], // expect: key-per-attempt
            'json' => $this->payout->toArray(),
        ]);
    }
}
