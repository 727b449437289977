// When the run fails, nobody takes the claim back.
//
// Seen where the claim is settled behind the call, and not on every way out of it.
// Cost: one error of the bank, and the key says "in flight" until it is forgotten; the client can neither retry nor know.

import { Service, answer, serve } from "./base.mjs";

class ClaimLeftBehind extends Service {
  async guarded(request) {
    if (this.claims.get(this.identityOf(request))?.isStuck) {
      return answer(409, `{"error":"still in flight"}`, { "retry-after": "1" });
    }
    return super.guarded(request);
  }

  async claimed(identity, fingerprint, request) {
    try {
      return await super.claimed(identity, fingerprint, request);
    } catch (error) {
      if (error.answer?.status >= 500) this.claims.set(identity, { fingerprint, isStuck: true });
      throw error;
    }
  }
}

serve(ClaimLeftBehind);
