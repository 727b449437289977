"""A message that was given up counts as handled: its replay from the dead letters is refused as a duplicate.

Seen where an inbox keeps ids whatever became of the message.
"""

from base import KEPT_MS, Consumer, main


class DeadLetterRefused(Consumer):
    def give_up(self, entry, id, payload):
        self.redis("SET", self.mark(id), "done", "PX", KEPT_MS)
        super().give_up(entry, id, payload)


main(DeadLetterRefused)
