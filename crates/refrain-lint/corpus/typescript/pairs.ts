// snippet: nest processor with a fresh key
@Processor('captures')
export class CaptureProcessor extends WorkerHost {
  constructor(private readonly stripe: Stripe) { super(); }

  async process(job: Job<Capture>): Promise<void> {
    await this.stripe.paymentIntents.capture(job.data.intent, {}, {
      idempotencyKey: randomUUID(), // expect: key-per-attempt
    });
  }
}

// snippet: nest processor with the job's key
@Processor('captures')
export class CaptureProcessor extends WorkerHost {
  constructor(private readonly stripe: Stripe) { super(); }

  async process(job: Job<Capture>): Promise<void> {
    await this.stripe.paymentIntents.capture(job.data.intent, {}, { idempotencyKey: `capture-${job.id}` });
  }
}

// snippet: header builder
export class AdyenClient {
  private buildHeaders(): Record<string, string> {
    return {
      'X-API-Key': this.apiKey,
      'Idempotency-Key': uuidv4(), // expect: key-per-attempt
    };
  }

  async pay(body: PaymentRequest) {
    return this.http.post('/payments', body, { headers: this.buildHeaders() });
  }
}

// snippet: square without and with a key
import { SquareClient } from 'square';

export async function charge(client: SquareClient, sourceId: string, amount: bigint) {
  return client.payments.create({ sourceId, amountMoney: { amount, currency: 'USD' } }); // expect: money-call-without-key
}

export async function chargeOnce(client: SquareClient, order: Order) {
  return client.payments.create({
    idempotencyKey: order.paymentKey,
    sourceId: order.source,
    amountMoney: order.money,
  });
}

// snippet: adyen options from the caller
import { CheckoutAPI } from '@adyen/api-library';

export async function pay(api: CheckoutAPI, request: PaymentRequest, requestOptions: IRequest.Options) {
  return api.PaymentsApi.payments(request, requestOptions);
}

export async function payTwice(api: CheckoutAPI, body: PaymentRequest) {
  return api.PaymentsApi.payments(body); // expect: money-call-without-key
}

// snippet: retry helper and post apart
export async function createShipment(order: Order): Promise<Shipment> {
  const res = await fetch(`${CARRIER}/shipments`, { method: 'POST', body: JSON.stringify(order) }); // expect: retry-post-without-key
  if (!res.ok) throw new Error(`carrier: ${res.status}`);
  return res.json();
}

export const shipWithRetry = (order: Order) => retry(() => createShipment(order), { retries: 5 });

// snippet: retry helper around a get
export async function readShipment(id: string): Promise<Shipment> {
  const res = await fetch(`${CARRIER}/shipments/${id}`);
  return res.json();
}

export const readWithRetry = (id: string) => retry(() => readShipment(id), { retries: 5 });

// snippet: got that retries post
import got from 'got';

const api = got.extend({ prefixUrl: BASE, retry: { limit: 3, methods: ['GET', 'POST'] } });

export const place = (order: Order) => api.post('orders', { json: order }).json(); // expect: retry-post-without-key

// snippet: got with its defaults
import got from 'got';

const api = got.extend({ prefixUrl: BASE, retry: { limit: 3 } });

export const place = (order: Order) => api.post('orders', { json: order }).json();

// snippet: prisma check then act
export async function placeOrder(prisma: PrismaClient, idempotencyKey: string, tenantId: string, body: Body) {
  const existing = await prisma.order.findFirst({ where: { idempotencyKey, tenantId } }); // expect: check-then-act
  if (existing) return existing;
  await inventory.reserve(body.items);
  return prisma.order.create({ data: { idempotencyKey, tenantId, ...body } });
}

// snippet: prisma with the unique violation
export async function placeOrder(prisma: PrismaClient, idempotencyKey: string, tenantId: string, body: Body) {
  try {
    return await prisma.order.create({ data: { idempotencyKey, tenantId, ...body } });
  } catch (e) {
    if (e.code === 'P2002') return prisma.order.findFirst({ where: { idempotencyKey, tenantId } });
    throw e;
  }
}

// snippet: consumer marks first
export class OrderConsumer {
  async handleMessage(message: OrderPlaced): Promise<void> {
    const fresh = await this.redis.set(`seen:${message.id}`, '1', 'EX', 86400, 'NX'); // expect: mark-before-handle
    if (!fresh) return;
    await this.warehouse.pick(message.lines);
    await this.mailer.confirm(message.customer);
  }
}

// snippet: consumer marks last, behind a lease
export class OrderConsumer {
  async handleMessage(message: OrderPlaced): Promise<void> {
    const lease = await this.redis.set(`order:${message.id}`, 'in-progress', 'EX', 60, 'NX');
    if (!lease) throw new InFlight(message.id);
    await this.warehouse.pick(message.lines);
    await this.redis.set(`order:${message.id}`, 'done', 'EX', 604800);
  }
}

// snippet: publish inside prisma's transaction
export async function place(prisma: PrismaClient, producer: Producer, order: Order) {
  await prisma.$transaction(async (tx) => {
    await tx.order.create({ data: order });
    await producer.send({ topic: 'orders', messages: [{ value: JSON.stringify(order) }] }); // expect: publish-in-transaction
  });
}

export async function placeThenTell(prisma: PrismaClient, producer: Producer, order: Order) {
  await prisma.$transaction(async (tx) => {
    await tx.order.create({ data: order });
  });
  await producer.send({ topic: 'orders', messages: [{ value: JSON.stringify(order) }] });
}

// snippet: unscoped lookup
export async function idempotency(req: Request, res: Response, next: NextFunction) {
  const key = req.header('Idempotency-Key');
  if (!key) return next();
  const claimed = await redis.set(`idem:${key}`, 'pending', 'NX', 'EX', 120); // expect: unscoped-key
  if (!claimed) return res.sendStatus(409);
  return next();
}

// snippet: scoped lookup
export async function idempotency(req: Request, res: Response, next: NextFunction) {
  const key = req.header('Idempotency-Key');
  if (!key) return next();
  const claimed = await redis.set(`idem:${req.tenantId}:${key}`, 'pending', 'NX', 'EX', 120);
  if (!claimed) return res.sendStatus(409);
  return next();
}
