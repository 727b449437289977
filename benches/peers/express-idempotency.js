// express-idempotency, as its README says: the middleware for all POST, and a handler that checks whether it was a hit.

const { getSharedIdempotencyService, idempotency } = require("express-idempotency");
const { serve } = require("./payments.js");

serve(idempotency(), (pay) => (request, response) => {
  if (getSharedIdempotencyService().isHit(request)) return undefined;
  return pay(request, response);
});
