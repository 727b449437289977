// Whatever comes with a known key is answered with what is kept under it.
//
// Seen in most of the field: the key is trusted to mean one request.
// Cost: a client that reuses a key by mistake (a constant, a counter that restarted) is told that its second order went
// through, and it was never placed.

import { Service, serve } from "./base.mjs";

class NoFingerprint extends Service {
  fingerprintOf() {
    return "";
  }
}

serve(NoFingerprint);
