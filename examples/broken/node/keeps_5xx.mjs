// A failure is kept as if it were an outcome, and replayed as if it happened anew.
//
// Seen where every response goes into the store. Keeping a failure can be right, where it may have taken effect; then
// the replay has to say that it is one, so that the client takes a new key.
// Cost: the bank was away for a second, and the client retries a stored "try again" until the key is forgotten.

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
