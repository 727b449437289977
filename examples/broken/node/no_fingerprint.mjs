// Every request with a known key gets the stored response, without a comparison.
//
// Seen in most libraries: they assume that a key belongs to one request.
// Cost: a client that reuses a key by mistake (a constant, a counter that restarted) gets a success response for its second order,
// which was never placed.

import { Service, serve } from "./base.mjs";

class NoFingerprint extends Service {
  fingerprintOf() {
    return "";
  }
}

serve(NoFingerprint);
