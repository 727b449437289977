// The fingerprint omits the method.
//
// Seen where middleware fingerprints only the body.
// Cost: a PUT or DELETE with the same key gets the response of the POST and does nothing.

import { Service, digest, serve } from "./base.mjs";

class FingerprintWithoutMethod extends Service {
  fingerprintOf(request) {
    return digest(request.place.pathname, request.place.search, this.contentOf(request));
  }
}

serve(FingerprintWithoutMethod);
