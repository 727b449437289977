// Bodies are read as text on their way through.
//
// Seen where a middleware reads the body with `text()` to fingerprint it, and hands on what it has read.
// Cost: everything that is no UTF-8 arrives changed, for the first caller already: images, archives, signatures.

import { Service, serve } from "./base.mjs";

class BinaryAsText extends Service {
  async bodyOf(request) {
    const body = await super.bodyOf(request);
    return Buffer.from(body.toString("utf8"));
  }
}

serve(BinaryAsText);
