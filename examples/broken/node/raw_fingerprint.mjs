// The body is compared byte for byte.
//
// Seen wherever the raw body is hashed because it is at hand.
// Cost: no money, but an honest retry is refused when a serialiser orders members anew: another instance of the client,
// another version of its library, a map without an order.

import { Service, serve } from "./base.mjs";

class RawFingerprint extends Service {
  contentOf(request) {
    return request.body;
  }
}

serve(RawFingerprint);
