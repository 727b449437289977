// snippet: express route with a cache of answers
const express = require('express');
const Redis = require('ioredis');

const redis = new Redis(process.env.REDIS_URL);
const router = express.Router();

router.post('/orders', async (req, res, next) => {
  try {
    const idempotencyKey = `${req.user.id}:${req.get('Idempotency-Key')}`;
    const hit = await redis.get(idempotencyKey); // expect: check-then-act
    if (hit) {
      return res.status(200).json(JSON.parse(hit));
    }
    const order = await orders.place(req.user, req.body);
    await redis.set(idempotencyKey, JSON.stringify(order), 'EX', 3600);
    return res.status(201).json(order);
  } catch (err) {
    return next(err);
  }
});

module.exports = router;

// snippet: express route that claims with NX
const express = require('express');
const Redis = require('ioredis');

const redis = new Redis(process.env.REDIS_URL);
const router = express.Router();

router.post('/orders', async (req, res, next) => {
  const name = `idem:${req.user.id}:${req.get('Idempotency-Key')}`;
  const claimed = await redis.set(name, 'pending', 'EX', 60, 'NX');
  if (claimed !== 'OK') {
    const kept = await redis.get(name);
    return kept === 'pending' ? res.sendStatus(409) : res.status(200).json(JSON.parse(kept));
  }
  try {
    const order = await orders.place(req.user, req.body);
    await redis.set(name, JSON.stringify(order), 'EX', 86400);
    return res.status(201).json(order);
  } catch (err) {
    return next(err);
  }
});

// snippet: fetch with a retry helper in the same file
async function withRetries(fn, times = 3) {
  let last;
  for (let i = 0; i < times; i += 1) {
    try {
      return await fn();
    } catch (err) {
      last = err;
      await new Promise((resolve) => setTimeout(resolve, 200 * 2 ** i));
    }
  }
  throw last;
}

export function createTicket(ticket) {
  return withRetries(async () => {
    const res = await fetch(`${API}/tickets`, { // expect: retry-post-without-key
      method: 'POST',
      headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${TOKEN}` },
      body: JSON.stringify(ticket),
    });
    if (!res.ok) throw new Error(`ticket service said ${res.status}`);
    return res.json();
  });
}

export function getTicket(id) {
  return withRetries(() => fetch(`${API}/tickets/${id}`).then((res) => res.json()));
}

// snippet: fetch with a retry helper and the ticket's own key
async function withRetries(fn, times = 3) {
  let last;
  for (let i = 0; i < times; i += 1) {
    try {
      return await fn();
    } catch (err) {
      last = err;
      await new Promise((resolve) => setTimeout(resolve, 200 * 2 ** i));
    }
  }
  throw last;
}

export function createTicket(ticket) {
  const headers = {
    'Content-Type': 'application/json',
    'Idempotency-Key': `ticket-${ticket.draftId}`,
  };
  return withRetries(async () => {
    const res = await fetch(`${API}/tickets`, { method: 'POST', headers, body: JSON.stringify(ticket) });
    if (!res.ok) throw new Error(`ticket service said ${res.status}`);
    return res.json();
  });
}

// snippet: axios-retry with a condition for every error
const axios = require('axios');
const axiosRetry = require('axios-retry').default;

const api = axios.create({ baseURL: process.env.LEDGER_URL, timeout: 4000 });

axiosRetry(api, {
  retries: 4,
  retryDelay: axiosRetry.exponentialDelay,
  retryCondition: (error) => !error.response || error.response.status >= 500,
});

exports.book = async (entry) => {
  const { data } = await api.post('/entries', entry); // expect: retry-post-without-key
  return data;
};

exports.entry = async (id) => (await api.get(`/entries/${id}`)).data;

// snippet: axios-retry that leaves post alone
const axios = require('axios');
const axiosRetry = require('axios-retry').default;

const api = axios.create({ baseURL: process.env.LEDGER_URL, timeout: 4000 });

axiosRetry(api, { retries: 4, retryDelay: axiosRetry.exponentialDelay });

exports.book = async (entry) => {
  const { data } = await api.post('/entries', entry);
  return data;
};

// snippet: stripe with a key in the loop
const Stripe = require('stripe');
const { v4: uuid } = require('uuid');

const stripe = new Stripe(process.env.STRIPE_KEY);

async function chargeCustomer(customer, amount) {
  let tries = 0;
  while (tries < 3) {
    try {
      return await stripe.paymentIntents.create(
        { amount, currency: 'usd', customer, confirm: true },
        { idempotencyKey: uuid() }, // expect: key-in-retry-loop
      );
    } catch (err) {
      if (err.type !== 'StripeConnectionError') throw err;
      tries += 1;
    }
  }
  throw new Error('gave up');
}

// snippet: stripe with one key for the loop
const Stripe = require('stripe');
const { v4: uuid } = require('uuid');

const stripe = new Stripe(process.env.STRIPE_KEY);

async function chargeCustomer(customer, amount) {
  const idempotencyKey = uuid();
  let tries = 0;
  while (tries < 3) {
    try {
      return await stripe.paymentIntents.create(
        { amount, currency: 'usd', customer, confirm: true },
        { idempotencyKey },
      );
    } catch (err) {
      if (err.type !== 'StripeConnectionError') throw err;
      tries += 1;
    }
  }
  throw new Error('gave up');
}

// snippet: bullmq processor that mints
const { Worker } = require('bullmq');
const { randomUUID } = require('crypto');
const stripe = require('stripe')(process.env.STRIPE_KEY);

const worker = new Worker('payouts', async (job) => {
  const { accountId, amount } = job.data;
  const transfer = await stripe.transfers.create(
    { amount, currency: 'eur', destination: accountId },
    { idempotencyKey: randomUUID() }, // expect: key-per-attempt
  );
  return transfer.id;
}, { connection, concurrency: 5 });

worker.on('failed', (job, err) => log.error({ job: job.id, err }));

// snippet: bullmq processor with the job's id
const { Worker } = require('bullmq');
const stripe = require('stripe')(process.env.STRIPE_KEY);

const worker = new Worker('payouts', async (job) => {
  const { accountId, amount } = job.data;
  const transfer = await stripe.transfers.create(
    { amount, currency: 'eur', destination: accountId },
    { idempotencyKey: `payout:${job.id}` },
  );
  return transfer.id;
}, { connection, concurrency: 5 });

// snippet: amqplib consumer that acks on arrival
const amqp = require('amqplib');

async function start() {
  const connection = await amqp.connect(process.env.AMQP_URL);
  const channel = await connection.createChannel();
  await channel.assertQueue('emails', { durable: true });
  channel.prefetch(10);
  channel.consume('emails', async (msg) => {
    if (!msg) return;
    channel.ack(msg); // expect: ack-before-handle
    const email = JSON.parse(msg.content.toString());
    await mailer.deliver(email.template, email.to, email.values);
  });
}

// snippet: kafkajs with resolveOffset behind the work
const { Kafka } = require('kafkajs');

const kafka = new Kafka({ clientId: 'billing', brokers: [process.env.KAFKA] });
const consumer = kafka.consumer({ groupId: 'billing' });

async function run() {
  await consumer.connect();
  await consumer.subscribe({ topic: 'usage' });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ topic, partition, message }) => {
      const usage = JSON.parse(message.value.toString());
      await meter.record(usage.account, usage.units, usage.id);
      await consumer.commitOffsets([{ topic, partition, offset: (Number(message.offset) + 1).toString() }]);
    },
  });
}

// snippet: knex transaction with a queue inside
const knex = require('knex')(require('./knexfile'));

async function register(user) {
  return knex.transaction(async (trx) => {
    const [id] = await trx('users').insert(user).returning('id');
    await trx('profiles').insert({ user_id: id });
    await emailQueue.add('welcome', { id }); // expect: publish-in-transaction
    return id;
  });
}

async function registerThenTell(user) {
  const id = await knex.transaction(async (trx) => {
    const [created] = await trx('users').insert(user).returning('id');
    await trx('profiles').insert({ user_id: created });
    return created;
  });
  await emailQueue.add('welcome', { id });
  return id;
}

// snippet: knex transaction with an outbox helper
const knex = require('knex')(require('./knexfile'));

async function publish(trx, topic, payload) {
  await trx('outbox').insert({ topic, payload: JSON.stringify(payload) });
}

async function register(user) {
  return knex.transaction(async (trx) => {
    const [id] = await trx('users').insert(user).returning('id');
    await publish(trx, 'user.registered', { id });
    return id;
  });
}

// snippet: key from the clock through a helper
const axios = require('axios');

function requestKey(prefix) {
  return `${prefix}-${Date.now()}-${process.pid}`;
}

async function withdraw(wallet, amount) {
  return axios.post(`${BANK}/withdrawals`, { wallet, amount }, {
    headers: { 'Idempotency-Key': requestKey(wallet) }, // expect: key-from-clock
  });
}

// snippet: socket hang up is sent again
const got = require('got');

async function submitClaim(claim) {
  try {
    return await got.post(`${INSURER}/claims`, { json: claim }).json();
  } catch (err) {
    if (err.code === 'ECONNRESET' || err.message.includes('socket hang up')) { // expect: resend-on-closed-connection
      return got.post(`${INSURER}/claims`, { json: claim }).json();
    }
    throw err;
  }
}
