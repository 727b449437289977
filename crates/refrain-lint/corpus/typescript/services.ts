// snippet: nest service that looks up and saves
import { Injectable } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import { Repository } from 'typeorm';

@Injectable()
export class PaymentsService {
  constructor(
    @InjectRepository(Payment) private readonly payments: Repository<Payment>,
    private readonly acquirer: AcquirerClient,
  ) {}

  async create(merchantId: string, idempotencyKey: string, dto: CreatePaymentDto): Promise<Payment> {
    const existing = await this.payments.findOne({ where: { merchantId, idempotencyKey } }); // expect: check-then-act
    if (existing) {
      return existing;
    }
    const auth = await this.acquirer.authorize(dto.card, dto.amount);
    const payment = this.payments.create({ merchantId, idempotencyKey, authCode: auth.code });
    return this.payments.save(payment);
  }
}

// snippet: nest service that inserts first
import { ConflictException, Injectable } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import { QueryFailedError, Repository } from 'typeorm';

@Injectable()
export class PaymentsService {
  constructor(
    @InjectRepository(Payment) private readonly payments: Repository<Payment>,
    private readonly acquirer: AcquirerClient,
  ) {}

  async create(merchantId: string, idempotencyKey: string, dto: CreatePaymentDto): Promise<Payment> {
    let payment: Payment;
    try {
      payment = await this.payments.save({ merchantId, idempotencyKey, state: 'authorizing' });
    } catch (error) {
      if (error instanceof QueryFailedError && error.driverError.code === '23505') {
        const existing = await this.payments.findOneByOrFail({ merchantId, idempotencyKey });
        if (existing.state === 'authorizing') throw new ConflictException();
        return existing;
      }
      throw error;
    }
    const auth = await this.acquirer.authorize(dto.card, dto.amount);
    payment.authCode = auth.code;
    payment.state = 'authorized';
    return this.payments.save(payment);
  }
}

// snippet: nest interceptor keeps what comes out
import { CallHandler, ExecutionContext, Injectable, NestInterceptor } from '@nestjs/common';
import { Observable, of, tap } from 'rxjs';

@Injectable()
export class IdempotencyInterceptor implements NestInterceptor {
  constructor(private readonly cache: Cache) {}

  async intercept(context: ExecutionContext, next: CallHandler): Promise<Observable<unknown>> {
    const request = context.switchToHttp().getRequest();
    const key = request.headers['idempotency-key'];
    if (!key) {
      return next.handle();
    }
    const known = await this.cache.get(`idempotency:${key}`); // expect: check-then-act, expect: unscoped-key
    if (known) {
      return of(known);
    }
    return next.handle().pipe(
      tap((value) => this.cache.set(`idempotency:${key}`, value, 3_600_000)),
    );
  }
}

// snippet: axios interceptor that signs and mints
import axios, { AxiosInstance } from 'axios';
import { randomUUID } from 'node:crypto';

export function bankClient(baseURL: string, token: string): AxiosInstance {
  const client = axios.create({ baseURL, timeout: 8000 });
  client.interceptors.request.use((config) => {
    config.headers.set('Authorization', `Bearer ${token}`);
    config.headers.set('Idempotency-Key', randomUUID()); // expect: key-per-attempt
    return config;
  });
  return client;
}

// snippet: prisma transaction that produces to kafka
import { PrismaClient } from '@prisma/client';
import { Producer } from 'kafkajs';

export class OrderService {
  constructor(private prisma: PrismaClient, private producer: Producer) {}

  async place(input: PlaceOrder) {
    return this.prisma.$transaction(async (tx) => {
      const order = await tx.order.create({ data: { customerId: input.customerId, total: input.total } });
      await tx.stock.updateMany({ where: { sku: { in: input.skus } }, data: { reserved: { increment: 1 } } });
      await this.producer.send({ topic: 'orders', messages: [{ key: order.id, value: JSON.stringify(order) }] }); // expect: publish-in-transaction
      return order;
    });
  }
}

// snippet: prisma transaction with an outbox row
import { PrismaClient } from '@prisma/client';

export class OrderService {
  constructor(private prisma: PrismaClient) {}

  async place(input: PlaceOrder) {
    return this.prisma.$transaction(async (tx) => {
      const order = await tx.order.create({ data: { customerId: input.customerId, total: input.total } });
      await tx.outboxMessage.create({ data: { topic: 'orders', key: order.id, body: JSON.stringify(order) } });
      return order;
    });
  }
}

// snippet: retry decorator of its own
import fetch from 'node-fetch';

function Retry(times: number) {
  return (_target: unknown, _name: string, descriptor: PropertyDescriptor) => {
    const original = descriptor.value;
    descriptor.value = async function (...args: unknown[]) {
      let lastError: unknown;
      for (let attempt = 0; attempt < times; attempt++) {
        try {
          return await original.apply(this, args);
        } catch (error) {
          lastError = error;
        }
      }
      throw lastError;
    };
    return descriptor;
  };
}

export class CrmClient {
  @Retry(3)
  async createContact(contact: Contact): Promise<string> {
    const response = await fetch(`${this.base}/contacts`, { // expect: retry-post-without-key
      method: 'POST',
      body: JSON.stringify(contact),
    });
    if (response.status >= 500) throw new Error('unavailable');
    return ((await response.json()) as { id: string }).id;
  }

  @Retry(3)
  async contact(id: string): Promise<Contact> {
    const response = await fetch(`${this.base}/contacts/${id}`);
    return (await response.json()) as Contact;
  }
}

// snippet: got instance with retries of its own
import got from 'got';

const client = got.extend({
  prefixUrl: process.env.PARTNER_URL,
  retry: { limit: 5, methods: ['GET', 'PUT', 'POST'], statusCodes: [408, 429, 502, 503] },
});

export async function createBooking(booking: Booking): Promise<BookingResult> {
  return client.post('bookings', { json: booking }).json<BookingResult>(); // expect: retry-post-without-key
}

// snippet: got instance that knows the booking's key
import got from 'got';

const client = got.extend({
  prefixUrl: process.env.PARTNER_URL,
  retry: { limit: 5, methods: ['GET', 'PUT', 'POST'] },
});

export async function createBooking(booking: Booking): Promise<BookingResult> {
  const headers = { 'idempotency-key': booking.requestId };
  return client.post('bookings', { json: booking, headers }).json<BookingResult>();
}

// snippet: lambda handler with a conditional put
import { ConditionalCheckFailedException, DynamoDBClient } from '@aws-sdk/client-dynamodb';
import { DynamoDBDocumentClient, PutCommand, UpdateCommand } from '@aws-sdk/lib-dynamodb';
import { SQSEvent } from 'aws-lambda';

const ddb = DynamoDBDocumentClient.from(new DynamoDBClient({}));

export const handler = async (event: SQSEvent): Promise<void> => {
  for (const record of event.Records) {
    try {
      await ddb.send(new PutCommand({
        TableName: 'claims',
        Item: { id: record.messageId, state: 'in_progress', until: Date.now() + 60_000 },
        ConditionExpression: 'attribute_not_exists(id) OR #until < :now',
        ExpressionAttributeNames: { '#until': 'until' },
        ExpressionAttributeValues: { ':now': Date.now() },
      }));
    } catch (error) {
      if (error instanceof ConditionalCheckFailedException) continue;
      throw error;
    }
    await fulfil(JSON.parse(record.body));
    await ddb.send(new UpdateCommand({ TableName: 'claims', Key: { id: record.messageId }, UpdateExpression: 'SET #s = :d' }));
  }
};

// snippet: dynamo read before the work
import { DynamoDBDocumentClient, GetCommand, PutCommand } from '@aws-sdk/lib-dynamodb';
import { SQSEvent } from 'aws-lambda';

export const handler = async (event: SQSEvent): Promise<void> => {
  for (const record of event.Records) {
    const seen = await ddb.send(new GetCommand({ TableName: 'processed_messages', Key: { messageId: record.messageId } })); // expect: check-then-act
    if (seen.Item) {
      continue;
    }
    await fulfil(JSON.parse(record.body));
    await ddb.send(new PutCommand({ TableName: 'processed_messages', Item: { messageId: record.messageId } }));
  }
};

// snippet: square with and without
import { SquareClient } from 'square';

export class Till {
  constructor(private readonly client: SquareClient) {}

  async sell(sale: Sale) {
    return this.client.payments.create({
      sourceId: sale.nonce,
      idempotencyKey: sale.id,
      amountMoney: { amount: BigInt(sale.cents), currency: 'USD' },
    });
  }

  async undo(paymentId: string, cents: number) {
    return this.client.refunds.refundPayment({ // expect: money-call-without-key
      paymentId,
      amountMoney: { amount: BigInt(cents), currency: 'USD' },
    });
  }
}

// snippet: react hook without and with a key
import { useRef } from 'react';
import { v4 as uuidv4 } from 'uuid';

export function useCheckout(cart: Cart) {
  const key = useRef(uuidv4());

  async function submit(card: Card) {
    const response = await fetch('/api/payments', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', 'Idempotency-Key': key.current },
      body: JSON.stringify({ cart: cart.id, card }),
    });
    return response.json();
  }

  return { submit };
}

// snippet: lock with a plain delete
import Redis from 'ioredis';

export class Mutex {
  constructor(private readonly redis: Redis) {}

  async run<T>(name: string, work: () => Promise<T>): Promise<T> {
    const lock = `lock:${name}`;
    const taken = await this.redis.set(lock, process.pid.toString(), 'PX', 10_000, 'NX');
    if (taken === null) throw new Error('busy');
    try {
      return await work();
    } finally {
      await this.redis.del(lock); // expect: unlock-without-owner-check
    }
  }
}
