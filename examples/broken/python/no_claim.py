"""Check, then act: the key is looked up before the run and written down after it, with nothing in between.

Seen in most middleware that was written in an afternoon, and in caches used as idempotency stores.
Cost: two clicks, or a client that retries after a short timeout, run side by side and both pay.
"""

import time

from base import Service, serve


class NoClaim(Service):
    def claim(self, identity, fingerprint):
        with self.transaction():
            return self.find(identity, fingerprint) or time.time_ns()

    def holds(self, identity, fence):
        return True


serve(NoClaim)
