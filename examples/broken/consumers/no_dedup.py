"""Every delivery is handled: a duplicate takes effect again.

Seen wherever "at least once" is read as "once".
"""

from base import Consumer, Failed, main


class NoDedup(Consumer):
    def take(self, entry, id, payload):
        try:
            self.handle(id, payload)
        except Failed:
            if self.redis("INCR", f"attempts:{self.name}:{entry.decode()}") >= 3:
                self.give_up(entry, id, payload)
            return
        self.acknowledge(entry)


main(NoDedup)
