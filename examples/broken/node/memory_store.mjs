// Payments are on disk, records in memory.
//
// Seen wherever the default store of a library went to production.
// Cost: each deployment and each crash forgets all keys, at the moment at which all clients retry.

import { Service, serve } from "./base.mjs";

class MemoryStore extends Service {
  constructor(folder) {
    super(folder);
    this.records.clear();
  }
}

serve(MemoryStore);
