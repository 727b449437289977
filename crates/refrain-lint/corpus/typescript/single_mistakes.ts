// snippet: substring of a hash
import { createHash } from 'node:crypto';

export function idempotencyKeyFor(userId: string, cartId: string): string {
  const digest = createHash('sha256').update(`${userId}:${cartId}`).digest('hex');
  return digest.substring(0, 10); // expect: key-truncated
}

// snippet: nest interceptor that knows only the key
@Injectable()
export class IdempotencyInterceptor implements NestInterceptor {
  constructor(private readonly redis: Redis) {}

  async intercept(context: ExecutionContext, next: CallHandler) {
    const request = context.switchToHttp().getRequest();
    const key = request.headers['idempotency-key'];
    const claimed = await this.redis.set(`idem:${key}`, 'in_progress', 'EX', 60, 'NX'); // expect: unscoped-key
    if (!claimed) {
      throw new ConflictException();
    }
    return next.handle();
  }
}

// snippet: typeorm and kafka
export class OrderService {
  async place(dto: CreateOrderDto): Promise<Order> {
    return this.dataSource.transaction(async (manager) => {
      const order = await manager.save(Order, dto);
      await this.producer.send({ topic: 'orders', messages: [{ key: order.id, value: JSON.stringify(order) }] }); // expect: publish-in-transaction
      return order;
    });
  }
}

// snippet: lock released by name
export class ReportLock {
  async run(name: string, work: () => Promise<void>): Promise<boolean> {
    const ok = await this.redis.set(`lock:${name}`, 'locked', 'EX', 30, 'NX');
    if (ok !== 'OK') return false;
    try {
      await work();
    } finally {
      await this.redis.del(`lock:${name}`); // expect: unlock-without-owner-check
    }
    return true;
  }
}

// snippet: nest queue processor
@Processor('charges')
export class ChargeProcessor extends WorkerHost {
  async process(job: Job<ChargeData>): Promise<void> {
    const idempotencyKey = randomUUID(); // expect: key-per-attempt
    await this.stripe.paymentIntents.create({ amount: job.data.amount, currency: 'eur' }, { idempotencyKey });
  }
}

// snippet: scoped claim
export async function claim(redis: Redis, tenantId: string, key: string): Promise<boolean> {
  const result = await redis.set(`idem:${tenantId}:${key}`, 'in_progress', 'EX', 60, 'NX');
  return result === 'OK';
}

// snippet: prisma outbox
export async function placeOrder(data: OrderInput): Promise<Order> {
  return prisma.$transaction(async (tx) => {
    const order = await tx.order.create({ data });
    await tx.outboxEvent.create({ data: { topic: 'orders.placed', payload: { id: order.id } } });
    return order;
  });
}
