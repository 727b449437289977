"""The message is acknowledged before it is handled: if handling fails or the consumer dies, it is never redelivered.

Seen with automatic acknowledgement, and with consumers that pass messages to a thread pool.
"""

from base import Consumer, main


class AckBeforeHandle(Consumer):
    def take(self, entry, id, payload):
        self.acknowledge(entry)
        super().take(entry, id, payload)

    def give_up(self, entry, id, payload):
        pass


main(AckBeforeHandle)
