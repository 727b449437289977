// snippet: middleware that keeps failures too
module.exports = (redis) => async (req, res, next) => {
  const name = `idempotency:${req.tenant.id}:${req.get('Idempotency-Key')}`;
  const fresh = await redis.set(name, 'pending', 'EX', 60, 'NX');
  if (!fresh) return replay(name, res);
  const send = res.json.bind(res);
  res.json = (body) => {
    redis.set(name, JSON.stringify({ status: res.statusCode, body }), 'EX', 86400); // expect: error-outcome-kept
    return send(body);
  };
  return next();
};

// snippet: middleware that lets failures go
module.exports = (redis) => async (req, res, next) => {
  const name = `idempotency:${req.tenant.id}:${req.get('Idempotency-Key')}`;
  const fresh = await redis.set(name, 'pending', 'EX', 60, 'NX');
  if (!fresh) return replay(name, res);
  const send = res.json.bind(res);
  res.json = (body) => {
    if (res.statusCode < 500) {
      redis.set(name, JSON.stringify({ status: res.statusCode, body }), 'EX', 86400);
    }
    return send(body);
  };
  return next();
};

// snippet: sqs consumer in lambda style
const { SQSClient, ReceiveMessageCommand, DeleteMessageCommand } = require('@aws-sdk/client-sqs');

const sqs = new SQSClient({});

async function drain(QueueUrl) {
  const { Messages = [] } = await sqs.send(new ReceiveMessageCommand({ QueueUrl, WaitTimeSeconds: 20 }));
  for (const message of Messages) {
    await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: message.ReceiptHandle })); // expect: ack-before-handle
    await importInvoice(JSON.parse(message.Body));
  }
}

async function drainInOrder(QueueUrl) {
  const { Messages = [] } = await sqs.send(new ReceiveMessageCommand({ QueueUrl, WaitTimeSeconds: 20 }));
  for (const message of Messages) {
    await importInvoice(JSON.parse(message.Body));
    await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: message.ReceiptHandle }));
  }
}

// snippet: recursion as a retry
const axios = require('axios');

async function createLead(lead, retries = 3) {
  try {
    const { data } = await axios.post(`${CRM}/leads`, lead); // expect: retry-post-without-key
    return data;
  } catch (err) {
    if (retries === 0) throw err;
    await new Promise((r) => setTimeout(r, 500));
    return createLead(lead, retries - 1);
  }
}

// snippet: sequelize transaction
async function checkout(cart) {
  const t = await sequelize.transaction();
  try {
    const order = await Order.create({ total: cart.total }, { transaction: t });
    await channel.sendToQueue('orders', Buffer.from(JSON.stringify(order))); // expect: publish-in-transaction
    await t.commit();
    return order;
  } catch (err) {
    await t.rollback();
    throw err;
  }
}

async function checkoutThenTell(cart) {
  const t = await sequelize.transaction();
  const order = await Order.create({ total: cart.total }, { transaction: t });
  await t.commit();
  await channel.sendToQueue('orders', Buffer.from(JSON.stringify(order)));
  return order;
}

// snippet: keys through a spread of defaults
const stripe = require('stripe')(process.env.KEY);

const optionsFor = (order) => ({ idempotencyKey: `order_${order.id}`, timeout: 8000 });

exports.charge = (order) => stripe.paymentIntents.create(
  { amount: order.cents, currency: 'eur' },
  { ...optionsFor(order), maxNetworkRetries: 2 },
);

exports.payout = (account, cents) => stripe.payouts.create({ amount: cents, currency: 'eur' }, { stripeAccount: account }); // expect: money-call-without-key
