// The fingerprint leaves the method out.
//
// Seen where a middleware fingerprints "the payload".
// Cost: a PUT or DELETE that happens to carry the same key is answered with the POST's answer and does nothing.

import { Service, digest, serve } from "./base.mjs";

class FingerprintWithoutMethod extends Service {
  fingerprintOf(request) {
    return digest(request.place.pathname, request.place.search, this.contentOf(request));
  }
}

serve(FingerprintWithoutMethod);
