"""A dead-lettered message counts as handled: its redrive is rejected as a duplicate.

Seen where an inbox stores ids regardless of the result of the message.
"""

from base import KEPT_MS, Consumer, main


class DeadLetterRefused(Consumer):
    def give_up(self, entry, id, payload):
        self.redis("SET", self.mark(id), "done", "PX", KEPT_MS)
        super().give_up(entry, id, payload)


main(DeadLetterRefused)
