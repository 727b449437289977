// The payment is made first, and its record written when all the rest is done: two commits.
//
// Seen in all middleware around a handler, for it cannot be in the handler's transaction.
// Cost: a crash between the two, and the retry pays again, because nothing tells that it was paid.

import { Service, serve } from "./base.mjs";

class EffectBeforeRecord extends Service {
  async run(identity, fingerprint, request) {
    this.check(request);
    const paid = this.pay(request);
    this.write({ payment: this.payments + 1 });
    await this.work(request);
    this.commit({ identity, fingerprint, answer: paid });
    return paid;
  }
}

serve(EffectBeforeRecord);
