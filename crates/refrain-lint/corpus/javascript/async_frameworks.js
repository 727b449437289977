// snippet: express webhook with a set in redis
app.post('/webhooks/shop', async (req, res) => {
  const event = req.body;
  const isNew = await redis.setnx(`webhook:${event.id}`, Date.now()); // expect: mark-before-handle
  if (!isNew) return res.sendStatus(200);
  await inventory.adjust(event.sku, event.delta);
  return res.sendStatus(200);
});

// snippet: kafkajs producer with transactions of its own
async function relay(messages) {
  const transaction = await producer.transaction();
  try {
    await transaction.send({ topic: 'orders', messages });
    await transaction.commit();
  } catch (err) {
    await transaction.abort();
    throw err;
  }
}

// snippet: superagent retry
const superagent = require('superagent');

exports.create = (note) => superagent.post(`${BASE}/notes`).send(note).retry(3); // expect: retry-post-without-key

exports.read = (id) => superagent.get(`${BASE}/notes/${id}`).retry(3);

// snippet: idempotency lookup of the wrong width
async function replay(req, res, next) {
  const record = await db('idempotency_records').where({ key: req.header('Idempotency-Key') }).first(); // expect: unscoped-key
  if (record) return res.status(record.status).json(record.body);
  return next();
}
