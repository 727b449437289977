"""The mark does not contain the consumer's name: the second subscriber treats the message as a duplicate.

Seen where all endpoints share one table of handled ids.
"""

from base import Consumer, main


class NoConsumerName(Consumer):
    def mark(self, id):
        return f"mark:{self.stream}:{id}"


main(NoConsumerName)
