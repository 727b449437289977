// When execution fails, the claim is not released.
//
// Seen where the claim is settled after the call, but not on every exit path.
// Cost: after one error of the bank, the key stays "in flight" until it expires; the client can neither retry nor learn the outcome.

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
