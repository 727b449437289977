// Bodies are read as text.
//
// Seen where middleware reads the body with `text()` to fingerprint it, and passes this text on.
// Cost: every body that is not UTF-8 changes, even for the first caller: images, archives, signatures.

import { Service, serve } from "./base.mjs";

class BinaryAsText extends Service {
  async bodyOf(request) {
    const body = await super.bodyOf(request);
    return Buffer.from(body.toString("utf8"));
  }
}

serve(BinaryAsText);
