// The fingerprint omits the path.
//
// Seen where middleware is mounted for a whole API and fingerprints only bodies.
// Cost: a client that uses one key per checkout pays, then refunds, and gets the response of the payment for the refund.

import { Service, digest, serve } from "./base.mjs";

class FingerprintWithoutPath extends Service {
  fingerprintOf(request) {
    return digest(request.method, request.place.search, this.contentOf(request));
  }
}

serve(FingerprintWithoutPath);
