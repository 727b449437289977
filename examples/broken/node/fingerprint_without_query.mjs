// The fingerprint leaves the query out.
//
// Seen where routes are compared as the router knows them, without what stands behind the question mark.
// Cost: `?amount=999` is answered with the answer to `?amount=1`, as if it had been done.

import { Service, digest, serve } from "./base.mjs";

class FingerprintWithoutQuery extends Service {
  fingerprintOf(request) {
    return digest(request.method, request.place.pathname, this.contentOf(request));
  }
}

serve(FingerprintWithoutQuery);
