// The fingerprint omits the query.
//
// Seen where the matched route is compared, without the query string.
// Cost: `?amount=999` gets the response for `?amount=1`, as if it had been executed.

import { Service, digest, serve } from "./base.mjs";

class FingerprintWithoutQuery extends Service {
  fingerprintOf(request) {
    return digest(request.method, request.place.pathname, this.contentOf(request));
  }
}

serve(FingerprintWithoutQuery);
