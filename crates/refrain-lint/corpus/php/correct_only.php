// snippet: r1
function fetch(string $url) {
    for ($i = 0; $i < 3; $i++) {
        $ch = curl_init($url);
        curl_setopt($ch, CURLOPT_RETURNTRANSFER, true);
        $result = curl_exec($ch);
        if ($result !== false) {
            return $result;
        }
        sleep(1);
    }
}

// snippet: r2
class ChargeOrder implements ShouldQueue
{
    public function handle(StripeClient $stripe): void
    {
        $stripe->charges->create(['amount' => $this->order->total], ['idempotency_key' => 'order-' . $this->order->id]);
    }
}

// snippet: r3
class Settings
{
    public const MAX_ATTEMPTS = 6;
    public const RETRY_DELAY_MINUTES = 30;
    public const IDEMPOTENCY_TTL_DAYS = 7;
}

// snippet: r4
$callback = function (AMQPMessage $msg) use ($redis) {
    if (!$redis->set('event:' . $msg->get('message_id'), 'in_progress', ['nx', 'ex' => 60])) {
        $msg->nack(true);
        return;
    }
    shipOrder($msg->body);
    $redis->set('event:' . $msg->get('message_id'), 'done', ['ex' => 604800]);
    $msg->ack();
};

// snippet: r5
$key = 'report:' . $date;
$report = Cache::get($key);
if (!$report) {
    $report = buildReport($date);
    Cache::put($key, $report, 3600);
}
