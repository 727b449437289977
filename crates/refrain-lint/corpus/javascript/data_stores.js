// snippet: helper that tries again under another name
const axios = require('axios');

async function stubborn(task) {
  for (let i = 0; i < 3; i++) {
    try {
      return await task();
    } catch (e) {
      console.warn('once more', e.message);
    }
  }
  throw new Error('gave up');
}

exports.createUser = (user) => stubborn(() => axios.post(`${BASE}/users`, user)); // expect: retry-post-without-key
exports.readUser = (id) => stubborn(() => axios.get(`${BASE}/users/${id}`));

// snippet: mongo look and insert
async function onEvent(event) {
  const seen = await db.collection('processed_events').findOne({ eventId: event.id }); // expect: check-then-act
  if (seen) return;
  await wallet.credit(event.account, event.cents);
  await db.collection('processed_events').insertOne({ eventId: event.id, at: new Date() });
}

// snippet: mongo insert with a unique index
async function onEvent(event) {
  const session = client.startSession();
  try {
    await session.withTransaction(async () => {
      await db.collection('processed_events').insertOne({ _id: event.id }, { session });
      await db.collection('wallets').updateOne({ _id: event.account }, { $inc: { cents: event.cents } }, { session });
    });
  } catch (err) {
    if (err.code !== 11000) throw err;
  } finally {
    await session.endSession();
  }
}

// snippet: key kept in local storage
import { v4 as uuid } from 'uuid';

export async function pay(cart) {
  let key = localStorage.getItem(`pay:${cart.id}`);
  if (!key) {
    key = uuid();
    localStorage.setItem(`pay:${cart.id}`, key);
  }
  return fetch('/api/payments', {
    method: 'POST',
    headers: { 'Idempotency-Key': key },
    body: JSON.stringify(cart),
  });
}

// snippet: ky with post and no key
import ky from 'ky';

const api = ky.create({ prefixUrl: BASE, retry: { limit: 4, methods: ['get', 'post'] } });

export const createNote = (note) => api.post('notes', { json: note }).json(); // expect: retry-post-without-key
