// snippet: claim released after any failure of the gateway
export class PaymentHandler {
  constructor(private readonly redis: Redis, private readonly gateway: Gateway) {}

  async pay(tenant: string, idempotencyKey: string, body: PayBody): Promise<Receipt> {
    const name = `idem:${tenant}:${idempotencyKey}`;
    if (!(await this.redis.set(name, 'pending', 'EX', 60, 'NX'))) {
      throw new Conflict();
    }
    try {
      const receipt = await this.gateway.charge(body);
      await this.redis.set(name, JSON.stringify(receipt), 'EX', 86_400);
      return receipt;
    } catch (error) {
      await this.redis.del(name); // expect: error-outcome-dropped
      throw error;
    }
  }
}

// snippet: claim released only when nothing ran
export class PaymentHandler {
  constructor(private readonly redis: Redis, private readonly gateway: Gateway) {}

  async pay(tenant: string, idempotencyKey: string, body: PayBody): Promise<Receipt> {
    const name = `idem:${tenant}:${idempotencyKey}`;
    if (!(await this.redis.set(name, 'pending', 'EX', 60, 'NX'))) {
      throw new Conflict();
    }
    try {
      const receipt = await this.gateway.charge(body);
      await this.redis.set(name, JSON.stringify(receipt), 'EX', 86_400);
      return receipt;
    } catch (error) {
      if (error instanceof CardDeclined) {
        await this.redis.del(name);
      } else {
        await this.redis.set(name, 'indeterminate', 'EX', 86_400);
      }
      throw error;
    }
  }
}

// snippet: nest guard with an unscoped lookup
@Injectable()
export class IdempotencyGuard implements CanActivate {
  constructor(@Inject('REDIS') private readonly redis: Redis) {}

  async canActivate(context: ExecutionContext): Promise<boolean> {
    const request = context.switchToHttp().getRequest<Request>();
    const key = request.header('Idempotency-Key');
    const claimed = await this.redis.set(`idem:${key}`, 'pending', 'EX', 30, 'NX'); // expect: unscoped-key
    if (claimed === null) {
      throw new ConflictException('in progress or done');
    }
    return true;
  }
}

// snippet: rxjs retry on a post
@Injectable()
export class CrmService {
  constructor(private readonly http: HttpService) {}

  create(contact: Contact): Observable<Created> {
    return this.http.post<Created>('/contacts', contact).pipe( // expect: retry-post-without-key
      map((response) => response.data),
      retry({ count: 3, delay: 500 }),
    );
  }

  find(id: string): Observable<Contact> {
    return this.http.get<Contact>(`/contacts/${id}`).pipe(retry(3), map((response) => response.data));
  }
}

// snippet: bull processor and a short memory
@Processor('webhooks')
export class WebhookProcessor extends WorkerHost {
  static readonly jobOptions = { attempts: 10, backoff: { type: 'fixed', delay: 3_600_000 } };

  async process(job: Job<WebhookEvent>): Promise<void> {
    const seen = `processed:${job.data.eventId}`;
    const lease = await this.redis.set(`lease:${job.data.eventId}`, '1', 'EX', 30, 'NX');
    if (lease === null) throw new Error('busy');
    if (await this.redis.get(seen)) return;
    await this.billing.apply(job.data);
    await this.redis.set(seen, 'done', 'EX', 900); // expect: ttl-shorter-than-retries
  }
}

// snippet: adyen with the request options
import { CheckoutAPI, Client } from '@adyen/api-library';

export class AdyenGateway {
  private readonly checkout: CheckoutAPI;

  async pay(order: Order) {
    return this.checkout.PaymentsApi.payments(
      { amount: order.amount, reference: order.id, merchantAccount: ACCOUNT, paymentMethod: order.method },
      { idempotencyKey: order.paymentKey },
    );
  }

  async capture(pspReference: string, amount: Amount) {
    return this.checkout.ModificationsApi.captureAuthorisedPayment(pspReference, { amount, merchantAccount: ACCOUNT }); // expect: money-call-without-key
  }
}
