// snippet: interceptor mints
const client = axios.create({ baseURL: 'https://psp.example.com' });
client.interceptors.request.use((config) => {
  config.headers['Idempotency-Key'] = crypto.randomUUID(); // expect: key-per-attempt
  return config;
});

// snippet: axios-retry as it comes
const axiosRetry = require('axios-retry');

const client = axios.create({ baseURL: 'https://erp.example.com' });
axiosRetry(client, { retries: 3 });

async function createOrder(order) {
  return client.post('/orders', order);
}

// snippet: kafkajs marks first
await consumer.run({
  eachMessage: async ({ topic, message }) => {
    const event = JSON.parse(message.value.toString());
    const fresh = await redis.set(`processed:${event.id}`, '1', 'EX', 2592000, 'NX'); // expect: mark-before-handle
    if (!fresh) return;
    await chargeCustomer(event);
  },
});

// snippet: sqs deletes first
async function poll() {
  const { Messages = [] } = await sqs.send(new ReceiveMessageCommand({ QueueUrl }));
  for (const message of Messages) {
    await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: message.ReceiptHandle })); // expect: ack-before-handle
    await fulfil(JSON.parse(message.Body));
  }
}

// snippet: knex transaction with a queue
async function signUp(input) {
  return knex.transaction(async (trx) => {
    const [user] = await trx('users').insert(input).returning('*');
    await emailQueue.add('welcome', { userId: user.id }); // expect: publish-in-transaction
    return user;
  });
}

// snippet: helper that writes an outbox
async function publish(trx, topic, payload) {
  await trx('outbox').insert({ topic, payload: JSON.stringify(payload) });
}

async function signUp(input) {
  return knex.transaction(async (trx) => {
    const [user] = await trx('users').insert(input).returning('*');
    await publish(trx, 'users.created', user);
    return user;
  });
}

// snippet: resend on hang up
async function submit(order, again = true) {
  try {
    return await got.post('https://erp.example.com/orders', { json: order }).json();
  } catch (error) {
    if (again && error.message.includes('socket hang up')) { // expect: resend-on-closed-connection
      return submit(order, false);
    }
    throw error;
  }
}

// snippet: mongo check then insert
router.post('/webhooks/stripe', async (req, res) => {
  const event = req.body;
  const known = await db.collection('events').findOne({ eventId: event.id }); // expect: check-then-act
  if (known) return res.sendStatus(200);
  await applyEvent(event);
  await db.collection('events').insertOne({ eventId: event.id });
  res.sendStatus(200);
});
