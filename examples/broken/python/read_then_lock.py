"""Reads the record, then waits for the lock, and does not read again after it has the lock.

Seen where a lock (Redis, advisory) was added to an older check-then-act, and the check stayed outside the lock.
Cost: a duplicate that arrives while the first request runs waits for the lock, and then pays again.
"""

import threading
import time

from base import Service, serve


class ReadThenLock(Service):
    def __init__(self, folder):
        super().__init__(folder)
        self.locks = {}

    def claim(self, identity, fingerprint):
        with self.transaction():
            found = self.find(identity, fingerprint)
        return found or time.time_ns()

    def run(self, request, identity, fingerprint, fence):
        with self.locks.setdefault(identity, threading.Lock()):
            return super().run(request, identity, fingerprint, fence)

    def holds(self, identity, fence):
        return True


serve(ReadThenLock)
