// A rejection is stored under the key, and replayed to every later request with that key.
//
// Seen where "replay errors too" was implemented without comparing requests.
// Cost: the client corrects a typo, sends the request again with its key, and gets the error about the old typo.

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
