// The empty key is accepted as a key.
//
// Seen where only the absence of the header is checked.
// Cost: clients whose key variable is empty share one key: the second order is rejected, or gets the first response.

import { Service, serve } from "./base.mjs";

class EmptyKey extends Service {
  keyOf(request) {
    return request.headers["idempotency-key"] === "" ? "" : super.keyOf(request);
  }
}

serve(EmptyKey);
