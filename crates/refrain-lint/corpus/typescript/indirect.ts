// snippet: spread carries the key
export async function pay(order: Order, extra: RequestInit) {
  const headers = { 'Content-Type': 'application/json', 'Idempotency-Key': order.paymentKey };
  return fetch('https://api.example.com/payments', { method: 'POST', ...extra, headers: { ...headers } });
}

// snippet: got retries posts
import got from 'got';

const client = got.extend({ retry: { limit: 4, methods: ['GET', 'POST'] } });

export async function createTicket(ticket: Ticket): Promise<void> {
  await client.post('https://desk.example.com/tickets', { json: ticket }); // expect: retry-post-without-key
}

// snippet: fetch in a helper that retries
async function withRetry<T>(fn: () => Promise<T>, retries = 3): Promise<T> {
  for (let i = 0; i <= retries; i++) {
    try {
      return await fn();
    } catch (error) {
      if (i === retries) throw error;
      await delay(2 ** i * 100);
    }
  }
  throw new Error('unreachable');
}

export function createTransfer(transfer: Transfer) {
  return withRetry(() =>
    fetch('https://bank.example.com/transfers', {
      method: 'POST',
      headers: { 'Idempotency-Key': uuidv4() }, // expect: key-per-attempt
      body: JSON.stringify(transfer),
    }),
  );
}

// snippet: ttl and bullmq
export const queue = new Queue('settlements', {
  defaultJobOptions: { attempts: 10, backoff: { type: 'exponential', delay: 60000 } },
});

export async function done(redis: Redis, eventId: string): Promise<void> {
  await redis.set(`processed:${eventId}`, 'done', 'EX', 3600); // expect: ttl-shorter-than-retries
}

// snippet: error kept by a wrapper
export async function once(redis: Redis, tenant: string, idempotencyKey: string, run: () => Promise<Answer>): Promise<Answer> {
  const key = `idem:${tenant}:${idempotencyKey}`;
  try {
    const answer = await run();
    await redis.set(key, JSON.stringify(answer), 'EX', 86400);
    return answer;
  } catch (error) {
    const answer = { status: 503, body: 'unavailable' };
    await redis.set(key, JSON.stringify(answer), 'EX', 86400); // expect: error-outcome-kept
    return answer;
  }
}

// snippet: claim dropped after any error
export async function transfer(redis: Redis, account: string, idempotencyKey: string, body: TransferBody) {
  const key = `idempotency:${account}:${idempotencyKey}`;
  const claimed = await redis.set(key, 'pending', 'EX', 60, 'NX');
  if (!claimed) throw new ConflictError();
  try {
    return await bank.transfer(body);
  } catch (error) {
    await redis.del(key); // expect: error-outcome-dropped
    throw error;
  }
}

// snippet: prisma with a unique index
export async function create(tenantId: string, idempotencyKey: string, data: Data) {
  try {
    return await prisma.payment.create({ data: { tenantId, idempotencyKey, ...data } });
  } catch (error) {
    if (error.code === 'P2002') return prisma.payment.findFirst({ where: { tenantId, idempotencyKey } });
    throw error;
  }
}

// snippet: rabbit without acknowledgement
await channel.consume('invoices', (msg) => sendInvoice(msg!.content), { noAck: true }); // expect: ack-before-handle
