// snippet: lambda consumer with a marker
exports.handler = async (event) => {
  for (const record of event.Records) {
    const done = await table.put({ Item: { pk: `processed#${record.messageId}` }, ConditionExpression: 'attribute_not_exists(pk)' }); // expect: mark-before-handle
    await fulfil(JSON.parse(record.body));
  }
};

// snippet: retry wrapper from another file
const { withRetries } = require('./retry');

async function createInvoice(body) {
  const res = await axios.post(`${ERP}/invoices`, body); // expect: retry-post-without-key
  return res.data;
}

module.exports = (body) => withRetries(() => createInvoice(body));
// file: retry.js
async function withRetries(work) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await work();
    } catch (err) {
      if (attempt === 3) throw err;
    }
  }
}
module.exports = { withRetries };

// snippet: idempotency key as a parameter
function post(path, body, idempotencyKey) {
  return axios.post(BASE + path, body, { headers: { 'Idempotency-Key': idempotencyKey } });
}

const pay = (order) => post('/payments', order.body, order.key);
