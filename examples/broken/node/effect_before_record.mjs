// The payment is committed first, and its record at the end: two commits.
//
// Seen in all middleware around a handler, because it cannot take part in the handler's transaction.
// Cost: after a crash between the two, the retry pays again, because no record shows the payment.

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
