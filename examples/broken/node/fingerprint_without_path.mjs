// The fingerprint leaves the path out.
//
// Seen where a middleware is mounted for a whole API and fingerprints bodies.
// Cost: a client that uses one key per checkout pays, then refunds, and gets the payment's answer for the refund.

import { Service, digest, serve } from "./base.mjs";

class FingerprintWithoutPath extends Service {
  fingerprintOf(request) {
    return digest(request.method, request.place.search, this.contentOf(request));
  }
}

serve(FingerprintWithoutPath);
