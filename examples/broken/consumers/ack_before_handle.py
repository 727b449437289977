"""The message is acknowledged before it is handled: one that fails, or whose consumer dies, never comes again.

Seen with automatic acknowledgement, and with consumers that hand over to a pool of threads.
"""

from base import Consumer, main


class AckBeforeHandle(Consumer):
    def take(self, entry, id, payload):
        self.acknowledge(entry)
        super().take(entry, id, payload)

    def give_up(self, entry, id, payload):
        pass


main(AckBeforeHandle)
