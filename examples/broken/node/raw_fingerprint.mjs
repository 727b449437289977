// The body is compared byte for byte.
//
// Seen where the raw body is hashed.
// Cost: no money is lost, but a correct retry is rejected when a serialiser reorders members: another instance of the client,
// another version of its library, an unordered map.

import { Service, serve } from "./base.mjs";

class RawFingerprint extends Service {
  contentOf(request) {
    return request.body;
  }
}

serve(RawFingerprint);
