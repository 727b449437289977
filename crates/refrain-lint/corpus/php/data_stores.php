// snippet: job that retries with a key from its constructor
<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

class Payout implements ShouldQueue
{
    public $tries = 3;

    public function __construct(private string $account, private int $cents, private string $key)
    {
    }

    public function handle(StripeClient $stripe): void
    {
        $stripe->payouts->create(['amount' => $this->cents, 'currency' => 'eur'], ['idempotency_key' => $this->key, 'stripe_account' => $this->account]);
    }
}

// snippet: queue listener that marks first
<?php

namespace App\Listeners;

class ExtendSubscription
{
    public function handle(InvoicePaid $event): void
    {
        if (! Cache::add("processed:{$event->id}", 1, now()->addWeek())) { // expect: mark-before-handle
            return;
        }
        $this->subscriptions->extend($event->subscription);
    }
}

// snippet: insert ignore and a plain insert
<?php

class Inbox
{
    public function remember(PDO $pdo, string $messageId): bool
    {
        $statement = $pdo->prepare('INSERT IGNORE INTO inbox (message_id) VALUES (?)');
        $statement->execute([$messageId]);
        return $statement->rowCount() === 1;
    }

    public function rememberBlindly(PDO $pdo, string $key): void
    {
        $statement = $pdo->prepare('INSERT INTO replies (idempotency_key) VALUES (?)'); // expect: insert-without-conflict
        $statement->execute([$key]);
    }
}

// snippet: curl again after an empty reply
<?php

function send(string $url, array $body): string
{
    $answer = http_post($url, $body);
    if ($answer === false && curl_errno(handle()) === CURLE_GOT_NOTHING) { // expect: resend-on-closed-connection
        $answer = http_post($url, $body);
    }
    return $answer;
}

// snippet: dispatch in a doctrine transaction begun by hand
<?php

class Orders
{
    public function place(Cart $cart): void
    {
        $this->connection->beginTransaction();
        try {
            $this->connection->insert('orders', ['total' => $cart->total()]);
            $this->bus->dispatch(new OrderPlaced($cart->id())); // expect: publish-in-transaction
            $this->connection->commit();
        } catch (\Throwable $e) {
            $this->connection->rollBack();
            throw $e;
        }
    }
}
