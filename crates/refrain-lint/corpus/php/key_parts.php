// snippet: curl to refunds
function refund(string $id, string $token): string {
    $ch = curl_init("https://psp.example/payments/$id/refunds");
    curl_setopt_array($ch, [CURLOPT_POST => true, CURLOPT_HTTPHEADER => ["Authorization: Bearer $token"]]); // expect: money-call-without-key
    return curl_exec($ch);
}

// snippet: job that keeps its key in the row
class Payout implements ShouldQueue
{
    public function handle(Client $client): void
    {
        $this->row->key ??= (string) Str::uuid();
        $this->row->save();
        $client->post('/payouts', ['headers' => ['Idempotency-Key' => $this->row->key]]);
    }
}

// snippet: reset and again
function submit(Client $client, array $order) {
    try {
        return $client->post('/orders', ['json' => $order]);
    } catch (RequestException $e) {
        if (str_contains($e->getMessage(), 'Connection reset by peer')) { // expect: resend-on-closed-connection
            return $client->post('/orders', ['json' => $order]);
        }
        throw $e;
    }
}
