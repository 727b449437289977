// A failure is stored as the outcome, and its replay looks like a new failure.
//
// Seen where every response is stored. Storing a failure is correct if it may have taken effect; then
// the replay must be marked, so that the client can decide to use a new key.
// Cost: the bank was unavailable for a second, and the client retries against a stored "try again" until the key expires.

import { Refused, Service, serve } from "./base.mjs";

class Keeps5xx extends Service {
  async run(identity, fingerprint, request) {
    try {
      return await super.run(identity, fingerprint, request);
    } catch (error) {
      if (error instanceof Refused && error.answer.status >= 500) {
        this.commit({ identity, fingerprint, answer: error.answer });
      }
      throw error;
    }
  }

  replay(record, fingerprint) {
    const replay = super.replay(record, fingerprint);
    return replay.status >= 500 ? record.answer : replay;
  }
}

serve(Keeps5xx);
