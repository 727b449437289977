// Of two key headers, the first is looked up and the last is stored.
//
// Seen where two layers (a gateway and an app, a framework and a middleware) each read the header.
// Cost: a proxy in between adds its own key, and every retry pays again.

import { Service, serve } from "./base.mjs";

class DoubledKey extends Service {
  keyOf(request) {
    const keys = request.headersDistinct["idempotency-key"] ?? [];
    const one = { headersDistinct: { "idempotency-key": keys.slice(0, 1) } };
    return super.keyOf(one);
  }

  run(identity, fingerprint, request) {
    const last = request.headersDistinct["idempotency-key"].at(-1);
    const [caller] = identity.split(" ");
    return super.run(`${caller} ${last.replaceAll('"', "")}`, fingerprint, request);
  }
}

serve(DoubledKey);
