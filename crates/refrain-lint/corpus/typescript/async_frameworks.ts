// snippet: event bridge inside drizzle's transaction
export async function place(db: Database, bridge: EventBridgeClient, cart: Cart) {
  await db.transaction(async (tx) => {
    const [order] = await tx.insert(orders).values({ total: cart.total }).returning();
    await bridge.send(new PutEventsCommand({ Entries: [{ DetailType: 'OrderPlaced', Detail: JSON.stringify(order) }] })); // expect: publish-in-transaction
  });
}

// snippet: key in a query of react
export function usePay(cart: Cart) {
  const [key] = useState(() => crypto.randomUUID());
  return useMutation({
    mutationFn: (card: Card) =>
      fetch('/api/payments', {
        method: 'POST',
        headers: { 'Idempotency-Key': key },
        body: JSON.stringify({ cart, card }),
      }),
    retry: 3,
  });
}

// snippet: mutation that mints for each try
export function usePay(cart: Cart) {
  return useMutation({
    mutationFn: (card: Card) =>
      fetch('/api/payments', {
        method: 'POST',
        headers: { 'Idempotency-Key': crypto.randomUUID() }, // expect: key-per-attempt
        body: JSON.stringify({ cart, card }),
      }),
    retry: 3,
  });
}

// snippet: prisma lock row removed with its owner
export class Locks {
  async release(name: string, owner: string): Promise<boolean> {
    const { count } = await this.prisma.lock.deleteMany({ where: { name, owner } });
    return count === 1;
  }
}
