// Status and body are kept, headers are not.
//
// Seen where a cache of bodies was made into an idempotency store.
// Cost: the client that needs the replay most, because it lost the answer, does not learn where its payment is.

import { Service, serve } from "./base.mjs";

class LocationLost extends Service {
  kept({ status, headers, body }) {
    return { status, headers: { "content-type": headers["content-type"] }, body };
  }
}

serve(LocationLost);
