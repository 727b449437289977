// snippet: typeorm query runner
export class Orders {
  async place(cart: Cart): Promise<void> {
    const runner = this.dataSource.createQueryRunner();
    await runner.startTransaction();
    try {
      const order = await runner.manager.save(Order, { total: cart.total });
      await this.client.publish(new PublishCommand({ TopicArn: ARN, Message: JSON.stringify(order) })); // expect: publish-in-transaction
      await runner.commitTransaction();
    } catch (error) {
      await runner.rollbackTransaction();
      throw error;
    } finally {
      await runner.release();
    }
  }
}

// snippet: generic http post with types
export class PaymentsApi {
  constructor(private readonly http: HttpClient) {}

  pay(body: PaymentBody): Observable<Payment> {
    return this.http.post<Payment>(`${this.base}/payments`, body); // expect: money-call-without-key
  }

  payOnce(body: PaymentBody, key: string): Observable<Payment> {
    const headers = new HttpHeaders().set('Idempotency-Key', key);
    return this.http.post<Payment>(`${this.base}/payments`, body, { headers });
  }
}

// snippet: pubsub subscriber
import { PubSub, Message } from '@google-cloud/pubsub';

const subscription = new PubSub().subscription('orders');

subscription.on('message', async (message: Message) => {
  message.ack(); // expect: ack-before-handle
  await fulfil(JSON.parse(message.data.toString()));
});

// snippet: pubsub subscriber in order
import { PubSub, Message } from '@google-cloud/pubsub';

const subscription = new PubSub().subscription('orders');

subscription.on('message', async (message: Message) => {
  try {
    await fulfil(JSON.parse(message.data.toString()));
    message.ack();
  } catch (error) {
    message.nack();
  }
});

// snippet: upsert by key
export async function create(prisma: PrismaClient, tenantId: string, idempotencyKey: string, data: OrderData) {
  return prisma.order.upsert({
    where: { tenantId_idempotencyKey: { tenantId, idempotencyKey } },
    create: { ...data, tenantId, idempotencyKey },
    update: {},
  });
}
