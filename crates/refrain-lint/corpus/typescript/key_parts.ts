// snippet: decorator that retries
export class Payouts {
  @Retryable({ maxAttempts: 3 })
  async send(payout: Payout) {
    return this.client.post('/payouts', payout.body, { headers: { 'Idempotency-Key': randomUUID() } }); // expect: key-per-attempt
  }
}

// snippet: hash kept whole
export function idempotencyKey(order: Order): string {
  return createHash('sha256').update(order.id).digest('hex').slice(0, 32);
}

// snippet: lock compared in the branch
export async function unlock(redis: Redis, id: string, token: string) {
  const held = await redis.get(`lock:${id}`);
  if (held === token) await redis.del(`lock:${id}`);
}

export const lock = (redis: Redis, id: string, token: string) => redis.set(`lock:${id}`, token, 'PX', 5000, 'NX');
