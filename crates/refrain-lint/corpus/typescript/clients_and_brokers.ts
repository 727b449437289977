// snippet: bullmq worker that posts
import { Worker } from 'bullmq';

new Worker('orders', async (job) => {
  await axios.post('https://erp.example.com/orders', job.data); // expect: retry-post-without-key
});

// snippet: bullmq worker with the id of the job
import { Worker } from 'bullmq';

new Worker('orders', async (job) => {
  await axios.post('https://erp.example.com/orders', job.data, { headers: { 'Idempotency-Key': `order-${job.id}` } });
});

// snippet: google pubsub acks first
subscription.on('message', async (message: Message) => {
  message.ack(); // expect: ack-before-handle
  await settle(JSON.parse(message.data.toString()));
});

// snippet: typeorm finds, then saves
export class Inbox {
  async handle(event: PaymentEvent): Promise<void> {
    const seen = await this.repo.findOne({ where: { eventId: event.id } }); // expect: check-then-act
    if (seen) return;
    await this.ledger.book(event);
    await this.repo.save({ eventId: event.id });
  }
}

// snippet: date in the key
export const charge = (order: Order) =>
  stripe.charges.create({ amount: order.total, currency: 'eur' }, { idempotencyKey: order.id + Date.now() }); // expect: key-from-clock

// snippet: econnreset in a loop
export async function submit(order: Order): Promise<void> {
  for (;;) {
    try {
      await axios.post('https://erp.example.com/orders', order); // expect: retry-post-without-key
      return;
    } catch (error) {
      if (error.code !== 'ECONNRESET') throw error;
      await sleep(500);
    }
  }
}

// snippet: event after the transaction
export async function place(data: OrderInput): Promise<void> {
  const order = await prisma.$transaction((tx) => tx.order.create({ data }));
  await producer.send({ topic: 'orders', messages: [{ value: order.id }] });
}

// snippet: slice of a uuid
export function requestOptions(id: string) {
  return { headers: { 'Idempotency-Key': id.replace(/-/g, '').slice(0, 8) } }; // expect: key-truncated
}
