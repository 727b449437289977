// A refusal is kept under the key, and answers whatever comes next with that key.
//
// Seen where "replay errors too" was read as "whatever the request says".
// Cost: the client corrects the typo, sends it again with its key, and is told of the typo that is no longer there.

import { Refused, Service, serve } from "./base.mjs";

class Keeps4xx extends Service {
  async run(identity, fingerprint, request) {
    try {
      return await super.run(identity, fingerprint, request);
    } catch (error) {
      if (error instanceof Refused && error.answer.status < 500) {
        this.commit({ identity, fingerprint, answer: error.answer });
      }
      throw error;
    }
  }

  compare(found, fingerprint) {
    if (!(found.answer?.status >= 400)) super.compare(found, fingerprint);
  }
}

serve(Keeps4xx);
