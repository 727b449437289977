// snippet: service with stored attempts
export class RefundService {
  async refund(payment: Payment): Promise<Refund> {
    const key = randomUUID();
    await this.attempts.insert({ paymentId: payment.id, key });
    return this.stripe.refunds.create({ payment_intent: payment.intent }, { idempotencyKey: key });
  }
}

// snippet: options factory
function requestOptions(): Stripe.RequestOptions {
  return { idempotencyKey: uuid() }; // expect: key-per-attempt
}

export const pay = (stripe: Stripe, p: Params) => stripe.paymentIntents.create(p, requestOptions());

// snippet: loop with backoff constants
const BACKOFF = [100, 400, 1600];

export async function push(body: unknown): Promise<void> {
  for (const delay of BACKOFF) {
    const res = await fetch(`${HOOKS}/deliveries`, { method: 'POST', body: JSON.stringify(body) }); // expect: retry-post-without-key
    if (res.ok) return;
    await sleep(delay);
  }
}

// snippet: typeorm in a transaction
export class OrderService {
  async place(dto: OrderDto): Promise<void> {
    await this.dataSource.transaction(async (manager) => {
      const order = await manager.save(Order, dto);
      await this.channel.sendToQueue('orders', Buffer.from(JSON.stringify(order))); // expect: publish-in-transaction
    });
  }

  async placeWithOutbox(dto: OrderDto): Promise<void> {
    await this.dataSource.transaction(async (manager) => {
      const order = await manager.save(Order, dto);
      await manager.insert(OutboxMessage, { topic: 'orders', body: order });
    });
  }
}

// snippet: date in the key
export function keyFor(user: User, action: string): Record<string, string> {
  return { 'Idempotency-Key': `${user.id}:${action}:${new Date().toISOString()}` }; // expect: key-from-clock
}

// snippet: kafkajs handles and lets the library commit
export async function run(consumer: Consumer) {
  await consumer.run({
    eachMessage: async ({ message }) => {
      await apply(JSON.parse(message.value!.toString()));
    },
  });
}

// snippet: raw sql
export async function save(pool: Pool, tenant: string, idempotencyKey: string, body: string) {
  await pool.query(
    'INSERT INTO requests (tenant, idempotency_key, body) VALUES ($1, $2, $3)', // expect: insert-without-conflict
    [tenant, idempotencyKey, body],
  );
}

// snippet: webhook marks first
export async function webhook(event: Stripe.Event) {
  const inserted = await redis.setnx(`webhook:${event.id}`, '1'); // expect: mark-before-handle
  if (!inserted) return;
  await subscriptions.activate(event.data.object);
}
