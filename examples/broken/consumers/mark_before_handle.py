"""The message is marked as done before it is handled: if handling fails or the consumer dies, it is lost.

Seen in deduplicating middleware that checks and stores the id in the same step.
"""

from base import KEPT_MS, Consumer, Failed, main


class MarkBeforeHandle(Consumer):
    def take(self, entry, id, payload):
        is_new = self.redis("SET", self.mark(id), "done", "NX", "PX", KEPT_MS)
        if is_new is not None:
            try:
                self.handle(id, payload)
            except Failed:
                return
        self.acknowledge(entry)


main(MarkBeforeHandle)
