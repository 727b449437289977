// Payments are on disk, records are only in memory.
//
// Seen where the default in-memory store of a library is used in production.
// Cost: each deployment and each crash forgets all keys, at the moment when clients retry.

import { Service, serve } from "./base.mjs";

class MemoryStore extends Service {
  constructor(folder) {
    super(folder);
    this.records.clear();
  }
}

serve(MemoryStore);
