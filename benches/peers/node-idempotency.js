// @node-idempotency/core with its Redis adapter, as its README says: onRequest before the handler, onResponse after it.

const { Idempotency, IdempotencyErrorCodes } = require("@node-idempotency/core");
const { RedisStorageAdapter } = require("@node-idempotency/storage-adapter-redis");
const { serve } = require("./payments.js");

const STATUSES = {
  [IdempotencyErrorCodes.REQUEST_IN_PROGRESS]: 409,
  [IdempotencyErrorCodes.IDEMPOTENCY_FINGERPRINT_MISSMATCH]: 422,
};

async function main() {
  const storage = new RedisStorageAdapter({ url: process.env.REDIS_URL });
  await storage.connect();
  const idempotency = new Idempotency(storage, { enforceIdempotency: true });
  serve(async (request, response, next) => {
    const { method, headers, body, originalUrl } = request;
    const asked = { method, headers, body, path: originalUrl };
    try {
      const kept = await idempotency.onRequest(asked);
      if (kept) {
        const { status, location } = kept.additional;
        if (location) response.set("location", location);
        return response.status(status).set("idempotent-replayed", "true").json(kept.body ?? kept.error);
      }
    } catch (error) {
      return response.status(STATUSES[error.code] ?? 400).json({ error: error.message });
    }
    const json = response.json.bind(response);
    response.json = (said) => {
      const additional = { status: response.statusCode, location: response.get("location") };
      const outcome = response.statusCode < 400 ? { body: said } : { error: said };
      void idempotency.onResponse(asked, { additional, ...outcome }).then(() => json(said));
    };
    return next();
  });
}

main();
