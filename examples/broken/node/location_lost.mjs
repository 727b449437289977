// Status and body are stored, headers are not.
//
// Seen where a body cache was turned into an idempotency store.
// Cost: a client that lost the response does not learn the URL of its payment from the replay.

import { Service, serve } from "./base.mjs";

class LocationLost extends Service {
  kept({ status, headers, body }) {
    return { status, headers: { "content-type": headers["content-type"] }, body };
  }
}

serve(LocationLost);
